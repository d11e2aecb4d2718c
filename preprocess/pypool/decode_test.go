package pypool

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/op"
)

// memory is what a process has written, or rows were written to.
type memory []byte

func (m memory) WriteAt(b []byte, at int64) (int, error) { return copy(m[at:], b), nil }

// everyKind is a batch with a column of each kind.
func everyKind() *op.Batch {
	return &op.Batch{NumRows: 3, Samples: []uint64{7, 8, 9}, Keys: []string{"a", "", "c"}, Columns: []op.Column{
		{Field: op.Field{Name: "bytes", Kind: op.KindBytes}, Bytes: [][]byte{{1}, {}, {2, 3}}},
		{Field: op.Field{Name: "text", Kind: op.KindText}, Bytes: [][]byte{[]byte("é"), []byte("x"), {}}},
		{Field: op.Field{Name: "n", Kind: op.KindInt64, DType: op.DTypeInt64}, Ints: []int64{-1, 0, 1}},
		{Field: op.Field{Name: "f", Kind: op.KindFloat64, DType: op.DTypeFloat64}, Floats: []float64{-0.5, 0, 1e300}},
		{Field: op.Field{Name: "tensor", Kind: op.KindTensor, DType: op.DTypeInt32, Shape: []int64{2}}, Tensor: bytes.Repeat([]byte{1, 2, 3}, 8)},
		{
			Field:  op.Field{Name: "image", Kind: op.KindImage, DType: op.DTypeUint8, Shape: []int64{-1, -1, 3}},
			Images: []op.Image{{H: 1, W: 1, C: 3, Pix: []byte{1, 2, 3}}, {H: 1, W: 2, C: 3, Pix: make([]byte, 6)}, {H: 2, W: 1, C: 3, Pix: make([]byte, 6)}},
		},
	}}
}

func callOf(b *op.Batch) *op.PythonCall {
	c := &op.PythonCall{
		Function: &op.PythonFunction{Mode: op.PythonMap}, Batch: b, To: b.NumRows, Out: b.Schema(), Alloc: func(n int) []byte { return make([]byte, n) },
	}
	for i := range b.Columns {
		c.Inputs = append(c.Inputs, i)
	}
	return c
}

// written is rows in memory, and the answer that says where they are.
func written(tb testing.TB, c *op.PythonCall, from int) (memory, *answerFrame) {
	tb.Helper()
	l := newLayout(c, from)
	mem := make(memory, l.size+64)
	sources := extent{l.size, 8 * int64(l.rows)}
	for i := range l.rows {
		mem[l.size+8*int64(i)] = byte(i)
	}
	if err := l.writeTo(mem); err != nil {
		tb.Fatal(err)
	}
	a := &answerFrame{Type: "rows", Rows: l.rows, From: sources, Columns: map[string][]extent{}}
	for i, f := range c.Out {
		a.Columns[f.Name] = l.frame.Columns[i]
	}
	return mem, a
}

func TestWhatIsWrittenIsReadBack(t *testing.T) {
	for from := range 3 {
		b := everyKind()
		c := callOf(b)
		mem, a := written(t, c, from)
		got, err := decode(c, from, a, mem)
		if err != nil {
			t.Fatal(err)
		}
		want := op.PythonRows{From: []int{0, 1, 2}, Columns: b.Columns}.Drop(from)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("from row %d (-want +got)\n%s", from, diff)
		}
		for _, list := range a.Columns {
			for _, e := range list {
				if e[0]%alignment != 0 {
					t.Errorf("a buffer begins at %d", e[0])
				}
			}
		}
	}
}

// Nothing that a process answers can do more than fail its call.
func FuzzDecode(f *testing.F) {
	c := callOf(everyKind())
	mem, a := written(f, c, 0)
	text, err := json.Marshal(a)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text, []byte(mem))
	f.Add([]byte(`{"rows": 1, "from": [0, 8], "columns": {"text": [[0, 16], [9223372036854775807, 9]]}}`), make([]byte, 64))
	f.Add([]byte(`{"rows": 9000000000000000000}`), []byte{})
	f.Fuzz(func(t *testing.T, text, mem []byte) {
		var a answerFrame
		if len(text) > 4<<10 || json.Unmarshal(text, &a) != nil {
			return
		}
		rows, err := decode(c, 0, &a, mem)
		if err != nil {
			if errkind.Of(err) != errkind.BadData {
				t.Errorf("kind %v: %v", errkind.Of(err), err)
			}
			return
		}
		out := &op.Batch{NumRows: len(rows.From), Samples: make([]uint64, len(rows.From)), Columns: rows.Columns}
		if err := out.Check(); err != nil {
			t.Error(err)
		}
	})
}
