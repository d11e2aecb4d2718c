package deal

// seat is what is known of one seat.
type seat struct {
	id int
	// asked is the position that its stream waits for; nil once it was granted.
	asked *Position
	// dealt: it takes part in the generation, and all below is of that.
	dealt bool
	// moved: a generation began elsewhere than where its stream was.
	moved bool

	// Batches are numbered from the beginning of the generation. window holds those from base on that are planned,
	// base being the first part of the oldest global batch that is not consumed whole.
	window               []*Batch
	base, consumed, sent int64
	next                 place  // of the batch after the window
	cursor               string // of the last global batch that was consumed, which leads to cursorAt
	cursorAt             place
	done                 bool // no batch follows the window

	// streamEpoch is the epoch that its stream carries, streamFirst the number of the stream's first batch.
	streamEpoch uint64
	streamFirst int64
}

// place names a batch of a rank.
type place struct {
	epoch uint64
	step  int64
	part  int
}

// before says whether the global batch of p comes before that of q.
func (p place) before(q place) bool {
	return p.epoch < q.epoch || (p.epoch == q.epoch && p.step < q.step)
}

func (r *seat) planned() int64 { return r.base + int64(len(r.window)) }

func (r *seat) at(number int64) *Batch { return r.window[number-r.base] }

// place is the place of the batch with a number from base to planned().
func (r *seat) place(number int64) place {
	if number == r.planned() {
		return r.next
	}
	b := r.at(number)
	return place{b.Epoch, b.Step, b.Part}
}

// forget drops batches that were consumed with their whole global batch.
func (r *seat) forget() {
	keep := int64(0)
	for i := range r.consumed - r.base {
		if r.window[i].LastPart {
			keep = i + 1
		}
	}
	clear(r.window[:keep])
	r.window = r.window[keep:]
	r.base += keep
}
