package dispatch

import (
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/order"
	"github.com/millrace/millrace/preprocess/dispatch/ledger"
)

// seek takes a rank's request for a position. A rank that comes back to where it was, or to where a slower rank is, joins
// the running generation again: everything from there on is still held. Otherwise a new one begins once all ranks have
// asked for the same.
func (j *job) seek(r *rank, s *sidecar, p ledger.Position, generation uint64) {
	r.sidecar, r.wantGeneration = s, generation
	if j.core == nil && generation > s.generation {
		s.generation = generation
	}
	if j.core != nil && j.failed == nil && j.within(r, p) && j.stillThere(p) {
		r.want, r.epoch, r.step = nil, p.Epoch, p.Step
		j.tellStarted(s)
		return
	}
	r.want = &p
	j.tryBegin()
}

// within says whether p lies between the mark of the slowest rank and that of r.
func (j *job) within(r *rank, p ledger.Position) bool {
	before := func(a, b ledger.Position) bool {
		return a.Epoch < b.Epoch || (a.Epoch == b.Epoch && a.Step < b.Step)
	}
	return !before(p, j.mark(j.slowest())) && !before(j.mark(r), p)
}

// mark is where a rank goes on: the end of an epoch is the beginning of the next.
func (j *job) mark(r *rank) ledger.Position {
	if steps := j.batching(r.epoch).NumSteps(j.spec.rows()); steps >= 0 && r.step >= steps {
		return ledger.Position{Epoch: r.epoch + 1}
	}
	return ledger.Position{Epoch: r.epoch, Step: r.step}
}

// batching cuts an epoch of the running generation.
func (j *job) batching(epoch uint64) order.Batching {
	b := order.Batching{GlobalBatch: j.spec.globalBatch, Tail: j.spec.tail}
	if epoch == j.start.Epoch {
		b.OriginStep, b.OriginRow = j.start.Step, j.start.Row
	}
	return b
}

// stillThere says whether a position lies in the running generation, cut as it is.
func (j *job) stillThere(p ledger.Position) bool {
	first, _, _ := j.batching(p.Epoch).Step(-1, p.Step)
	return first == p.Row || p == j.start
}

// tryBegin starts a generation when all ranks want the same position.
func (j *job) tryBegin() {
	for _, r := range j.ranks {
		if r.want == nil {
			return
		}
	}
	if generation := j.resumable(); j.core == nil && generation > 0 {
		if err := j.resume(generation); err != nil {
			j.fail(err)
		}
		return
	}
	first := *j.ranks[0].want
	for _, r := range j.ranks {
		if *r.want != first {
			j.refuseWants()
			return
		}
	}
	if err := j.begin(first); err != nil {
		j.fail(err)
	}
}

// refuseWants tells all ranks that they do not agree on a position.
func (j *job) refuseWants() {
	groups, texts := map[ledger.Position][]int{}, []string{}
	for _, r := range j.ranks {
		groups[*r.want] = append(groups[*r.want], r.index)
		r.want = nil
	}
	for p, ranks := range groups {
		texts = append(texts, fmt.Sprintf("%s: epoch %d, step %d", j.names(ranks), p.Epoch, p.Step))
	}
	slices.Sort(texts)
	err := errkind.Errorf(errkind.Conflict, "ranks of job %q ask for different positions (%s). Load the same state on all ranks, and let set_epoch agree",
		j.name, strings.Join(texts, "; "))
	for _, s := range j.sidecars {
		s.out.put(failedMessage(err, nil))
	}
}
