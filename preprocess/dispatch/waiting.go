package dispatch

import (
	"fmt"
	"time"

	"github.com/millrace/millrace/preprocess/lineage"
	feedv1 "github.com/millrace/millrace/proto/millrace/feed/v1"
)

// waitingAfter is how long a cause must last before sidecars hear of it.
const waitingAfter = 2 * time.Second

// waiting is what everyone waits for, and since when.
type waiting struct {
	cause string // identifies the wait; a new one starts the clock anew
	since time.Duration
	told  string
}

// cause says in one line who waits for what, "" when nobody waits.
func (j *job) cause() string {
	if j.failed != nil {
		return ""
	}
	var asking, missing, elsewhere []int
	for _, r := range j.ranks {
		switch {
		case r.want != nil:
			asking = append(asking, r.index)
		case !r.joined:
			missing = append(missing, r.index)
		default:
			elsewhere = append(elsewhere, r.index)
		}
	}
	if len(asking) > 0 {
		p := j.ranks[asking[0]].want
		if len(missing) > 0 {
			return fmt.Sprintf("%s of job %q: waiting for %s of %d to join", j.names(asking), j.name, j.names(missing), len(j.ranks))
		}
		return fmt.Sprintf("%s of job %q: waiting for %s to ask for epoch %d, step %d too", j.names(asking), j.name, j.names(elsewhere), p.Epoch, p.Step)
	}
	if j.core == nil || !j.hasStreams() {
		return ""
	}
	return j.partitionCause()
}

// partitionCause says what keeps the next source partition.
func (j *job) partitionCause() string {
	id := j.ledger.Awaited()
	if j.spec.epochs > 0 && id.Epoch >= j.spec.epochs {
		return ""
	}
	t, running := j.tasks[lineage.SourceID(id.Epoch, id.Source)]
	switch {
	case running:
		address := ""
		if w := j.d.workers[t.worker]; w != nil {
			address = " (" + w.address + ")"
		}
		return fmt.Sprintf("job %q: partition %s is being made by worker %s%s, attempt %d", j.name, id, t.worker, address, t.attempt)
	case len(j.members) == 0 && j.d.checkOffers(j.spec) != nil:
		return fmt.Sprintf("job %q: partition %s waits for a worker that can run it; %v", j.name, id, j.d.checkOffers(j.spec))
	case len(j.members) == 0:
		return fmt.Sprintf("job %q: partition %s waits for a worker; none is connected", j.name, id)
	}
	return fmt.Sprintf("job %q: partition %s waits for room on a worker", j.name, id)
}

// updateWaiting tells the sidecars when a wait has lasted, and when it is over.
func (j *job) updateWaiting(now time.Duration) {
	cause := j.cause()
	if cause != j.waiting.cause {
		j.waiting.cause, j.waiting.since = cause, now
	}
	text := ""
	if lasted := now - j.waiting.since; cause != "" && lasted >= waitingAfter {
		text = fmt.Sprintf("%s (for %d s)", cause, int(lasted.Seconds()))
	}
	if text == j.waiting.told {
		return
	}
	j.waiting.told = text
	for _, s := range j.sidecars {
		s.out.put(&feedv1.AttachResponse{Message: &feedv1.AttachResponse_Waiting{Waiting: &feedv1.Waiting{Text: text}}})
	}
}
