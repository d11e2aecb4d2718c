package scenario

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/millrace/millrace/bench/peers"
	"github.com/millrace/millrace/internal/errkind"
)

// Peers of the scenario e2e.
const (
	// PeerTorch is torch's DataLoader with Pillow's decoder and resize.
	PeerTorch = "torch"
	// PeerTorchTensor is torch's DataLoader with torchvision.io and transforms of tensors.
	PeerTorchTensor = "torch-tensor"
)

// What every batch is.
const (
	batchRows = 64
	imageSize = 224 // pixels
)

// peerPrefetch is the number of batches that each worker of the peer reads ahead: more than torch's 2, in its favour.
const peerPrefetch = 4

// minWarmBatches are taken before a window opens, however long that takes.
const minWarmBatches = 10

// E2E sets up the scenario e2e.
type E2E struct {
	// Source is what Millrace reads, and Data the same for the peer.
	Source []string
	Data   Data
	// Restarts says that Source is Data with restart markers.
	Restarts bool
	// Peer is PeerTorch or PeerTorchTensor.
	Peer string
	// Rounds is the number of turns of each side.
	Rounds int
	// Window is the least length of a measured window, WarmUp that of the time before it.
	Window, WarmUp time.Duration
	// Workers is the number of images decoded at a time: worker processes of the peer. Env tells Millrace the same.
	Workers int
	// Python is the interpreter of both sides and Env their environment.
	Python string
	Env    []string
	// Version is that of Millrace.
	Version string
	// Log gets a line for each turn.
	Log io.Writer
}

// Check says which setting makes no sense, before anything is measured.
func (c *E2E) Check() error {
	switch {
	case c.Peer != PeerTorch && c.Peer != PeerTorchTensor:
		return errkind.Errorf(errkind.Invalid, "unknown peer %q: it is %s or %s", c.Peer, PeerTorch, PeerTorchTensor)
	case c.Rounds < 1:
		return errkind.Errorf(errkind.Invalid, "%d rounds measure nothing: give 1 at least", c.Rounds)
	case c.Window < time.Second:
		return errkind.Errorf(errkind.Invalid, "a window of %v is too short: give 1 s at least", c.Window)
	case c.Workers < 1:
		return errkind.Errorf(errkind.Invalid, "%d workers decode nothing: give 1 at least", c.Workers)
	}
	return nil
}

// settings is what both programs are told, as JSON.
type settings struct {
	Source        []string `json:"source,omitempty"`
	Index         string   `json:"index,omitempty"`
	Decode        string   `json:"decode,omitempty"`
	Workers       int      `json:"workers,omitempty"`
	Prefetch      int      `json:"prefetch_factor,omitempty"`
	Batch         int      `json:"batch"`
	Size          int      `json:"size"`
	WarmBatches   int      `json:"warm_batches"`
	WarmSeconds   float64  `json:"warm_seconds"`
	WindowSeconds float64  `json:"window_seconds"`
}

// RunE2E measures Millrace and the peer in turns. Each turn is a process of its own, so that none profits from another.
func RunE2E(ctx context.Context, c E2E) (*Result, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	if n := len(c.Data.Samples); n < batchRows {
		return nil, errkind.Errorf(errkind.Invalid, "the data has %d images, less than one batch of %d", n, batchRows)
	}
	dir, err := os.MkdirTemp("", "millrace-bench-")
	if err != nil {
		return nil, fmt.Errorf("making a directory for the programs: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := peers.Unpack(dir); err != nil {
		return nil, err
	}
	index := filepath.Join(dir, "index.json")
	if err := c.Data.write(index); err != nil {
		return nil, err
	}
	versions, err := versionsOf(ctx, c.Python, c.Env, dir, "millrace", "numpy", "pyarrow", "torch", "torchvision", "PIL")
	if err != nil {
		return nil, err
	}
	both := settings{
		Batch: batchRows, Size: imageSize, WarmBatches: minWarmBatches,
		WarmSeconds: c.WarmUp.Seconds(), WindowSeconds: c.Window.Seconds(),
	}
	ours, theirs := both, both
	ours.Source = c.Source
	theirs.Index, theirs.Workers, theirs.Prefetch, theirs.Decode = index, c.Workers, peerPrefetch, "pil"
	if c.Peer == PeerTorchTensor {
		theirs.Decode = "tensor"
	}
	a, err := c.side("millrace", filepath.Join(dir, peers.Millrace), ours)
	if err != nil {
		return nil, err
	}
	b, err := c.side(c.Peer, filepath.Join(dir, peers.Torch), theirs)
	if err != nil {
		return nil, err
	}
	rounds, err := inTurns(ctx, c.Rounds, a, b, c.Log)
	if err != nil {
		return nil, err
	}
	return newResult(&c, versions, rounds), nil
}

func (c *E2E) side(name, program string, s settings) (side, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return side{}, fmt.Errorf("telling %s what to do: %w", name, err)
	}
	// A window and a warm-up that take far longer than asked for are no measurement but a failure.
	limit := 10*(c.Window+c.WarmUp) + 2*time.Minute
	return side{name: name, argv: []string{c.Python, program, string(text)}, env: c.Env, limit: limit}, nil
}

// inTurns lets both sides measure one window after the other, round by round.
func inTurns(ctx context.Context, rounds int, a, b side, log io.Writer) ([]Round, error) {
	all := make([]Round, 0, rounds)
	for i := range rounds {
		var r Round
		for _, t := range []struct {
			side side
			to   *Turn
		}{{a, &r.Ours}, {b, &r.Peer}} {
			turn, err := t.side.measure(ctx)
			if err != nil {
				return nil, err
			}
			*t.to = turn
			_, _ = fmt.Fprintf(log, "round %d/%d  %s\n", i+1, rounds, turn.line(t.side.name))
		}
		all = append(all, r)
	}
	return all, nil
}

// line is what a person wants to know of a turn.
func (t *Turn) line(name string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-12s  %7.1f images/s  %.3f CPU s/1,000  %5.1f MiB  first batch %.2f s",
		name, t.imagesPerSecond(), t.cpuPer1000(), t.peakMiB(), t.FirstBatchSeconds)
	if t.OtherCores > quiet {
		fmt.Fprintf(&b, "  (not quiet: others used %.2f cores)", t.OtherCores)
	}
	return b.String()
}
