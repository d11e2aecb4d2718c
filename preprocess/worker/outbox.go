package worker

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"github.com/millrace/millrace/preprocess/exec/run"
	"github.com/millrace/millrace/preprocess/lineage"
	"github.com/millrace/millrace/preprocess/partition"
	workerv1 "github.com/millrace/millrace/proto/millrace/worker/v1"
)

// maxEvents bounds the events of one message, so that messages stay far below what gRPC accepts.
const maxEvents = 4096

// outbox gathers events for the dispatcher. Putting one never waits. It also keeps the account of all source partitions of
// which the worker makes or holds something, in the same breath: a dispatcher that is told of them when the worker
// registers misses no event, and hears none twice.
type outbox struct {
	mu     sync.Mutex
	events []*workerv1.Event
	wake   chan struct{} // holds a token while there may be events
	held   map[string]map[lineage.ID]*heldSource
}

// heldSource is the account of one source partition.
type heldSource struct {
	grant   run.Grant
	partial bool
	outputs map[lineage.ID]*workerv1.OutputReady
	freed   map[lineage.ID]bool
	inputs  []*workerv1.PartitionDone
	done    *workerv1.PartitionDone
}

func newOutbox() *outbox {
	return &outbox{wake: make(chan struct{}, 1), held: map[string]map[lineage.ID]*heldSource{}}
}

// granted begins the account of a source partition. partial says that it is made without some outputs.
func (o *outbox) granted(job string, id lineage.ID, grant run.Grant, partial bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.held[job] == nil {
		o.held[job] = map[lineage.ID]*heldSource{}
	}
	o.held[job][id] = &heldSource{grant: grant, partial: partial, outputs: map[lineage.ID]*workerv1.OutputReady{}, freed: map[lineage.ID]bool{}}
}

func (o *outbox) put(e *workerv1.Event) {
	o.mu.Lock()
	o.events = append(o.events, e)
	o.note(e)
	o.mu.Unlock()
	o.ring()
}

// note takes an event into the account. o.mu is held.
func (o *outbox) note(e *workerv1.Event) {
	var wire *workerv1.PartitionID
	switch {
	case e.GetOutput() != nil:
		wire = e.GetOutput().GetId()
	case e.GetDone() != nil:
		wire = e.GetDone().GetId()
	default:
		wire = e.GetFailed().GetId()
	}
	id, err := partition.IDFromWire(wire)
	if err != nil {
		return // not reached: it was made here
	}
	source := sourceOf(id)
	s := o.held[e.GetJob()][source]
	if s == nil || s.grant.Generation != e.GetGeneration() {
		return
	}
	switch {
	case e.GetOutput() != nil:
		s.outputs[id] = e.GetOutput()
	case e.GetFailed() != nil:
		delete(o.held[e.GetJob()], source)
	case id == source:
		s.done = e.GetDone()
		o.prune(e.GetJob(), source, s)
	default:
		s.inputs = append(s.inputs, e.GetDone())
	}
}

// prune ends the account of a source partition of which nothing is left. o.mu is held.
func (o *outbox) prune(job string, source lineage.ID, s *heldSource) {
	if s.done != nil && len(s.freed) == len(s.outputs) {
		delete(o.held[job], source)
	}
}

// freed notes outputs that are not held any more.
func (o *outbox) freed(job string, ids ...lineage.ID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, id := range ids {
		source := sourceOf(id)
		if s := o.held[job][source]; s != nil && s.outputs[id] != nil {
			s.freed[id] = true
			o.prune(job, source, s)
		}
	}
}

// forget ends the account of source partitions.
func (o *outbox) forget(job string, match func(lineage.ID, run.Grant) bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	maps.DeleteFunc(o.held[job], func(id lineage.ID, s *heldSource) bool { return match(id, s.grant) })
	if len(o.held[job]) == 0 {
		delete(o.held, job)
	}
}

// register is the account of all source partitions, for a dispatcher that begins to listen; events that were not sent yet
// are part of it.
func (o *outbox) register() []*workerv1.SourceHeld {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events = nil
	var out []*workerv1.SourceHeld
	for _, job := range slices.Sorted(maps.Keys(o.held)) {
		for _, id := range slices.SortedFunc(maps.Keys(o.held[job]), lineage.ID.Compare) {
			s := o.held[job][id]
			h := &workerv1.SourceHeld{
				Job: job, Generation: s.grant.Generation, Id: partition.IDToWire(id), Attempt: s.grant.Attempt, Partial: s.partial,
				Done: slices.Clone(s.inputs),
			}
			for _, output := range slices.SortedFunc(maps.Keys(s.outputs), lineage.ID.Compare) {
				h.Outputs = append(h.Outputs, s.outputs[output])
			}
			for _, output := range slices.SortedFunc(maps.Keys(s.freed), lineage.ID.Compare) {
				h.Freed = append(h.Freed, partition.IDToWire(output))
			}
			slices.SortStableFunc(h.GetDone(), func(a, b *workerv1.PartitionDone) int {
				return cmp.Compare(len(a.GetId().GetPath()), len(b.GetId().GetPath()))
			})
			if s.done != nil {
				h.Done = append(h.GetDone(), s.done)
			}
			out = append(out, h)
		}
	}
	return out
}

func sourceOf(id lineage.ID) lineage.ID { return lineage.SourceID(id.Epoch, id.Source) }

func (o *outbox) ring() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// take removes the oldest events, at most maxEvents of them.
func (o *outbox) take() []*workerv1.Event {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := min(maxEvents, len(o.events))
	out := o.events[:n:n]
	if n == len(o.events) {
		o.events = nil
		return out
	}
	o.events = o.events[n:]
	o.ring()
	return out
}
