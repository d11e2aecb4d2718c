package flight

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/feed/session"
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/partition"
)

// The header has the layout that docs/formats/session.md gives.
func TestHeader(t *testing.T) {
	b := &session.Batch{
		Generation: 6, Epoch: 3, Step: 4, Part: 2, NextRow: 5, NumRows: 7, NumValid: 8, Last: true, LastPart: true, Cursor: "cursor", Sequence: 9,
	}
	got, err := b.AppendHeader(nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []byte{1, 3, 6, 0, 2, 0, 0, 0}
	for _, v := range []uint64{3, 4, 5, 6} {
		want = binary.LittleEndian.AppendUint64(want, v)
	}
	want = append(want, 7, 0, 0, 0, 8, 0, 0, 0)
	want = binary.LittleEndian.AppendUint64(want, 9)
	if len(want) != 56 {
		t.Fatalf("the header has %d bytes", len(want))
	}
	if diff := cmp.Diff(append(want, "cursor"...), got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	b.Cursor = strings.Repeat("x", math.MaxUint16+1)
	if _, err := b.AppendHeader(nil); errkind.Of(err) != errkind.Internal {
		t.Errorf("a cursor that does not fit: %v", err)
	}
}

// Columns are described as a trainer has them.
func TestColumnsAreDescribed(t *testing.T) {
	tensor, err := partition.NewTensorType(arrow.PrimitiveTypes.Uint16, []int64{3, 4}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	bfloat := arrow.NewMetadata([]string{partition.DTypeKey}, []string{"bfloat16"})
	ragged := arrow.StructOf(
		arrow.Field{Name: "data", Type: arrow.ListOf(arrow.PrimitiveTypes.Float32)},
		arrow.Field{Name: "shape", Type: arrow.FixedSizeListOf(2, arrow.PrimitiveTypes.Int32)},
	)
	for _, c := range []struct {
		field arrow.Field
		want  string
	}{
		{arrow.Field{Type: tensor}, `"uint16" [3,4]`},
		{arrow.Field{Type: tensor, Metadata: bfloat}, `"bfloat16" [3,4]`},
		{arrow.Field{Type: arrow.PrimitiveTypes.Int64}, `"int64" []`},
		{arrow.Field{Type: arrow.FixedWidthTypes.Boolean}, `"bool" []`},
		{arrow.Field{Type: arrow.FixedWidthTypes.Float16}, `"float16" []`},
		{arrow.Field{Type: arrow.PrimitiveTypes.Float64}, `"float64" []`},
		{arrow.Field{Type: arrow.BinaryTypes.LargeString}, `"string" []`},
		{arrow.Field{Type: arrow.BinaryTypes.Binary}, `"bytes" []`},
		{arrow.Field{Type: arrow.FixedSizeListOf(2, arrow.PrimitiveTypes.Float32)}, `"float32" [2]`},
		{arrow.Field{Type: arrow.ListOf(arrow.PrimitiveTypes.Int32)}, `"int32" [null]`},
		{arrow.Field{Type: ragged}, `"float32" [null,null]`},
	} {
		dtype, shape := describe(c.field)
		a, err := json.Marshal(dtype)
		if err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(shape)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(a) + " " + string(b); got != c.want {
			t.Errorf("%s: got %s, want %s", c.field.Type, got, c.want)
		}
	}
}

// Whatever bytes come as a ticket, an action or an acknowledgement, they are read or refused as invalid.
func FuzzBodies(f *testing.F) {
	f.Add([]byte(`{"session": "s-1", "epoch": 0, "step": 0, "row": 0}`))
	f.Add([]byte(`{"job": "j", "rank": 0, "epoch": 1, "step": 2, "row": 3}`))
	f.Add([]byte(`{"version": 1, "job": "j", "settings": {"seed": 1}}`))
	f.Add([]byte(`{} {}`))
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, v := range []any{&ticketBody{}, &openBody{}, &sessionBody{}, &jobBody{}} {
			if err := decode("it", raw, v); err != nil {
				if k := errkind.Of(err); k != errkind.Invalid && k != errkind.Exhausted {
					t.Errorf("%q: %v of kind %s", raw, err, k)
				}
				continue
			}
			again, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			twice := bytes.Clone(again)
			if err := decode("it", again, v); err != nil {
				t.Errorf("%q was read, %q not: %v", raw, twice, err)
			}
		}
		if _, err := parseAck(raw); (err == nil) != (len(raw) == ackBytes) {
			t.Errorf("acknowledgement %x: %v", raw, err)
		}
	})
}
