package op

import (
	"fmt"
	"strconv"

	"github.com/millrace/millrace/internal/errkind"
)

// SampleError is a sample that an operator can't process. Its kind is BadData, or Exhausted for a limit.
type SampleError struct {
	// Key and Origin name the sample; Origin may be empty.
	Key    string
	Origin Origin
	// Operator is the name of the operator that failed, the part when it is a fused one.
	Operator string
	// Row is the sample's row in the input batch.
	Row int
	// Err is the cause.
	Err error
}

// Error names the sample, the place it was read from, the operator and the cause, in one line.
func (e *SampleError) Error() string {
	name := e.Key
	if e.Origin.URI != "" {
		name = e.Origin.URI
	}
	if e.Origin != (Origin{URI: e.Origin.URI}) {
		name += fmt.Sprintf(" (offset %s, %s bytes)", grouped(e.Origin.Offset), grouped(e.Origin.Length))
	}
	return fmt.Sprintf("sample %s: %s: %v", name, e.Operator, e.Err)
}

// Unwrap is the cause.
func (e *SampleError) Unwrap() error { return e.Err }

// sampleError makes a SampleError for row i of b. A cause without a kind is BadData.
func sampleError(b *Batch, i int, operator string, err error) error {
	if errkind.Of(err) == errkind.Unknown {
		err = errkind.With(errkind.BadData, err)
	}
	e := &SampleError{Key: b.label(i), Operator: operator, Row: i, Err: err}
	if b.Origin != nil {
		e.Origin = b.Origin(i)
	}
	return e
}

// grouped writes n with a comma between groups of three digits.
func grouped(n int64) string {
	s := strconv.FormatInt(n, 10)
	first := 0
	if n < 0 {
		first = 1
	}
	for i := len(s) - 3; i > first; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
