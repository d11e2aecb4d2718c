package dispatch

import (
	"fmt"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/order"
	"github.com/millrace/millrace/preprocess/dispatch/ledger"
)

// cursor is the text that continues at p.
func (s *spec) cursor(job string, p ledger.Position) string {
	return order.Cursor{
		Job: job, Order: s.orderDigest, Pixels: s.pixelsDigest,
		Epoch: p.Epoch, Step: uint64(p.Step), Rows: uint64(p.Row), //nolint:gosec // Positions are never negative.
		Partition: uint64(p.Partition), RowInPartition: uint64(p.RowInPartition), //nolint:gosec // As above.
	}.String()
}

// position reads a cursor of this job's stream. One of another stream is an error that says what changed.
func (d *Dispatcher) position(s *spec, text string, continueOnMismatch bool) (ledger.Position, error) {
	if text == "" {
		return ledger.Position{}, nil
	}
	c, err := order.ParseCursor(text)
	if err != nil {
		return ledger.Position{}, fmt.Errorf("state: %w", err)
	}
	if c.Order != s.orderDigest || (c.Pixels != s.pixelsDigest && !continueOnMismatch) {
		return ledger.Position{}, d.mismatch(s, c)
	}
	const limit = 1 << 53
	if max(c.Step, c.Rows, c.Partition, c.RowInPartition) > limit {
		return ledger.Position{}, errkind.Errorf(errkind.Invalid, "state leads to step %d, row %d, which is not within the stream", c.Step, c.Rows)
	}
	p := ledger.Position{
		Epoch: c.Epoch, Step: int64(c.Step), Row: int64(c.Rows), //nolint:gosec // Checked above.
		Partition: int64(c.Partition), RowInPartition: int64(c.RowInPartition), //nolint:gosec // Checked above.
	}
	return s.normalize(p)
}

// mismatch explains why a cursor does not fit.
func (d *Dispatcher) mismatch(s *spec, c order.Cursor) error {
	part, hint := "recipe", `. Set on_mismatch="continue" to go on at the same position`
	had, have := c.Pixels, s.pixelsDigest
	if c.Order != s.orderDigest {
		part, hint = "order", "; its position has no meaning here. Start anew, or give the settings it was saved with"
		had, have = c.Order, s.orderDigest
	}
	what := ""
	if f := d.factsFor(c.Order, c.Pixels); f != nil {
		what = ": " + f.difference(s.facts)
	}
	return errkind.Errorf(errkind.Conflict, "state is of %s %s; this %s is %s%s%s", part, short(had), part, short(have), what, hint)
}

func short(d order.Digest) string { return d.String()[:8] + "…" }

// normalize moves a position at the end of an epoch to the beginning of the next.
func (s *spec) normalize(p ledger.Position) (ledger.Position, error) {
	n := s.numPartitions()
	if p.Partition > n || p.Row < p.RowInPartition {
		return p, errkind.Errorf(errkind.Invalid, "state leads to source partition %d of %d, which is not within the stream", p.Partition, n)
	}
	atEnd := p.Partition == n
	if s.plan.KeepsRows {
		b := order.Batching{GlobalBatch: s.globalBatch, Tail: s.tail, OriginStep: p.Step, OriginRow: p.Row}
		_, rows, _ := b.Step(s.rows(), p.Step)
		atEnd = rows == 0
	}
	if atEnd {
		p = ledger.Position{Epoch: p.Epoch + 1}
	}
	if s.epochs > 0 && p.Epoch >= s.epochs {
		return p, errkind.Errorf(errkind.Conflict, "the job has %d epochs and all are over; raise epochs to go on", s.epochs)
	}
	return p, nil
}

func (s *spec) numPartitions() int64 {
	k := s.layout.PartitionSamples
	return (s.layout.NumSamples + k - 1) / k
}

// samples is the number of samples of source partition p.
func (s *spec) samples(p int64) int64 {
	k := s.layout.PartitionSamples
	return min(k, s.layout.NumSamples-p*k)
}

// digestOf reads 16 bytes.
func digestOf(b []byte, what string) ([16]byte, error) {
	if len(b) != 16 {
		return [16]byte{}, errkind.With(errkind.Invalid, fmt.Errorf("%s has %d bytes, not 16", what, len(b)))
	}
	return [16]byte(b), nil
}
