package op

// Fuse joins image operators on one field into one operator that does each image in a single kernel call; the layout
// and type that an output operator asks for become its last part. The fused operators give the bytes that the single
// ones give. Operators between two of a group are passed over if they don't touch the field; a group runs at the place of its last.
func Fuse(ops []Operator) []Operator {
	out := make([]Operator, 0, len(ops))
	for _, o := range ops {
		switch o := o.(type) {
		case *imageOp:
			if at := joinable(out, o.field); at >= 0 {
				group := out[at].(*imageOp) //nolint:forcetypeassert // joinable checked it.
				parts := append(append([]part{}, group.parts...), o.parts...)
				out = append(out[:at], out[at+1:]...)
				out = append(out, newImageOp(o.field, parts...))
				continue
			}
			out = append(out, o)
		case *outputOp:
			for i, f := range o.fields {
				at := joinable(out, f.Name)
				if p := o.imagePart(i); at >= 0 && p != nil {
					group := out[at].(*imageOp) //nolint:forcetypeassert // joinable checked it.
					out[at] = newImageOp(group.field, append(append([]part{}, group.parts...), p)...)
				}
			}
			out = append(out, o)
		default:
			out = append(out, o)
		}
	}
	return out
}

// joinable is the place of the last image operator on field that a next one may join, -1 when there is none: nothing
// after it may touch the field or the rows.
func joinable(ops []Operator, field string) int {
	for i := len(ops) - 1; i >= 0; i-- {
		switch o := ops[i].(type) {
		case *imageOp:
			if o.field == field {
				return i
			}
		case *labelOp:
			if o.field == field || o.from == field {
				return -1
			}
		default:
			return -1
		}
	}
	return -1
}
