package plan

import (
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/preprocess/op"
)

// Want says whether a member of a sample is used.
func (p *Plan) Want(member string) bool {
	for _, f := range p.Recipe.Fields {
		if slices.Contains(f.From, member) {
			return true
		}
	}
	return false
}

// Batch makes the first stage's input: one column of bytes for each field. The bytes are those of samples, not copied.
// A sample without a field is a *op.SampleError.
func (p *Plan) Batch(samples []dataset.Sample) (*op.Batch, error) {
	b := &op.Batch{
		NumRows: len(samples),
		Samples: make([]uint64, len(samples)),
		Keys:    make([]string, len(samples)),
	}
	for _, f := range p.Recipe.Fields {
		b.Columns = append(b.Columns, op.Column{
			Field: op.Field{Name: f.Name, Kind: op.KindBytes},
			Bytes: make([][]byte, len(samples)),
		})
	}
	media := make([]*dataset.Field, len(samples))
	b.Origin = func(i int) op.Origin {
		origin := op.Origin{URI: samples[i].URI}
		if media[i] != nil {
			// Within an archive the member is named too: train-000017.tar!n014.jpg.
			if at := strings.LastIndex(samples[i].Key, "!"); at >= 0 && !strings.Contains(samples[i].URI, "!") {
				origin.URI += samples[i].Key[at:] + "." + media[i].Name
			}
			origin.Offset, origin.Length = media[i].Offset, media[i].Length
		}
		return origin
	}
	for i := range samples {
		s := &samples[i]
		b.Samples[i], b.Keys[i] = uint64(s.Ordinal), s.Key //nolint:gosec // Ordinals are never negative.
		if s.Err != nil {
			return nil, &op.SampleError{Key: s.Key, Origin: b.Origin(i), Operator: "read", Row: i, Err: s.Err}
		}
		for j, f := range p.Recipe.Fields {
			member := pick(s, f.From)
			if member == nil {
				return nil, &op.SampleError{
					Key: s.Key, Origin: b.Origin(i), Operator: "read", Row: i,
					Err: errkind.Errorf(errkind.BadData, "no member %s for field %q", strings.Join(f.From, " or "), f.Name),
				}
			}
			if media[i] == nil {
				media[i] = member
			}
			b.Columns[j].Bytes[i] = member.Data
		}
	}
	return b, nil
}

// pick is the first of the wanted members that s has.
func pick(s *dataset.Sample, wanted []string) *dataset.Field {
	for _, name := range wanted {
		for i := range s.Fields {
			if s.Fields[i].Name == name {
				return &s.Fields[i]
			}
		}
	}
	return nil
}
