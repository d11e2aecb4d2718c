package partition

import (
	"sync/atomic"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/millrace/millrace/preprocess/lineage"
)

// Partition is a finished partition: some rows, and who made them. It is immutable and counts its references; the
// last [Partition.Release] gives up its record batch.
type Partition struct {
	id      lineage.ID
	attempt uint32
	rec     arrow.RecordBatch
	bytes   int64
	hash    [16]byte

	replaced bool // guarded by the store

	refs atomic.Int64
	gone func() // called once, after the last release; set by the store before anyone else has a reference
}

// New makes a partition of rec, which it retains, and hashes it. The caller has one reference.
func New(id lineage.ID, attempt uint32, rec arrow.RecordBatch) *Partition {
	rec.Retain()
	p := &Partition{id: id, attempt: attempt, rec: rec, bytes: DataBytes(rec), hash: Hash(rec)}
	p.refs.Store(1)
	return p
}

// ID is the partition's name.
func (p *Partition) ID() lineage.ID { return p.id }

// Attempt is the attempt of the task that made it.
func (p *Partition) Attempt() uint32 { return p.attempt }

// Record is the rows, valid while the caller has a reference to p.
func (p *Partition) Record() arrow.RecordBatch { return p.rec }

// NumRows is the number of rows.
func (p *Partition) NumRows() int64 { return p.rec.NumRows() }

// Bytes is the size of the data, see [DataBytes].
func (p *Partition) Bytes() int64 { return p.bytes }

// Hash is the content hash, see [Hash].
func (p *Partition) Hash() [16]byte { return p.hash }

// Retain adds a reference. The caller has to have one already.
func (p *Partition) Retain() { p.refs.Add(1) }

// Release gives up a reference.
func (p *Partition) Release() {
	switch left := p.refs.Add(-1); {
	case left > 0:
	case left == 0:
		p.rec.Release()
		if p.gone != nil {
			p.gone()
		}
	default:
		panic("partition: " + p.id.String() + " was released more often than retained")
	}
}
