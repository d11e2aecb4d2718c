package transport

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/millrace/millrace/bench/peers"
	"github.com/millrace/millrace/bench/proctree"
	"github.com/millrace/millrace/internal/sleep"
)

// RingResult is what it costs to hand a batch over; medians over the rounds.
type RingResult struct {
	Scenario string `json:"scenario"`
	// HandoverUS is how long next() takes a trainer whose batch is ready, the median, HandoverP99US the 99th percentile.
	HandoverUS    float64 `json:"handover_us"`
	HandoverP99US float64 `json:"handover_p99_us"`
	// SidecarCPUUS is the time on a core that handing a batch over costs the sidecar, and TrainerCPUUS the trainer.
	SidecarCPUUS float64 `json:"sidecar_cpu_us"`
	TrainerCPUUS float64 `json:"trainer_cpu_us"`
	// The same where the trainer sleeps between batches: with all wake-ups, and all that the sidecar does for a batch.
	PacedHandoverUS   float64 `json:"paced_handover_us"`
	PacedSidecarCPUUS float64 `json:"paced_sidecar_cpu_us"`
}

// CopyResult is how fast batches are put together and handed over; medians over the rounds.
type CopyResult struct {
	Scenario    string  `json:"scenario"`
	GBPerSecond float64 `json:"gb_per_s"`
	CPUPerGB    float64 `json:"cpu_s_per_gb"`
	// MemcpyGBPerSecond is how fast one core copies as much from one place to another.
	MemcpyGBPerSecond float64 `json:"memcpy_gb_per_s"`
	GarbageMB         float64 `json:"garbage_mb_per_batch"`
}

// VirtualResult sets the way from virtual workers to the trainer beside torch's DataLoader; medians over the rounds.
type VirtualResult struct {
	Scenario        string  `json:"scenario"`
	GBPerSecond     float64 `json:"gb_per_s"`
	CPUPerGB        float64 `json:"cpu_s_per_gb"`
	PeerGBPerSecond float64 `json:"peer_gb_per_s"`
	PeerCPUPerGB    float64 `json:"peer_cpu_s_per_gb"`
	// Peer is the fastest of the peer's settings.
	Peer string `json:"peer"`
	// Ratio is Millrace's throughput by the peer's.
	Ratio float64 `json:"ratio"`
	// NextP99MS is the 99th percentile of how long next() takes a trainer that has steps, when the batch is ready.
	NextP99MS float64 `json:"next_p99_ms"`
}

// trainerSettings are what a trainer's program is told.
type trainerSettings struct {
	Endpoint string  `json:"endpoint,omitempty"`
	Rows     int     `json:"rows"`
	Pause    float64 `json:"pause_s"`
	Touch    bool    `json:"touch"`
	// Burst is the batches of an epoch that is taken when all of it is ready.
	Burst int `json:"burst,omitempty"`
	// The rest is the peer's.
	How      string `json:"how,omitempty"`
	Workers  int    `json:"workers,omitempty"`
	Prefetch int    `json:"prefetch_factor,omitempty"`
	Sharing  string `json:"sharing,omitempty"`
}

// trainerUse is what a trainer and its sidecar used in a window.
type trainerUse struct{ trainer, sidecar used }

func (u trainerUse) sum() used {
	s := u.trainer
	s.CPU += u.sidecar.CPU
	s.Alloc += u.sidecar.Alloc
	return s
}

// trial is a trainer that has its first batch, and its sidecar; nil for a peer, who needs none.
type trial struct {
	trainer, sidecar *process
	stop             []func() error
}

// close stops everything, what was started last first.
func (t *trial) close() error {
	var err error
	for _, stop := range slices.Backward(t.stop) {
		err = errors.Join(err, stop())
	}
	return err
}

// beginTrial starts a trainer, and a sidecar for it where ours is set. The caller closes the trial even after an error.
func beginTrial(ctx context.Context, o Options, program string, ours bool, s trainerSettings) (t *trial, err error) {
	t = &trial{}
	dir, err := os.MkdirTemp("", "millrace-bench-")
	if err != nil {
		return t, fmt.Errorf("making a directory for sockets: %w", err)
	}
	t.stop = append(t.stop, func() error { return os.RemoveAll(dir) })
	if err := peers.Unpack(dir); err != nil {
		return t, err
	}
	if ours {
		steps, ahead := endlessSteps, sealedAhead
		if s.Burst > 0 {
			steps, ahead = s.Burst, s.Burst
		}
		inner, stop := context.WithCancel(ctx)
		wait, err := serveDispatcher(inner, dir, s.Rows, steps, ahead)
		if err != nil {
			stop()
			return t, err
		}
		t.stop = append(t.stop, func() error {
			stop()
			return wait()
		})
		if t.sidecar, err = startSide(ctx, o, "--kind", KindFeed, "--role", RoleServer, "--rows", strconv.Itoa(s.Rows), "--dir", dir); err != nil {
			return t, err
		}
		t.stop = append(t.stop, t.sidecar.stop)
		s.Endpoint = t.sidecar.ready.Address
	}
	text, err := json.Marshal(s)
	if err != nil {
		return t, fmt.Errorf("telling the trainer what to do: %w", err)
	}
	cmd := exec.CommandContext(ctx, o.Python, filepath.Join(dir, program), string(text)) //nolint:gosec // The user names the interpreter.
	cmd.Env = o.Env
	if t.trainer, err = start(cmd, o.Log); err == nil {
		t.stop = append(t.stop, t.trainer.stop)
	}
	return t, err
}

// trainerTurn measures one window of a Python trainer: of ours with a sidecar, else of the peer.
func trainerTurn(ctx context.Context, o Options, program string, ours bool, s trainerSettings) (u trainerUse, err error) {
	ctx, cancel := context.WithTimeout(ctx, o.WarmUp+o.Window+time.Minute)
	defer cancel()
	t, err := beginTrial(ctx, o, program, ours, s)
	defer func() { err = errors.Join(err, t.close()) }()
	if err != nil {
		return u, err
	}
	before, err := askTrainer(ctx, o.WarmUp, t.trainer, t.sidecar)
	if err != nil {
		return u, err
	}
	after, err := askTrainer(ctx, o.Window, t.trainer, t.sidecar)
	if err != nil {
		return u, err
	}
	return trainerUse{after.trainer.minus(before.trainer), after.sidecar.minus(before.sidecar)}, nil
}

// burstTurn lets a sidecar make a whole epoch ready, and then the trainer take it.
func burstTurn(ctx context.Context, o Options, s trainerSettings) (u trainerUse, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	t, err := beginTrial(ctx, o, peers.RingTrainer, true, s)
	defer func() { err = errors.Join(err, t.close()) }()
	if err != nil {
		return u, err
	}
	before, err := idle(ctx, t.sidecar)
	if err != nil {
		return u, err
	}
	if u.trainer, err = t.trainer.ask(); err != nil {
		return u, err
	}
	after, err := idle(ctx, t.sidecar)
	u.sidecar = after.minus(before)
	return u, err
}

const (
	// quietFor is how long a process does next to nothing before it counts as idle, and quietCPU what it may still use.
	quietFor = 100 * time.Millisecond
	quietCPU = time.Millisecond
)

// idle waits until a process has nothing to do.
func idle(ctx context.Context, p *process) (used, error) {
	var last used
	for {
		now, err := askOne(ctx, quietFor, p)
		if err != nil || now.CPU-last.CPU < quietCPU {
			return now, err
		}
		last = now
	}
}

// askTrainer asks after d what was used so far. The trainer's time on a core is that of all its processes.
func askTrainer(ctx context.Context, d time.Duration, trainer, sidecar *process) (u trainerUse, err error) {
	if u.trainer, err = askOne(ctx, d, trainer); err != nil {
		return u, err
	}
	tree, err := proctree.New("/proc").Tree(trainer.cmd.Process.Pid)
	if err != nil {
		return u, err
	}
	if len(tree) > 1 {
		u.trainer.CPU = proctree.CPU(tree)
	}
	if sidecar != nil {
		u.sidecar, err = sidecar.ask()
	}
	return u, err
}

// askOne asks after d.
func askOne(ctx context.Context, d time.Duration, p *process) (used, error) {
	if err := sleep.For(ctx, d); err != nil {
		return used{}, err
	}
	return p.ask()
}

const (
	// ringPause is the step of a trainer that sleeps between batches, in seconds.
	ringPause = 0.002
	// ringBurst is the batches that are ready when a trainer takes them as fast as it can.
	ringBurst = 1000
	// ringSent is how many of them may wait in the socket already: a socket has room for 212,992 bytes, and a message takes
	// 768 there. What they cost before the window is made up for by counting that many fewer.
	ringSent = 280
)

func runRing(ctx context.Context, s Scenario, o Options) (any, error) {
	var bursts, paced []trainerUse
	for round := range o.Rounds {
		a, err := burstTurn(ctx, o, trainerSettings{Rows: s.Rows, Burst: ringBurst})
		if err != nil {
			return nil, fmt.Errorf("measuring %s: %w", s.Name, err)
		}
		b, err := trainerTurn(ctx, o, peers.RingTrainer, true, trainerSettings{Rows: s.Rows, Pause: ringPause})
		if err != nil {
			return nil, fmt.Errorf("measuring %s: %w", s.Name, err)
		}
		bursts, paced = append(bursts, a), append(paced, b)
		if _, err := fmt.Fprintf(o.Log, "round %d  ready: next() %.1f us (p99 %.1f us), sidecar %.1f us of CPU, trainer %.1f; at steps of %.0f ms: next() %.1f us, sidecar %.1f us\n",
			round+1, us(a.trainer.NextMedian), us(a.trainer.NextP99), handingOverUS(a), a.trainerUS(), ringPause*1e3, us(b.trainer.NextMedian), b.sidecarUS()); err != nil {
			return nil, fmt.Errorf("writing the log: %w", err)
		}
	}
	median := func(u trainerUse) float64 { return us(u.trainer.NextMedian) }
	return RingResult{
		Scenario: s.Name, HandoverUS: middle(bursts, median),
		HandoverP99US: middle(bursts, func(u trainerUse) float64 { return us(u.trainer.NextP99) }),
		SidecarCPUUS:  middle(bursts, handingOverUS), TrainerCPUUS: middle(bursts, trainerUse.trainerUS),
		PacedHandoverUS: middle(paced, median), PacedSidecarCPUUS: middle(paced, trainerUse.sidecarUS),
	}, nil
}

// handingOverUS is what handing over one of the batches of a burst cost the sidecar at most.
func handingOverUS(u trainerUse) float64 {
	return us(u.sidecar.CPU) / float64(max(1, u.trainer.Batches-ringSent))
}

func us(d time.Duration) float64 { return float64(d) / 1e3 }

func (u trainerUse) sidecarUS() float64 { return us(u.sidecar.CPU) / float64(u.trainer.Batches) }
func (u trainerUse) trainerUS() float64 { return us(u.trainer.CPU) / float64(u.trainer.Batches) }

func runRingCopy(ctx context.Context, s Scenario, o Options) (any, error) {
	var turns []used
	var copies []float64
	for round := range o.Rounds {
		u, err := trainerTurn(ctx, o, peers.RingTrainer, true, trainerSettings{Rows: s.Rows})
		if err != nil {
			return nil, fmt.Errorf("measuring %s: %w", s.Name, err)
		}
		turns = append(turns, u.sum())
		copies = append(copies, memcpyGBPerSecond(s.Rows*imageBytes))
		if _, err := fmt.Fprintf(o.Log, "round %d  %.2f GB/s, %.3f CPU s/GB (%.3f in the trainer), memcpy %.2f GB/s\n",
			round+1, u.sum().speed(), u.sum().cpuPerGB(), u.trainer.cpuPerGB(), copies[round]); err != nil {
			return nil, fmt.Errorf("writing the log: %w", err)
		}
	}
	return CopyResult{
		Scenario: s.Name, GBPerSecond: middle(turns, used.speed), CPUPerGB: middle(turns, used.cpuPerGB), GarbageMB: middle(turns, used.garbageMB),
		MemcpyGBPerSecond: middle(copies, func(v float64) float64 { return v }),
	}, nil
}

// memcpyGBPerSecond copies n bytes between two places again and again, on one core, for a while.
func memcpyGBPerSecond(n int) float64 {
	from, to := make([]byte, n), make([]byte, n)
	for i := range from {
		from[i] = byte(i)
	}
	copy(to, from)
	copied, began := 0, time.Now()
	for time.Since(began) < 300*time.Millisecond {
		copied += copy(to, from)
	}
	return float64(copied) / 1e9 / time.Since(began).Seconds()
}

// peerTries is settings of the peer, of which the fastest is taken.
func peerTries(rows int) []trainerSettings {
	var all []trainerSettings
	for _, how := range []string{"rows", "clone", "shared"} {
		for _, workers := range []int{1, 2} {
			for _, sharing := range []string{"file_descriptor", "file_system"} {
				all = append(all, trainerSettings{Rows: rows, Touch: true, How: how, Workers: workers, Prefetch: 2, Sharing: sharing})
			}
		}
	}
	return all
}

// trainingStep is the step of a trainer that takes batches of 38 MB at well below what can be had, in seconds.
const trainingStep = 0.02

func runVirtual(ctx context.Context, s Scenario, o Options) (any, error) {
	short := o
	short.Window, short.WarmUp = min(o.Window, time.Second), min(o.WarmUp, time.Second/2)
	var best trainerSettings
	most := 0.0
	tries := peerTries(s.Rows)
	if s.Tries > 0 {
		tries = tries[:min(s.Tries, len(tries))]
	}
	for _, try := range tries {
		u, err := trainerTurn(ctx, short, peers.TorchTrainer, false, try)
		if err != nil {
			return nil, fmt.Errorf("measuring %s, peer: %w", s.Name, err)
		}
		if _, err := fmt.Fprintf(o.Log, "peer %-6s %d workers, %-15s %.2f GB/s\n", try.How, try.Workers, try.Sharing, u.trainer.speed()); err != nil {
			return nil, fmt.Errorf("writing the log: %w", err)
		}
		if u.trainer.speed() > most {
			best, most = try, u.trainer.speed()
		}
	}
	var ours, theirs, steps []used
	for round := range o.Rounds {
		a, err := trainerTurn(ctx, o, peers.RingTrainer, true, trainerSettings{Rows: s.Rows, Touch: true})
		if err != nil {
			return nil, fmt.Errorf("measuring %s: %w", s.Name, err)
		}
		c, err := trainerTurn(ctx, o, peers.RingTrainer, true, trainerSettings{Rows: s.Rows, Touch: true, Pause: trainingStep})
		if err != nil {
			return nil, fmt.Errorf("measuring %s: %w", s.Name, err)
		}
		steps = append(steps, c.trainer)
		b, err := trainerTurn(ctx, o, peers.TorchTrainer, false, best)
		if err != nil {
			return nil, fmt.Errorf("measuring %s, peer: %w", s.Name, err)
		}
		ours, theirs = append(ours, a.sum()), append(theirs, b.trainer)
		if _, err := fmt.Fprintf(o.Log, "round %d  %.2f GB/s, %.3f CPU s/GB; peer %.2f GB/s, %.3f CPU s/GB; at steps of %.0f ms next() p99 %.3f ms, %d of %d batches were ready\n",
			round+1, a.sum().speed(), a.sum().cpuPerGB(), b.trainer.speed(), b.trainer.cpuPerGB(),
			trainingStep*1e3, us(c.trainer.NextP99)/1e3, c.trainer.Ready, c.trainer.Batches); err != nil {
			return nil, fmt.Errorf("writing the log: %w", err)
		}
	}
	r := VirtualResult{
		Scenario: s.Name, GBPerSecond: middle(ours, used.speed), CPUPerGB: middle(ours, used.cpuPerGB),
		PeerGBPerSecond: middle(theirs, used.speed), PeerCPUPerGB: middle(theirs, used.cpuPerGB),
		Peer:      fmt.Sprintf("%s, %d workers, %s", best.How, best.Workers, best.Sharing),
		NextP99MS: middle(steps, func(u used) float64 { return us(u.NextP99) / 1e3 }),
	}
	r.Ratio = rounded(r.GBPerSecond / r.PeerGBPerSecond)
	return r, nil
}
