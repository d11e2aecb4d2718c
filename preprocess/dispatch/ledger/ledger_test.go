package ledger_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/loader/order"
	"github.com/millrace/millrace/preprocess/dispatch/ledger"
	"github.com/millrace/millrace/preprocess/lineage"
)

// stream is a small made-up job: rows[e][p] lists the rows of each output of source partition p in epoch e.
type stream struct {
	cfg  ledger.Config
	rows [][][]int64
}

func drawStream(t *rapid.T) stream {
	partitions := rapid.IntRange(1, 8).Draw(t, "partitions")
	each := rapid.Int64Range(1, 9).Draw(t, "samples")
	last := rapid.Int64Range(1, each).Draw(t, "last")
	samples := func(p int64) int64 {
		if p == int64(partitions)-1 {
			return last
		}
		return each
	}
	s := stream{cfg: ledger.Config{
		KeepsRows:     rapid.Bool().Draw(t, "keeps"),
		GlobalBatch:   rapid.Int64Range(1, 12).Draw(t, "batch"),
		Tail:          rapid.SampledFrom([]order.Tail{order.TailPad, order.TailDrop, order.TailShort}).Draw(t, "tail"),
		NumPartitions: int64(partitions),
		Samples:       samples,
		Stages:        rapid.IntRange(1, 3).Draw(t, "stages"),
	}}
	for e := range rapid.IntRange(1, 3).Draw(t, "epochs") {
		s.rows = append(s.rows, nil)
		for p := range partitions {
			left := samples(int64(p))
			if !s.cfg.KeepsRows {
				left = rapid.Int64Range(0, 2*each).Draw(t, "rows")
			}
			outputs := []int64{}
			for left > 0 {
				n := rapid.Int64Range(1, left).Draw(t, "output")
				outputs, left = append(outputs, n), left-n
			}
			s.rows[e] = append(s.rows[e], outputs)
		}
	}
	return s
}

// path is where flat output k of a source partition lies in a plan of that many stages: every input makes two outputs.
func path(stages, k int) []uint32 {
	out := make([]uint32, stages)
	for i := stages - 1; i > 0; i-- {
		out[i], k = uint32(k%2), k/2
	}
	out[0] = uint32(k)
	return out
}

func idOf(epoch, p int, path []uint32) lineage.ID {
	id := lineage.SourceID(uint64(epoch), uint64(p))
	for _, k := range path {
		var err error
		if id, err = id.Child(k); err != nil {
			panic(err)
		}
	}
	return id
}

func output(stages, epoch, p, k int, rows int64) ledger.Output {
	return ledger.Output{
		ID: idOf(epoch, p, path(stages, k)), Attempt: 1, Rows: rows, Bytes: rows * 10,
		Hash: [16]byte{byte(p), byte(k), byte(epoch)}, Worker: "w1",
	}
}

// total is the number of rows of an epoch.
func (s stream) total(e int) (n int64) {
	for _, outputs := range s.rows[e] {
		for _, rows := range outputs {
			n += rows
		}
	}
	return n
}

type report = func(*ledger.Ledger) (ledger.Effects, error)

// events lists every report of the stream, by source partition.
func (s stream) events(t *rapid.T, from ledger.Position) [][]report {
	var all [][]report
	for e := int(from.Epoch); e < len(s.rows); e++ {
		for p, outputs := range s.rows[e] {
			if e == int(from.Epoch) && int64(p) < from.Partition {
				continue
			}
			id, n := lineage.SourceID(uint64(e), uint64(p)), len(outputs)
			all = append(all, append(s.inner(t, e, p), func(l *ledger.Ledger) (ledger.Effects, error) { return l.Done(id, n) }))
		}
	}
	return all
}

// inner lists the reports of one source partition but the last: the outputs of each input of the last stage come in
// order, those of different inputs in any; an input is done after all that is made of it.
func (s stream) inner(t *rapid.T, e, p int) []report {
	stages := s.cfg.Stages
	left := map[string]int{} // outputs and inputs still to come below an input
	var threads [][]int
	for k := range s.rows[e][p] {
		if k == 0 || (stages > 1 && path(stages, k)[stages-1] == 0) {
			threads = append(threads, nil)
		}
		threads[len(threads)-1] = append(threads[len(threads)-1], k)
	}
	for k := range s.rows[e][p] {
		pa := path(stages, k)
		for d := stages - 1; d > 0; d-- {
			left[fmt.Sprint(pa[:d])]++
		}
	}
	var out []report
	for len(threads) > 0 {
		i := rapid.IntRange(0, len(threads)-1).Draw(t, "thread")
		k := threads[i][0]
		if threads[i] = threads[i][1:]; len(threads[i]) == 0 {
			threads = append(threads[:i], threads[i+1:]...)
		}
		rows := s.rows[e][p][k]
		out = append(out, func(l *ledger.Ledger) (ledger.Effects, error) { return l.Output(output(stages, e, p, k, rows)) })
		pa := path(stages, k)
		for d := stages - 1; d > 0; d-- {
			input := fmt.Sprint(pa[:d])
			if left[input]--; left[input] == 0 {
				made := s.children(e, p, pa[:d])
				out = append(out, func(l *ledger.Ledger) (ledger.Effects, error) { return l.InputDone(idOf(e, p, pa[:d]), made), nil })
			}
		}
	}
	return out
}

// children counts what is made of one input.
func (s stream) children(e, p int, input []uint32) int {
	seen := map[uint32]bool{}
	for k := range s.rows[e][p] {
		if pa := path(s.cfg.Stages, k); slices.Equal(pa[:len(input)], input) {
			seen[pa[len(input)]] = true
		}
	}
	return len(seen)
}

// play feeds all events in a random interleaving.
func play(t *rapid.T, l *ledger.Ledger, events [][]report, after func(ledger.Effects)) {
	for len(events) > 0 {
		i := rapid.IntRange(0, len(events)-1).Draw(t, "next")
		eff, err := events[i][0](l)
		if err != nil {
			t.Fatal(err)
		}
		after(eff)
		if events[i] = events[i][1:]; len(events[i]) == 0 {
			events = append(events[:i], events[i+1:]...)
		}
	}
}

type batch struct {
	Epoch            uint64
	Step, Row, Valid int64
}

// want is the reference: the stream cut by order.Batching, epoch by epoch.
func (s stream) want(from ledger.Position) []batch {
	var all []batch
	for e := int(from.Epoch); e < len(s.rows); e++ {
		b := order.Batching{GlobalBatch: s.cfg.GlobalBatch, Tail: s.cfg.Tail}
		if e == int(from.Epoch) {
			b.OriginStep, b.OriginRow = from.Step, from.Row
		}
		for step := b.OriginStep; step < b.NumSteps(s.total(e)); step++ {
			first, _, valid := b.Step(s.total(e), step)
			all = append(all, batch{Epoch: uint64(e), Step: step, Row: first, Valid: valid})
		}
	}
	return all
}

func TestSealedBatchesAreThoseOfTheStreamWhateverTheOrderOfReports(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawStream(t)
		l, err := ledger.New(s.cfg)
		if err != nil {
			t.Fatal(err)
		}
		perEpoch := map[uint64][]batch{}
		placed := map[lineage.ID]int64{}
		var ended []ledger.EpochEnd
		play(t, l, s.events(t, ledger.Position{}), func(eff ledger.Effects) {
			for _, p := range eff.Placed {
				if _, twice := placed[p.ID]; twice {
					t.Fatalf("partition %s was placed twice", p.ID)
				}
				placed[p.ID] = p.FirstRow
			}
			for _, b := range eff.Sealed {
				perEpoch[b.Begin.Epoch] = append(perEpoch[b.Begin.Epoch], batch{b.Begin.Epoch, b.Begin.Step, b.Begin.Row, b.Rows})
			}
			ended = append(ended, eff.Ended...)
		})
		var got []batch
		for e := range s.rows {
			got = append(got, perEpoch[uint64(e)]...)
		}
		if diff := cmp.Diff(s.want(ledger.Position{}), got); diff != "" {
			t.Fatalf("sealed batches (-want +got):\n%s", diff)
		}
		for e, partitions := range s.rows {
			row := int64(0)
			for p, outputs := range partitions {
				for k, rows := range outputs {
					if at, ok := placed[output(s.cfg.Stages, e, p, k, rows).ID]; !ok || at != row {
						t.Fatalf("output %d/%d/%d is at row %d (placed: %v), want %d", e, p, k, at, ok, row)
					}
					row += rows
				}
			}
		}
		if len(ended) != len(s.rows) {
			t.Fatalf("%d epochs ended, want %d", len(ended), len(s.rows))
		}
		for _, e := range ended {
			if e.Rows != s.total(int(e.Epoch)) {
				t.Errorf("epoch %d ended with %d rows, want %d", e.Epoch, e.Rows, s.total(int(e.Epoch)))
			}
		}
	})
}

func TestResumingAtAnyBatchContinuesTheSameStream(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawStream(t)
		first, err := ledger.New(s.cfg)
		if err != nil {
			t.Fatal(err)
		}
		var ends []ledger.Position
		play(t, first, s.events(t, ledger.Position{}), func(eff ledger.Effects) {
			for _, b := range eff.Sealed {
				ends = append(ends, b.End)
			}
		})
		if len(ends) == 0 {
			return
		}
		resumed := s
		resumed.cfg.Start = rapid.SampledFrom(ends).Draw(t, "resume at")
		resumed.cfg.GlobalBatch = rapid.Int64Range(1, 12).Draw(t, "new batch")
		l, err := ledger.New(resumed.cfg)
		if err != nil {
			t.Fatal(err)
		}
		perEpoch := map[uint64][]batch{}
		play(t, l, resumed.events(t, resumed.cfg.Start), func(eff ledger.Effects) {
			for _, b := range eff.Sealed {
				perEpoch[b.Begin.Epoch] = append(perEpoch[b.Begin.Epoch], batch{b.Begin.Epoch, b.Begin.Step, b.Begin.Row, b.Rows})
			}
		})
		var got []batch
		for e := range s.rows {
			got = append(got, perEpoch[uint64(e)]...)
		}
		if diff := cmp.Diff(resumed.want(resumed.cfg.Start), got); diff != "" {
			t.Fatalf("from %+v (-want +got):\n%s", resumed.cfg.Start, diff)
		}
	})
}

func TestConsumedFreesEveryOutputOnceAndNeverOneThatIsNeeded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawStream(t)
		l, err := ledger.New(s.cfg)
		if err != nil {
			t.Fatal(err)
		}
		lastRow := map[lineage.ID]int64{}
		freed := map[lineage.ID]bool{}
		sealed := map[batch]bool{}
		queue := s.want(ledger.Position{}) // ranks consume in stream order
		consume := func(number uint64, step, row int64) {
			b := order.Batching{GlobalBatch: s.cfg.GlobalBatch, Tail: s.cfg.Tail}
			if int(number) < len(s.rows) && step == b.NumSteps(s.total(int(number))) {
				row = s.total(int(number)) // rows that the tail drops go with the last batch
			}
			for _, o := range l.Consumed(number, step) {
				if freed[o.ID] {
					t.Fatalf("%s freed twice", o.ID)
				}
				freed[o.ID] = true
				if o.ID.Epoch > number || (o.ID.Epoch == number && lastRow[o.ID] > row) {
					t.Fatalf("%s freed with rows up to %d, but consumed is epoch %d row %d", o.ID, lastRow[o.ID], number, row)
				}
			}
		}
		play(t, l, s.events(t, ledger.Position{}), func(eff ledger.Effects) {
			for _, p := range eff.Placed {
				lastRow[p.ID] = p.FirstRow + p.Rows
			}
			for _, o := range eff.Freed {
				b := order.Batching{GlobalBatch: s.cfg.GlobalBatch, Tail: s.cfg.Tail}
				e := int(o.ID.Epoch)
				over := len(queue) == 0 || queue[0].Epoch > o.ID.Epoch
				if freed[o.ID] || !over || lastRow[o.ID] <= b.NumSteps(s.total(e))*s.cfg.GlobalBatch-s.cfg.GlobalBatch {
					t.Fatalf("%s (rows up to %d) was freed as it was placed", o.ID, lastRow[o.ID])
				}
				freed[o.ID] = true
			}
			for _, b := range eff.Sealed {
				sealed[batch{b.Begin.Epoch, b.Begin.Step, b.Begin.Row, b.Rows}] = true
			}
			if len(queue) > 0 && sealed[queue[0]] && rapid.Bool().Draw(t, "consume") {
				consume(queue[0].Epoch, queue[0].Step+1, queue[0].Row+queue[0].Valid)
				queue = queue[1:]
			}
		})
		for e := range s.rows {
			b := order.Batching{GlobalBatch: s.cfg.GlobalBatch, Tail: s.cfg.Tail}
			consume(uint64(e), b.NumSteps(s.total(e)), s.total(e))
		}
		consume(uint64(len(s.rows)), 0, 0)
		if len(freed) != len(lastRow) {
			t.Fatalf("%d of %d outputs were freed", len(freed), len(lastRow))
		}
		if n := l.HeldBytes(); n != 0 {
			t.Fatalf("%d bytes are still held", n)
		}
	})
}

func small(t *testing.T) *ledger.Ledger {
	t.Helper()
	l, err := ledger.New(ledger.Config{
		KeepsRows: true, GlobalBatch: 4, Tail: order.TailPad, Stages: 1, NumPartitions: 3, Samples: func(int64) int64 { return 4 },
	})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestAPartitionMadeAgainMustBeEqual(t *testing.T) {
	l := small(t)
	if _, err := l.Output(output(1, 0, 0, 0, 4)); err != nil {
		t.Fatal(err)
	}
	again := output(1, 0, 0, 0, 4)
	again.Attempt, again.Worker = 2, "w2"
	eff, err := l.Output(again)
	if err != nil {
		t.Fatal(err)
	}
	if len(eff.Placed) != 1 || eff.Placed[0].Worker != "w2" {
		t.Errorf("equal output was not placed at its new worker: %+v", eff)
	}
	again.Hash[3]++
	if _, err := l.Output(again); err == nil || !strings.Contains(err.Error(), "partition 0/0/0 made again differs") {
		t.Errorf("different bytes passed: %v", err)
	}
}

func TestRowsMustMatchWhatOperatorsPromise(t *testing.T) {
	l := small(t)
	if _, err := l.Output(output(1, 0, 1, 0, 3)); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Done(lineage.SourceID(0, 1), 1); err == nil || !strings.Contains(err.Error(), "4 samples but gave 3 rows") {
		t.Errorf("a lost row passed: %v", err)
	}
}

func TestAFailureComesOutAfterTheBatchesBeforeIt(t *testing.T) {
	l := small(t)
	broken := errors.New("truncated JPEG")
	if eff := l.Fail(lineage.SourceID(0, 1), broken); eff.Failed != nil {
		t.Fatal("failure came out before partition 0 was made")
	}
	eff, err := l.Output(output(1, 0, 0, 0, 4))
	if err != nil {
		t.Fatal(err)
	}
	done, err := l.Done(lineage.SourceID(0, 0), 1)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(len(eff.Sealed), done.Failed); got != "1 truncated JPEG" {
		t.Errorf("got %s, want one sealed batch, then the failure", got)
	}
}

func TestWhatNobodyNeedsIsIgnored(t *testing.T) {
	l := small(t)
	for _, id := range []lineage.ID{lineage.SourceID(0, 3), lineage.SourceID(1<<40, 0)} {
		child, err := id.Child(0)
		if err != nil {
			t.Fatal(err)
		}
		eff, err := l.Output(ledger.Output{ID: child, Rows: 1})
		if err != nil || len(eff.Placed) != 0 {
			t.Errorf("%s: %+v, %v", id, eff, err)
		}
	}
}
