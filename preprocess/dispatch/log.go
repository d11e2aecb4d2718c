package dispatch

import (
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/sleep"
	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/preprocess/dispatch/journal"
	"github.com/millrace/millrace/preprocess/dispatch/journal/keep"
	"github.com/millrace/millrace/preprocess/dispatch/ledger"
	feedv1 "github.com/millrace/millrace/proto/millrace/feed/v1"
)

const (
	// settleTime is how long a dispatcher that takes up a log waits for the workers of the one before: what they still
	// hold need not be made again.
	settleTime = time.Second
	// markEvery is the pace at which the progress of jobs is logged.
	markEvery = time.Second
	// logPause is the pause after a write that failed.
	logPause = 100 * time.Millisecond
	// attemptsPerTerm is how many attempts a task may have under one dispatcher, as far as numbers go.
	attemptsPerTerm = 1 << 12
)

// logbook writes records to the log, in order, in the background.
type logbook struct {
	log *keep.Log

	mu      sync.Mutex
	pending []journal.Record
	waiting []chan struct{} // closed when all that is pending is durable
	wake    chan struct{}
	ended   chan struct{} // closed when nothing is written any more
}

func newLogbook(log *keep.Log) *logbook {
	return &logbook{log: log, wake: make(chan struct{}, 1), ended: make(chan struct{})}
}

// put queues records; done, if it is not nil, is closed once they are durable.
func (b *logbook) put(done chan struct{}, records ...journal.Record) {
	if b == nil {
		if done != nil {
			close(done)
		}
		return
	}
	b.mu.Lock()
	b.pending = append(b.pending, records...)
	if done != nil {
		b.waiting = append(b.waiting, done)
	}
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// run writes what is queued, and signs of life in between, until ctx ends or another dispatcher leads: that is an error
// of kind Conflict.
func (b *logbook) run(ctx context.Context, beat time.Duration, onError func(error)) error {
	defer close(b.ended)
	timer := time.NewTimer(beat)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-b.wake:
		case <-timer.C:
		}
		b.mu.Lock()
		records, waiting := b.pending, b.waiting
		b.pending, b.waiting = nil, nil
		b.mu.Unlock()
		for {
			err := b.log.Append(ctx, records...)
			if err == nil {
				break
			}
			if errkind.Of(err) == errkind.Conflict {
				return err
			}
			if ctx.Err() != nil {
				return nil
			}
			onError(err)
			if sleep.For(ctx, logPause) != nil {
				return nil
			}
		}
		for _, done := range waiting {
			close(done)
		}
		timer.Reset(beat)
	}
}

// record is j for the log.
func (j *job) record() (journal.Record, error) {
	open, err := proto.Marshal(j.spec.asked)
	if err != nil {
		return journal.Record{}, fmt.Errorf("job %s: %w", j.name, err)
	}
	out := &journal.Job{
		Open: open, Manifest: hex.EncodeToString(j.spec.manifestID[:]), Order: j.spec.orderDigest.String(), Pixels: j.spec.pixelsDigest.String(),
		Fingerprint: j.fingerprint, Generation: j.generation, Start: toJournal(j.start),
	}
	for _, r := range j.ranks {
		out.Ranks = append(out.Ranks, journal.Rank{Joined: r.joined, Attempt: r.attempt})
	}
	slowest := j.slowest()
	out.Mark = journal.Position{Epoch: slowest.epoch, Step: slowest.step}
	return journal.Record{Job: &journal.Named{Name: j.name, Job: out}}, nil
}

func toJournal(p ledger.Position) journal.Position { return journal.Position(p) }

// note logs j as it now is; done may be nil.
func (j *job) note(done chan struct{}) {
	if j.d.book == nil {
		j.d.book.put(done)
		return
	}
	r, err := j.record()
	if err != nil {
		j.d.cfg.Logger.Error("a job can't be logged", "error", err)
		j.d.book.put(done)
		return
	}
	j.d.book.put(done, r)
}

// noteWorkers logs which workers there are.
func (d *Dispatcher) noteWorkers() {
	if d.book != nil && !d.settling {
		d.book.put(nil, journal.Record{Workers: &journal.Workers{Names: slices.Sorted(maps.Keys(d.workers))}})
	}
}

// noteMarks logs how far jobs have come.
func (d *Dispatcher) noteMarks(now time.Duration) {
	if d.book == nil || now < d.nextMarks {
		return
	}
	d.nextMarks = now + markEvery
	for _, j := range d.sortedJobs() {
		slowest := j.slowest()
		if at := (journal.Position{Epoch: slowest.epoch, Step: slowest.step}); at != j.marked {
			j.marked = at
			d.book.put(nil, journal.Record{Mark: &journal.Mark{Job: j.name, At: at}})
		}
	}
}

// keepManifest stores the manifest of a job beside the log, so that a dispatcher elsewhere has the same.
func (d *Dispatcher) keepManifest(ctx context.Context, s *spec) error {
	if d.cfg.Log == nil {
		return nil
	}
	return d.cfg.Log.PutManifest(ctx, hex.EncodeToString(s.manifestID[:]), s.manifest.Encode())
}

// Restore takes up the jobs of the log, before the dispatcher serves. A job that can't be taken up is logged as such and
// left out: its trainers open it again with their state.
func (d *Dispatcher) Restore(ctx context.Context) error {
	if d.cfg.Log == nil {
		return nil
	}
	state := d.cfg.Log.State()
	for _, name := range slices.Sorted(maps.Keys(state.Jobs)) {
		if err := d.restore(ctx, name, state.Jobs[name]); err != nil {
			if ctx.Err() != nil {
				return err
			}
			d.cfg.Logger.Error("a job of the log can't be taken up", "job", name, "error", err)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.jobs) > 0 {
		d.settling, d.settled = true, d.now()+settleTime
		d.missing = map[string]bool{}
		for _, name := range state.Workers {
			d.missing[name] = true
		}
	}
	d.cfg.Logger.Info("log taken up", "term", d.term, "jobs", len(d.jobs), "workers", len(state.Workers))
	return nil
}

func (d *Dispatcher) restore(ctx context.Context, name string, logged *journal.Job) error {
	data, err := d.cfg.Log.Manifest(ctx, logged.Manifest)
	if err != nil {
		return err
	}
	manifest, err := dataset.DecodeManifest(data)
	if err != nil {
		return err
	}
	if id := manifest.ID(); hex.EncodeToString(id[:]) != logged.Manifest {
		return errkind.Errorf(errkind.BadData, "manifest %x is kept under the id %s", id, logged.Manifest)
	}
	req := &feedv1.OpenJobRequest{}
	if err := proto.Unmarshal(logged.Open, req); err != nil {
		return errkind.With(errkind.BadData, fmt.Errorf("the request that opened it: %w", err))
	}
	s, err := d.specOver(ctx, req, manifest)
	if err != nil {
		return err
	}
	if s.orderDigest.String() != logged.Order || s.pixelsDigest.String() != logged.Pixels {
		return errkind.Errorf(errkind.Conflict, "this version makes another stream of its recipe (order %s, pixels %s; it was %s, %s)",
			s.orderDigest, s.pixelsDigest, logged.Order, logged.Pixels)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	j := d.newJob(name, s)
	j.generation, j.start, j.fingerprint, j.marked = logged.Generation, ledger.Position(logged.Start), logged.Fingerprint, logged.Mark
	for i, r := range logged.Ranks {
		if i < len(j.ranks) {
			j.ranks[i].joined, j.ranks[i].attempt = r.Joined, r.Attempt
			j.ranks[i].epoch, j.ranks[i].step = logged.Mark.Epoch, logged.Mark.Step
		}
	}
	d.jobs[name] = j
	d.manifests[s.manifestID] = s.manifest
	return nil
}

// settle ends the wait for the workers of the dispatcher before, when all have come back or the time is over.
func (d *Dispatcher) settle(now time.Duration) {
	if !d.settling || (len(d.missing) > 0 && now < d.settled) {
		return
	}
	d.settling = false
	if len(d.missing) > 0 {
		d.cfg.Logger.Warn("workers have not come back; what they held is made again", "workers", slices.Sorted(maps.Keys(d.missing)))
	}
	d.missing = nil
	d.noteWorkers()
	for _, j := range d.sortedJobs() {
		j.decide()
	}
}

// fenced ends the dispatcher: another one with a higher term leads.
func (d *Dispatcher) fenced(err error) {
	if d.fence == nil {
		d.fence = err
		close(d.fencing)
	}
}
