package order

// Tail is what becomes of the last rows of an epoch when they do not fill a global batch.
type Tail uint8

const (
	// TailInvalid is the zero Tail and never valid.
	TailInvalid Tail = iota
	// TailPad repeats the rows of the partial batch cyclically until it is full; repeats are marked invalid.
	TailPad
	// TailDrop leaves them out.
	TailDrop
	// TailShort makes a smaller batch of them.
	TailShort
)

var tailNames = [...]string{TailPad: "pad", TailDrop: "drop", TailShort: "short"}

// String is the name that [ParseTail] reads; "invalid" for values that are none.
func (t Tail) String() string { return enumName(tailNames[:], int(t)) }

// ParseTail reads "pad", "drop" or "short". Other names are errors of kind Invalid that name the nearest.
func ParseTail(name string) (Tail, error) {
	i, err := parseEnum("tail", tailNames[:], name)
	return Tail(i), err
}
