package op

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/internal/errkind"
)

// samples is a batch of n rows without columns.
func numberedRows(n int) *Batch {
	b := &Batch{NumRows: n}
	for i := range n {
		b.Samples, b.Keys = append(b.Samples, uint64(i)), append(b.Keys, fmt.Sprint("key", i))
	}
	return b
}

func mustBuild(t *testing.T, name string, params map[string]any) Operator {
	t.Helper()
	o, err := Build(name, 0, params)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestVirtualWorkTakesTheStatedTime(t *testing.T) {
	for _, test := range []struct {
		params map[string]any
		want   time.Duration
	}{
		{map[string]any{"seconds": 0.5}, 5 * time.Second},
		{map[string]any{"seconds": 0.5, "every": 5, "at": 2, "every_seconds": 3}, 10 * time.Second},
		{map[string]any{"seconds": 1, "after": 4, "after_seconds": 0.5}, 7 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			o, in := mustBuild(t, "virtual_sleep", test.params), numberedRows(10)
			began := time.Now()
			err := o.Apply(t.Context(), &Env{}, in, func(out *Batch) error {
				if out != in {
					t.Error("the rows are not those of the input")
				}
				return nil
			})
			if took := time.Since(began); err != nil || took != test.want {
				t.Errorf("%v took %v (%v), want %v", test.params, took, err, test.want)
			}
		})
	}
}

func TestVirtualSpinIsBusyForItsTime(t *testing.T) {
	o := mustBuild(t, "virtual_spin", map[string]any{"seconds": 0.01})
	began := time.Now()
	if err := o.Apply(t.Context(), &Env{}, numberedRows(2), func(*Batch) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 20*time.Millisecond {
		t.Errorf("two rows took %v, want at least 20 ms", took)
	}
}

// Law: what is made of a row follows from the row alone, and is handed on before the next is made.
func TestVirtualEmitHandsRowsOnOneByOne(t *testing.T) {
	o := mustBuild(t, "virtual_emit", map[string]any{"rows": 3, "bytes": 40})
	made := 0
	env := &Env{Alloc: func(n int) []byte { made++; return make([]byte, n) }}
	var seen [][]byte
	err := o.Apply(t.Context(), env, numberedRows(2), func(b *Batch) error {
		if err := b.Check(); err != nil {
			return err
		}
		seen = append(seen, slices.Clone(b.Columns[0].Tensor))
		if made != len(seen) {
			return fmt.Errorf("%d rows were made when row %d was handed on", made, len(seen))
		}
		if want := int64((len(seen) - 1) % 3); b.Columns[1].Ints[0] != want {
			return fmt.Errorf("row %d has number %d", len(seen), b.Columns[1].Ints[0])
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(seen) != 6 {
		t.Fatalf("%d rows, want 6", len(seen))
	}
	for i, a := range seen {
		for _, b := range seen[:i] {
			if bytes.Equal(a, b) {
				t.Error("two rows have the same bytes")
			}
		}
	}
}

func TestVirtualOperatorsRefuseMistakes(t *testing.T) {
	for name, params := range map[string]map[string]any{
		"virtual_sleep": {"seconds": -1}, "virtual_spin": {"second": 1}, "virtual_emit": {"field": "x", "count": "x"},
	} {
		if _, err := Build(name, 0, params); errkind.Of(err) != errkind.Invalid {
			t.Errorf("%s with %v: %v, want an error of kind Invalid", name, params, err)
		}
	}
	o := mustBuild(t, "virtual_sleep", map[string]any{"count": "frame"})
	if _, err := o.Schema(Schema{{Name: "frame", Kind: KindText}}); errkind.Of(err) != errkind.Invalid {
		t.Errorf("counting text: %v, want an error of kind Invalid", err)
	}
}
