package deal

// Dealt says whether a seat takes part in the generation.
func (s *State) Dealt(seat int) bool {
	r := s.seat(seat)
	return r != nil && r.dealt && !r.moved
}
