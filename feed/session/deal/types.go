package deal

import (
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/order"
	"github.com/millrace/millrace/preprocess/lineage"
)

// maxPrefetch and maxAccumulation bound what one rank may ask for.
const (
	maxPrefetch     = 1024
	maxAccumulation = 1 << 16
	maxWorld        = 1 << 20
	maxSeats        = 1 << 22
)

// Config is how the stream of a job is dealt. It does not change during the life of a State.
type Config struct {
	// GlobalBatch is the rows of one optimizer step.
	GlobalBatch int64
	// World is the number of ranks, Accumulation the number of batches that each takes for one global batch.
	World, Accumulation int
	// Peers is how many processes, the seats of a rank, share the batches of each; 0 means 1. Seat rank*Peers+peer is that of
	// a rank's peer.
	Peers int
	// Tail is what becomes of the last rows of an epoch.
	Tail order.Tail
	// Rows of an epoch; -1 when they are known only at its end.
	Rows int64
	// Epochs in all; 0: without end.
	Epochs uint64
	// Prefetch is the number of batches made ready ahead for each rank, at least 1.
	Prefetch int
}

// Validate says what is wrong with c, as an error of kind Invalid.
func (c Config) Validate() error {
	switch {
	case c.World < 1 || c.World > maxWorld:
		return errkind.Errorf(errkind.Invalid, "world size is %d; it must be within 1 to %d", c.World, maxWorld)
	case c.Peers < 0 || c.NumSeats() > maxSeats:
		return errkind.Errorf(errkind.Invalid, "%d peers of each of %d ranks are %d processes; at most %d can be", c.Peers, c.World, c.NumSeats(), maxSeats)
	case c.Accumulation < 1 || c.Accumulation > maxAccumulation:
		return errkind.Errorf(errkind.Invalid, "accumulation is %d; it must be within 1 to %d", c.Accumulation, maxAccumulation)
	case c.Prefetch < 1 || c.Prefetch > maxPrefetch:
		return errkind.Errorf(errkind.Invalid, "prefetch is %d; it must be within 1 to %d", c.Prefetch, maxPrefetch)
	case c.Rows < -1:
		return errkind.Errorf(errkind.Invalid, "an epoch of %d rows; give -1 when they are not known", c.Rows)
	}
	b := c.batching(Position{})
	if err := b.Validate(); err != nil {
		return err
	}
	if c.GlobalBatch%(int64(c.World)*int64(c.Accumulation)) != 0 {
		return errkind.Errorf(errkind.Invalid, "global batch of %d rows cannot be cut into %d equal batches (%d ranks × %d accumulation)",
			c.GlobalBatch, int64(c.World)*int64(c.Accumulation), c.World, c.Accumulation)
	}
	if b.NumSteps(c.Rows) == 0 {
		return errkind.Errorf(errkind.Invalid, "an epoch of %d rows has no global batch of %d rows with tail %q; make the batch smaller or use tail \"pad\"",
			c.Rows, c.GlobalBatch, c.Tail)
	}
	return nil
}

// BatchRows is the rows of one batch of one rank.
func (c Config) BatchRows() int64 {
	return c.GlobalBatch / (int64(c.World) * int64(c.Accumulation))
}

// NumSeats is the number of seats of all ranks.
func (c Config) NumSeats() int { return c.World * c.peers() }

// RankOf is the rank of a seat, PeerOf which of its peers sits there.
func (c Config) RankOf(seat int) int { return seat / c.peers() }

// PeerOf is the number of a seat among those of its rank.
func (c Config) PeerOf(seat int) int { return seat % c.peers() }

func (c Config) peers() int { return max(1, c.Peers) }

// batching cuts global batches from the row of a position.
func (c Config) batching(at Position) order.Batching {
	return order.Batching{GlobalBatch: c.GlobalBatch, Tail: c.Tail, OriginStep: at.Step, OriginRow: at.Row}
}

// Position is a place in the stream from which global batches are cut.
type Position struct {
	// Epoch, from 0.
	Epoch uint64
	// Step is the number of the next global batch in its epoch, Row the stream row at which it begins.
	Step, Row int64
}

// Placement is the place of one partition in the stream, and where its bytes are.
type Placement struct {
	// ID names the partition; its Epoch is the epoch of FirstRow.
	ID lineage.ID
	// FirstRow is the stream row of its first row, NumRows their number, Bytes what its buffers take.
	FirstRow, NumRows, Bytes int64
	// Attempt made it, Worker holds it at the data service Address.
	Attempt         uint32
	Worker, Address string
}

func (p Placement) end() int64 { return p.FirstRow + p.NumRows }

// Slice is a run of rows of one partition that a batch needs.
type Slice struct {
	// Place is the partition.
	Place Placement
	// First is the first row within the partition, NumRows the number of rows.
	First, NumRows int64

	fetched bool
}

// streamRow is the stream row of the first row of s.
func (s *Slice) streamRow() int64 { return s.Place.FirstRow + s.First }

// Row is the stream row of the first row of s, by which slices of a batch are told apart.
func (s *Slice) Row() int64 { return s.streamRow() }

// Bytes is about what the rows of s take.
func (s *Slice) Bytes() int64 {
	if s.Place.NumRows == 0 {
		return 0
	}
	return int64(float64(s.Place.Bytes) * (float64(s.NumRows) / float64(s.Place.NumRows)))
}

// Piece is a run of rows of a batch: NumRows of slice Slice from its row First on.
type Piece struct {
	Slice          int
	First, NumRows int64
	// Valid is false for rows that only fill the batch.
	Valid bool
}

// Batch is one batch of one rank. Callers only read it.
type Batch struct {
	// Seat gets it, one of those of Rank.
	Seat, Rank int
	// Number counts the batches of the rank; the seats of a rank have the same numbers for the same batches.
	Number int64
	// Generation, Epoch, Step and Part say which one it is.
	Generation, Epoch uint64
	Step              int64
	Part              int
	// NextRow is the stream row of the global batch after that of this batch; 0 where Last is set, as that batch
	// begins an epoch.
	NextRow int64
	// NumRows is its rows, NumValid those that count.
	NumRows, NumValid int64
	// Last marks the last batch of its epoch, LastPart the last one of its global batch.
	Last, LastPart bool
	// Cursor goes on after this batch; empty unless LastPart.
	Cursor string
	// Slices are its sources, in no order; Pieces its rows, in order, known once all slices are placed.
	Slices []Slice
	Pieces []Piece

	segments  []order.Segment
	need      []interval // stream rows of no known partition yet
	unfetched int        // slices asked for that have not arrived
	spoiled   bool       // its data may have been changed
	state     batchState
}

// batchState is how far the data of a batch has come.
type batchState uint8

const (
	// stateIdle: no data is held or asked for.
	stateIdle batchState = iota
	// stateFetching: slices are fetched as they are placed.
	stateFetching
	// stateAssembling: all slices are there.
	stateAssembling
	// stateReady: it can be handed over once it is sealed.
	stateReady
)

// Action is one thing to be done.
type Action interface{ action() }

type (
	// Fetch asks for slice Slice of Batch. It may be asked again with another place, which voids the first asking.
	Fetch struct {
		Batch *Batch
		Slice int
	}
	// Assemble asks for a record batch of the pieces of Batch, whose slices are all there.
	Assemble struct{ Batch *Batch }
	// Drop says that nothing of Batch is needed any more: what is asked for, its slices, and its record batch.
	Drop struct{ Batch *Batch }
	// Seek is to be sent to the dispatcher.
	Seek struct {
		Seat     int
		Position Position
		// Generation in which the rank goes on there; 0: it waits to be granted the position. Cursor leads there, where
		// one is known.
		Generation uint64
		Cursor     string
	}
	// Reattach asks for a new stream to the dispatcher, and a Resync on it: a seat has come back to where it was in
	// the generation under way, and what was said of that has to be said again.
	Reattach struct{}
	// Mark is to be sent to the dispatcher: all steps of the epoch below Step are consumed.
	Mark struct {
		Seat              int
		Generation, Epoch uint64
		Step              int64
	}
)

func (Fetch) action()    {}
func (Assemble) action() {}
func (Drop) action()     {}
func (Seek) action()     {}
func (Reattach) action() {}
func (Mark) action()     {}
