package order

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/errkind"
)

func drawTail(t *rapid.T) Tail { return Tail(rapid.IntRange(1, 3).Draw(t, "tail")) }

// drawWorld is a world size that divides b.
func drawWorld(t *rapid.T, b int64, name string) int {
	var divisors []int
	for w := int64(1); w <= b; w++ {
		if b%w == 0 {
			divisors = append(divisors, int(w))
		}
	}
	return rapid.SampledFrom(divisors).Draw(t, name)
}

type row struct {
	index int64
	valid bool
}

func expand(segments []Segment) []row {
	var rows []row
	for _, s := range segments {
		for i := range s.NumRows {
			rows = append(rows, row{s.First + i, s.Valid})
		}
	}
	return rows
}

// dealt is the rows of a step over all ranks of world, in rank order.
func dealt(b Batching, rows, step int64, world int) []row {
	var all []row
	for rank := range world {
		all = append(all, expand(b.RankRows(rows, step, rank, world))...)
	}
	return all
}

func validRows(rows []row) []int64 {
	var valid []int64
	for _, r := range rows {
		if r.valid {
			valid = append(valid, r.index)
		}
	}
	return valid
}

// Law 2: over all steps and ranks every row of the epoch is dealt exactly once and in order, whatever the tail; only
// drop leaves out a rest. Law 4: every rank gets rows in every step.
func TestEveryRowIsDealtOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := Batching{GlobalBatch: rapid.Int64Range(1, 40).Draw(t, "batch"), Tail: drawTail(t)}
		rows := rapid.Int64Range(0, 200).Draw(t, "rows")
		world := drawWorld(t, b.GlobalBatch, "world")
		if err := b.Validate(); err != nil {
			t.Fatal(err)
		}
		if err := b.CheckWorld(world); err != nil {
			t.Fatal(err)
		}
		next := int64(0)
		for step := range b.NumSteps(rows) {
			first, numRows, valid := b.Step(rows, step)
			if first != next || valid < 1 || valid > numRows {
				t.Fatalf("%+v: step %d of %d rows is (%d, %d, %d), want it to begin at %d", b, step, rows, first, numRows, valid, next)
			}
			for rank := range world {
				got := expand(b.RankRows(rows, step, rank, world))
				if len(got) == 0 {
					t.Fatalf("%+v: rank %d of %d gets nothing of step %d of %d rows", b, rank, world, step, rows)
				}
				if b.Tail != TailShort && int64(len(got)) != b.GlobalBatch/int64(world) {
					t.Fatalf("%+v: rank %d of %d gets %d rows", b, rank, world, len(got))
				}
				for _, r := range got {
					if r.index < first || r.index >= first+valid {
						t.Fatalf("%+v: rank %d of %d gets row %d in step %d", b, rank, world, r.index, step)
					}
					if !r.valid {
						continue
					}
					if r.index != next || b.StepOfRow(next) != step {
						t.Fatalf("%+v: row %d is dealt in step %d after row %d; StepOfRow says %d", b, r.index, step, next-1, b.StepOfRow(next))
					}
					next++
				}
			}
			if next != first+valid {
				t.Fatalf("%+v: step %d of %d rows deals up to row %d, want %d", b, step, rows, next, first+valid)
			}
		}
		if left := rows - next; left != 0 && (b.Tail != TailDrop || left >= b.GlobalBatch) {
			t.Fatalf("%+v: %d of %d rows are not dealt", b, left, rows)
		}
	})
}

// Law 3: the global batch of a step, padding included, is the same on every world size.
func TestGlobalBatchesDoNotDependOnTheWorld(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := Batching{GlobalBatch: rapid.Int64Range(1, 48).Draw(t, "batch"), Tail: drawTail(t)}
		rows := rapid.Int64Range(0, 150).Draw(t, "rows")
		one, other := drawWorld(t, b.GlobalBatch, "world"), drawWorld(t, b.GlobalBatch, "other world")
		for step := range b.NumSteps(rows) {
			first, numRows, _ := b.Step(rows, step)
			x, y := dealt(b, rows, step, one), dealt(b, rows, step, other)
			if b.Tail == TailShort && numRows < b.GlobalBatch {
				// Ranks without a row have one of padding each; it is not part of the global batch.
				if !slices.Equal(validRows(x), validRows(y)) {
					t.Fatalf("%+v: step %d from row %d is %v on %d ranks, %v on %d", b, step, first, x, one, y, other)
				}
			} else if !slices.Equal(x, y) {
				t.Fatalf("%+v: step %d from row %d is %v on %d ranks, %v on %d", b, step, first, x, one, y, other)
			}
		}
	})
}

// A run may stop after any step and go on with another world size and another batch, any number of times: what was
// seen in all is the unbroken stream.
func TestResumeContinuesTheStream(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows := rapid.Int64Range(0, 120).Draw(t, "rows")
		tail := drawTail(t)
		b := Batching{GlobalBatch: rapid.Int64Range(1, 30).Draw(t, "batch"), Tail: tail}
		var seen []int64
		step := int64(0)
		for life := range 4 {
			world := drawWorld(t, b.GlobalBatch, "world")
			stop := b.NumSteps(rows)
			if life < 3 {
				stop = rapid.Int64Range(step, stop).Draw(t, "stop")
			}
			consumed := b.OriginRow
			for ; step < stop; step++ {
				if b.StepOfRow(int64(len(seen))) != step {
					t.Fatalf("%+v: row %d is in step %d, want %d", b, len(seen), b.StepOfRow(int64(len(seen))), step)
				}
				seen = append(seen, validRows(dealt(b, rows, step, world))...)
				first, _, valid := b.Step(rows, step)
				consumed = first + valid
			}
			b = Batching{GlobalBatch: b.GlobalBatch, Tail: tail, OriginStep: step, OriginRow: consumed}
			if life < 2 && rapid.Bool().Draw(t, "new batch") {
				b.GlobalBatch = rapid.Int64Range(1, 30).Draw(t, "batch")
			}
		}
		for i, r := range seen {
			if r != int64(i) {
				t.Fatalf("place %d of what was seen is row %d", i, r)
			}
		}
		if left := rows - int64(len(seen)); left != 0 && (tail != TailDrop || left >= b.GlobalBatch) {
			t.Fatalf("%+v: %d of %d rows were not seen", b, left, rows)
		}
	})
}

// With the same batch, a resumed run has the same steps as the unbroken one, whatever the origin says.
func TestResumeWithTheSameBatchChangesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows := rapid.Int64Range(1, 120).Draw(t, "rows")
		b := Batching{GlobalBatch: rapid.Int64Range(1, 30).Draw(t, "batch"), Tail: drawTail(t)}
		at := rapid.Int64Range(0, rows/b.GlobalBatch).Draw(t, "resumed at")
		resumed := b
		resumed.OriginStep, resumed.OriginRow = at, at*b.GlobalBatch
		if b.NumSteps(rows) != resumed.NumSteps(rows) {
			t.Fatalf("%+v has %d steps of %d rows, %+v has %d", b, b.NumSteps(rows), rows, resumed, resumed.NumSteps(rows))
		}
		world := drawWorld(t, b.GlobalBatch, "world")
		for step := at; step < b.NumSteps(rows); step++ {
			for rank := range world {
				if diff := cmp.Diff(b.RankRows(rows, step, rank, world), resumed.RankRows(rows, step, rank, world)); diff != "" {
					t.Fatalf("%+v: step %d of rank %d (-unbroken +resumed):\n%s", b, step, rank, diff)
				}
			}
		}
		if resumed.RankRows(rows, at-1, 0, world) != nil || resumed.StepOfRow(resumed.OriginRow-1) != -1 {
			t.Fatalf("%+v answers for steps before its origin", resumed)
		}
	})
}

func TestTailsByExample(t *testing.T) {
	const rows = 19 // two batches of 8 and a rest of 3
	for tail, want := range map[Tail][][]Segment{
		TailPad: {
			{{16, 2, true}}, {{18, 1, true}, {16, 1, false}}, {{17, 2, false}}, {{16, 2, false}},
		},
		TailShort: {
			{{16, 1, true}}, {{17, 1, true}}, {{18, 1, true}}, {{16, 1, false}},
		},
		TailDrop: {nil, nil, nil, nil},
	} {
		b := Batching{GlobalBatch: 8, Tail: tail}
		var got [][]Segment
		for rank := range 4 {
			got = append(got, b.RankRows(rows, 2, rank, 4))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%v (-want +got):\n%s", tail, diff)
		}
	}
	b := Batching{GlobalBatch: 8, Tail: TailShort}
	if diff := cmp.Diff([]Segment{{16, 2, true}}, b.RankRows(rows, 2, 0, 2)); diff != "" {
		t.Errorf("the first of two ranks gets the larger part (-want +got):\n%s", diff)
	}
}

// While the rows are not counted, full steps have the answers that they will keep.
func TestFullStepsAreKnownBeforeTheEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := Batching{GlobalBatch: rapid.Int64Range(1, 30).Draw(t, "batch"), Tail: drawTail(t)}
		world := drawWorld(t, b.GlobalBatch, "world")
		step := rapid.Int64Range(0, 1000).Draw(t, "step")
		rows := (step+1)*b.GlobalBatch + rapid.Int64Range(0, 100).Draw(t, "more")
		if b.NumSteps(-1) != -1 {
			t.Fatalf("%+v: %d steps of an unknown number of rows", b, b.NumSteps(-1))
		}
		for rank := range world {
			if diff := cmp.Diff(b.RankRows(rows, step, rank, world), b.RankRows(-1, step, rank, world)); diff != "" {
				t.Fatalf("%+v: step %d of rank %d (-known +unknown):\n%s", b, step, rank, diff)
			}
		}
	})
}

func TestBatchingSaysWhatIsWrong(t *testing.T) {
	good := Batching{GlobalBatch: 256, Tail: TailPad}
	for want, err := range map[string]error{
		"global batch of 0 rows":     Batching{Tail: TailPad}.Validate(),
		"no valid tail":              Batching{GlobalBatch: 1}.Validate(),
		"both must be within":        Batching{GlobalBatch: 1, Tail: TailPad, OriginRow: -1}.Validate(),
		"it must be at least 1":      good.CheckWorld(0),
		"too small for 512 ranks":    good.CheckWorld(512),
		"cut into 3 equal parts":     good.CheckWorld(3),
		"make it 255 or 258, or use": good.CheckWorld(3),
		"or use 4 ranks":             good.CheckWorld(7),
	} {
		if err == nil || !strings.Contains(err.Error(), want) || errkind.Of(err) != errkind.Invalid {
			t.Errorf("error is %v of kind %v, want %q, Invalid", err, errkind.Of(err), want)
		}
	}
	if got := good.RankRows(1000, 0, 4, 4); got != nil {
		t.Errorf("rank 4 of 4 gets %v", got)
	}
}
