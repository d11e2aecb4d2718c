// Package ledger keeps the account of a job's stream: which output partition holds which rows, which global
// batches are sealed, and which bytes everyone has consumed.
//
// It is pure: reports go in, [Effects] come out. Rows get their places in stream order whatever the order in
// which partitions are made. Where every sample keeps its row, a partition's place is known in advance and it is
// placed as soon as it is reported; otherwise it waits for the counts of what comes before. A global batch is
// sealed when every row up to its end is placed; a sealed batch never changes: an output that is reported
// again after its worker was lost must have the same rows and hash.
package ledger

import (
	"cmp"
	"math"
	"slices"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/order"
	"github.com/millrace/millrace/preprocess/lineage"
)

// Position is a place in the stream at which global batches begin to be cut.
type Position struct {
	Epoch uint64
	// Step is the number of the global batch that begins here, Row its first stream row.
	Step, Row int64
	// Partition and RowInPartition say where that row is made.
	Partition, RowInPartition int64
}

// Config fixes a ledger.
type Config struct {
	// KeepsRows says that every sample becomes one row.
	KeepsRows bool
	// Stages of the plan: the depth of a final output.
	Stages int
	// GlobalBatch and Tail say how the stream is cut.
	GlobalBatch int64
	Tail        order.Tail
	// NumPartitions is the number of source partitions of an epoch, Samples that of a source partition's samples.
	NumPartitions int64
	Samples       func(partition int64) int64
	// Start is where the stream begins.
	Start Position
	// MaxBad is how many bad samples may follow each other, MaxBadPerEpoch how many an epoch may have.
	MaxBad, MaxBadPerEpoch int64
}

// Bad is a sample that an operator can't process and that was skipped or replaced.
type Bad struct {
	// Index is its place among the samples of its source partition.
	Index int64
	// Sample is its number in the manifest, Text says in one line what it is and what is wrong with it.
	Sample uint64
	Text   string
}

// Output is one final output partition.
type Output struct {
	ID      lineage.ID
	Attempt uint32
	// Rows and Bytes of its buffers.
	Rows, Bytes int64
	Hash        [16]byte
	// Worker that holds it.
	Worker string
}

// Placement is an output with its place in the stream of its epoch.
type Placement struct {
	Output
	FirstRow int64
}

// Sealed is a global batch that will never change.
type Sealed struct {
	// Begin is its own position, End that of the batch after it.
	Begin, End Position
	// Rows is the number of stream rows in it, padding not counted.
	Rows int64
}

// EpochEnd closes an epoch.
type EpochEnd struct {
	Epoch uint64
	// Rows of the epoch, and its global batches counted from its beginning.
	Rows, Steps int64
}

// Effects are what a report changed, in stream order.
type Effects struct {
	Placed []Placement
	Sealed []Sealed
	Ended  []EpochEnd
	// Freed are outputs that nobody needs although they have just been placed: rows before the start of the stream, or
	// that the tail drops.
	Freed []Output
	// Bad are the bad samples of source partitions whose rows are now all placed, with those before them.
	Bad []Bad
	// Failed is set once everything before a source partition that cannot be made is sealed.
	Failed error
}

// maxEpochsAhead bounds what a report can make the ledger allocate.
const maxEpochsAhead = 1 << 10

// Ledger is the account. It is not safe for concurrent use.
type Ledger struct {
	cfg    Config
	epochs []*epoch // consecutive; the first is the oldest with rows that are not consumed
	sealed []Sealed // not yet consumed
}

type epoch struct {
	number   uint64
	batching order.Batching
	first    int64             // lowest source partition that is still kept
	sources  map[int64]*source // those with a report, first and above
	// next is the source partition after which no more rows are contiguous, nextBase the stream row at which it begins.
	next, nextBase int64
	nextStep       int64
	rows           int64 // -1 until known
	// bad counts the bad samples below next, badRun those that are the last ones below it.
	bad, badRun int64
	consumed    int64 // stream rows below it are consumed by every rank
	ended       bool
}

type source struct {
	base    int64     // stream row of its first row; -1 until known
	outputs []*Output // sorted
	placed  int       // outputs whose placement was handed out
	// next is the id that the next output has, as far as is known; inputs are the done inputs of later stages, with the
	// number of partitions made of each.
	next   lineage.ID
	inputs map[lineage.ID]int
	freed  int
	done   bool
	bad    []Bad // sorted, each once
	failed error
}

// New is an empty ledger.
func New(cfg Config) (*Ledger, error) {
	b := order.Batching{GlobalBatch: cfg.GlobalBatch, Tail: cfg.Tail}
	if err := b.Validate(); err != nil {
		return nil, err
	}
	s := cfg.Start
	if s.Step < 0 || s.Row < 0 || s.RowInPartition < 0 || s.RowInPartition > s.Row || s.Partition < 0 || s.Partition > cfg.NumPartitions {
		return nil, errkind.Errorf(errkind.Invalid, "position %+v is not within the stream", s)
	}
	return &Ledger{cfg: cfg}, nil
}

// epoch is the account of epoch number, opened if need be; nil when it is over or lies before the start.
func (l *Ledger) epoch(number uint64) *epoch {
	begin := l.cfg.Start.Epoch
	if len(l.epochs) > 0 {
		begin = l.epochs[0].number
	}
	if number < begin || number-begin > maxEpochsAhead {
		return nil
	}
	for uint64(len(l.epochs)) <= number-begin {
		l.epochs = append(l.epochs, l.openEpoch(begin+uint64(len(l.epochs))))
	}
	return l.epochs[number-begin]
}

func (l *Ledger) openEpoch(number uint64) *epoch {
	e := &epoch{
		number:   number,
		batching: order.Batching{GlobalBatch: l.cfg.GlobalBatch, Tail: l.cfg.Tail},
		sources:  map[int64]*source{},
		rows:     -1,
	}
	if s := l.cfg.Start; number == s.Epoch {
		e.batching.OriginStep, e.batching.OriginRow = s.Step, s.Row
		e.first, e.next, e.nextBase, e.nextStep = s.Partition, s.Partition, s.Row-s.RowInPartition, s.Step
		e.consumed = s.Row
	}
	if l.cfg.KeepsRows {
		e.rows = l.base(l.cfg.NumPartitions)
	}
	return e
}

// base is the stream row at which source partition p begins when samples keep their rows. All partitions but the
// last have the same number of samples.
func (l *Ledger) base(p int64) int64 {
	if p == 0 {
		return 0
	}
	return (p-1)*l.cfg.Samples(0) + l.cfg.Samples(p-1)
}

func (l *Ledger) source(e *epoch, p int64) *source {
	s := e.sources[p]
	if s == nil {
		s = &source{base: -1, next: l.firstOutput(e, p), inputs: map[lineage.ID]int{}}
		if l.cfg.KeepsRows {
			s.base = l.base(p)
		}
		if p == e.next {
			s.base = e.nextBase
		}
		e.sources[p] = s
	}
	return s
}

// firstOutput is the id of the first final output of a source partition.
func (l *Ledger) firstOutput(e *epoch, p int64) lineage.ID {
	id := lineage.SourceID(e.number, uint64(p)) //nolint:gosec // Never negative.
	id.Depth = uint8(l.cfg.Stages)              //nolint:gosec // At most lineage.MaxDepth.
	return id
}

// locate finds the account of a reported source partition; nil for one that nobody needs any more.
func (l *Ledger) locate(id lineage.ID) (*epoch, *source, int64) {
	p := int64(id.Source)                         //nolint:gosec // Bounded by the next line.
	if id.Source >= uint64(l.cfg.NumPartitions) { //nolint:gosec // Never negative.
		return nil, nil, 0
	}
	e := l.epoch(id.Epoch)
	if e == nil || p < e.first {
		return nil, nil, 0
	}
	return e, l.source(e, p), p
}

// Output records that an output partition is ready. Outputs of a source partition may come in any order while it is not
// done; one that was recorded before must be equal, and is placed anew at its present worker.
func (l *Ledger) Output(o Output) (Effects, error) {
	e, s, _ := l.locate(o.ID)
	if s == nil {
		return Effects{}, nil
	}
	i, known := slices.BinarySearchFunc(s.outputs, o.ID, func(have *Output, id lineage.ID) int { return have.ID.Compare(id) })
	if known {
		return l.again(s, i, o)
	}
	if i < s.placed || s.done {
		return Effects{}, errkind.Errorf(errkind.Internal,
			"partition %s (attempt %d on worker %s) was not there when its source partition was first made: an operator does not repeat itself", o.ID, o.Attempt, o.Worker)
	}
	s.outputs = slices.Insert(s.outputs, i, &o)
	var eff Effects
	l.place(e, s, &eff)
	return eff, nil
}

// again takes a second report of output i.
func (l *Ledger) again(s *source, i int, o Output) (Effects, error) {
	have := s.outputs[i]
	if have.Rows != o.Rows || have.Hash != o.Hash {
		return Effects{}, errkind.Errorf(errkind.Internal,
			"partition %s made again differs: attempt %d on worker %s gave %d rows, hash %x; attempt %d on worker %s gave %d rows, hash %x. An operator does not repeat itself, or the workers are of different builds",
			o.ID, have.Attempt, have.Worker, have.Rows, have.Hash[:6], o.Attempt, o.Worker, o.Rows, o.Hash[:6])
	}
	*have = o
	if i < s.freed || i >= s.placed {
		return Effects{}, nil
	}
	return Effects{Placed: []Placement{{Output: o, FirstRow: s.rowOf(i)}}}, nil
}

// Done records that a source partition has no more outputs than those that were reported.
func (l *Ledger) Done(id lineage.ID, outputs int) (Effects, error) {
	e, s, p := l.locate(id)
	if s == nil {
		return Effects{}, nil
	}
	if outputs != len(s.outputs) {
		return Effects{}, errkind.Errorf(errkind.Internal, "source partition %s reported %d outputs, then said that it has %d", id, len(s.outputs), outputs)
	}
	if l.cfg.KeepsRows && s.rows() != l.cfg.Samples(p) {
		return Effects{}, errkind.Errorf(errkind.Internal, "source partition %s has %d samples but gave %d rows, though its operators keep rows", id, l.cfg.Samples(p), s.rows())
	}
	s.done = true
	var eff Effects
	l.place(e, s, &eff)
	return eff, nil
}

// InputDone records that a stage after the first has made `outputs` partitions of one of its inputs: what follows in
// order belongs to the next input.
func (l *Ledger) InputDone(id lineage.ID, outputs int) Effects {
	e, s, _ := l.locate(id)
	var eff Effects
	if s != nil && outputs >= 0 {
		s.inputs[id] = outputs
		l.place(e, s, &eff)
	}
	return eff
}

// Bad records bad samples of a source partition; it comes before its Done. Those that are known already are left out.
func (l *Ledger) Bad(id lineage.ID, found []Bad) {
	_, s, _ := l.locate(id)
	if s == nil || s.done {
		return
	}
	for _, b := range found {
		i, known := slices.BinarySearchFunc(s.bad, b.Index, func(have Bad, index int64) int { return cmp.Compare(have.Index, index) })
		if !known {
			s.bad = slices.Insert(s.bad, i, b)
		}
	}
}

// Fail records that a source partition cannot be made. The error comes out when all that is before it is sealed, so
// that trainers see the same batches on every run.
func (l *Ledger) Fail(id lineage.ID, err error) Effects {
	e, s, _ := l.locate(id)
	if s == nil {
		return Effects{}
	}
	s.failed = err
	var eff Effects
	l.advance(e, &eff)
	return eff
}

// Consumed says that every rank has consumed the batches of an epoch below step. It returns the outputs that are
// no longer needed.
func (l *Ledger) Consumed(number uint64, step int64) []Output {
	var freed []Output
	for len(l.epochs) > 0 && l.epochs[0].number < number && l.epochs[0].ended {
		l.epochs[0].consumed = math.MaxInt64
		freed = l.epochs[0].freeConsumed(freed)
		l.cfg.Start = Position{Epoch: l.epochs[0].number + 1}
		l.epochs = l.epochs[1:]
	}
	if len(l.epochs) > 0 && l.epochs[0].number == number {
		e := l.epochs[0]
		row, rows, _ := e.batching.Step(e.rows, step)
		if rows == 0 && step > e.batching.OriginStep {
			row = math.MaxInt64 // the epoch is over, whatever the tail drops
		}
		e.consumed = max(e.consumed, row)
		freed = e.freeConsumed(freed)
	}
	l.sealed = slices.DeleteFunc(l.sealed, func(s Sealed) bool {
		return s.Begin.Epoch < number || (s.Begin.Epoch == number && s.Begin.Step < step)
	})
	return freed
}

// freeConsumed frees the placed outputs of e whose rows are all consumed.
func (e *epoch) freeConsumed(freed []Output) []Output {
	row := e.consumed
	for p := e.first; ; p++ {
		s := e.sources[p]
		if s == nil || s.base < 0 || s.base >= row {
			return freed
		}
		for s.freed < s.placed && s.rowOf(s.freed)+s.outputs[s.freed].Rows <= row {
			freed = append(freed, *s.outputs[s.freed])
			s.freed++
		}
		if !s.done || s.freed < len(s.outputs) || p >= e.next {
			return freed
		}
		delete(e.sources, p)
		e.first = p + 1
	}
}

func (s *source) rows() int64 {
	var n int64
	for _, o := range s.outputs {
		n += o.Rows
	}
	return n
}

// placedRows are the rows of outputs whose place is known.
func (s *source) placedRows() int64 { return s.rowOf(s.placed) - s.base }

func (s *source) rowOf(i int) int64 {
	row := s.base
	for _, o := range s.outputs[:i] {
		row += o.Rows
	}
	return row
}

func sortedKeys(m map[int64]*source) []int64 {
	keys := make([]int64, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
