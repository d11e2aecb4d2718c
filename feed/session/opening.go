package session

import (
	"github.com/apache/arrow-go/v18/arrow"

	"github.com/millrace/millrace/feed/session/deal"
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/order"
)

// OpenRequest joins a job for one rank, or one of the processes that share its batches.
type OpenRequest struct {
	// Job is its name, Recipe the text of its recipe.
	Job    string
	Recipe []byte
	// Settings say how the stream is dealt.
	Settings Settings
	// Rank, from 0, of WorldSize.
	Rank, WorldSize int
	// Peer, from 0, of the Peers processes that share the batches of each rank; 0 Peers means 1.
	Peer, Peers int
	// Cursor to start from; empty: the beginning.
	Cursor string
	// ContinueOnMismatch accepts a cursor whose pixels digest differs.
	ContinueOnMismatch bool
	// Attempt is the restart count of the run.
	Attempt uint64
}

// Settings are the same on all ranks of a job.
type Settings struct {
	Seed         uint64
	Shuffle      string
	GlobalBatch  int64
	Accumulation int
	Tail         string
	OnError      string
	// MaxBad and MaxBadFraction limit what OnError puts up with; 0: the dispatcher's defaults.
	MaxBad         int64
	MaxBadFraction float64
	Prefetch       int
	Epochs         uint64
}

// maxJobName, maxRecipe and maxCursor bound what is passed on to the dispatcher.
const (
	maxJobName = 200
	maxRecipe  = 1 << 20
	maxCursor  = 16 << 10
)

func (r *OpenRequest) validate() error {
	switch {
	case r.Job == "" || len(r.Job) > maxJobName:
		return errkind.Errorf(errkind.Invalid, "a job needs a name of 1 to %d bytes, not %d", maxJobName, len(r.Job))
	case len(r.Recipe) == 0:
		return errkind.Errorf(errkind.Invalid, "job %q has no recipe", r.Job)
	case len(r.Recipe) > maxRecipe:
		return errkind.Errorf(errkind.Exhausted, "the recipe of job %q has %d bytes; at most %d are accepted", r.Job, len(r.Recipe), maxRecipe)
	case len(r.Cursor) > maxCursor:
		return errkind.Errorf(errkind.Invalid, "a state of %d bytes is none that Millrace wrote", len(r.Cursor))
	case r.Rank < 0 || r.Rank >= r.WorldSize:
		return errkind.Errorf(errkind.Invalid, "rank %d of %d: ranks count from 0 to %d", r.Rank, r.WorldSize, r.WorldSize-1)
	}
	cfg, err := r.dealing(-1)
	switch {
	case err != nil:
		return err
	case r.Peers < 0 || r.Peer < 0 || r.Peer >= cfg.Peers:
		return errkind.Errorf(errkind.Invalid, "peer %d of %d: peers count from 0 to %d", r.Peer, cfg.Peers, cfg.Peers-1)
	}
	return nil
}

// seat is the place of the process among all of the job.
func (r *OpenRequest) seat() int { return r.Rank*max(1, r.Peers) + r.Peer }

// dealing is how the stream of the job is dealt, an epoch having so many rows.
func (r *OpenRequest) dealing(rows int64) (deal.Config, error) {
	tail, err := order.ParseTail(r.Settings.Tail)
	if err != nil {
		return deal.Config{}, err
	}
	cfg := deal.Config{
		GlobalBatch: r.Settings.GlobalBatch, World: r.WorldSize, Accumulation: r.Settings.Accumulation, Peers: max(1, r.Peers), Tail: tail,
		Rows: rows, Epochs: r.Settings.Epochs, Prefetch: r.Settings.Prefetch,
	}
	return cfg, cfg.Validate()
}

// Opened describes a session and its job.
type Opened struct {
	// Session is its name.
	Session string
	// Job describes the job.
	Job Description
	// Start is where the cursor leads.
	Start deal.Position
}

// Description is what there is to know of a job.
type Description struct {
	// Name of the job.
	Name string
	// Rows and Steps of an epoch; -1 where the recipe may drop or add rows. Samples of the manifest.
	Rows, Steps, Samples int64
	// Dealing says how the stream is dealt.
	Dealing deal.Config
	// OrderDigest, PixelsDigest and Manifest are 16 bytes each.
	OrderDigest, PixelsDigest, Manifest []byte
	// Outputs are the columns of the recipe's output, Schema those of batches.
	Outputs []arrow.Field
	Schema  *arrow.Schema
}
