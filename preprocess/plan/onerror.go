package plan

import (
	"strings"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/nearest"
)

// OnError says what becomes of a sample that can't be processed. What it does depends on data and settings alone, so that
// every run sees the same stream.
type OnError uint8

const (
	// Raise ends the job with an error that names the sample, once all that comes before it was delivered.
	Raise OnError = iota
	// Skip leaves the sample out: an epoch has fewer rows than samples.
	Skip
	// Replace puts another sample of the same partition in its place, drawn by key.
	Replace
)

// onErrors are the names, in the order of the constants.
func onErrors() []string { return []string{"raise", "skip", "replace"} }

// String is the name in settings.
func (o OnError) String() string { return onErrors()[o] }

// ParseOnError reads a name. Errors are of kind Invalid.
func ParseOnError(name string) (OnError, error) {
	for i, known := range onErrors() {
		if name == known {
			return OnError(i), nil
		}
	}
	return Raise, errkind.Errorf(errkind.Invalid, "unknown on_error %q%s", name, nearest.Hint(name, onErrors()))
}

// With is the plan under a policy for bad samples: with Skip rows may be missing, and Replace needs operators that keep
// rows. Errors are of kind Invalid.
func (p *Plan) With(o OnError) (*Plan, error) {
	switch o {
	case Skip:
		out := *p
		out.KeepsRows = false
		return &out, nil
	case Replace:
		var drops []string
		for _, i := range p.operators {
			if !i.KeepsRows {
				drops = append(drops, i.Name)
			}
		}
		if len(drops) > 0 {
			return nil, errkind.Errorf(errkind.Invalid,
				`on_error="replace" keeps every sample at its place, but %s may drop or add rows; use on_error="skip"`, strings.Join(drops, ", "))
		}
	case Raise:
	}
	return p, nil
}
