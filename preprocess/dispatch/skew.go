package dispatch

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/millrace/millrace/preprocess/dispatch/ledger"
)

// skew keeps ranks from running away from the slowest one. A sidecar hands over what it was told to be sealed, so a batch
// that lies too far ahead is sealed in the ledger and not yet told.
type skew struct {
	withheld []ledger.Sealed
	steps    map[uint64]int64 // of epochs that have ended, where they are not known before
}

// maxSkew is how many global batches a rank may be ahead of the slowest: what it reads ahead.
func (s *spec) maxSkew() int64 {
	parts := max(1, s.asked.GetSettings().GetPrefetch())
	return (parts + s.accumulation - 1) / s.accumulation
}

// distance is how many global batches p lies after the mark of the slowest rank.
func (j *job) distance(p ledger.Position) int64 {
	from := j.mark(j.slowest())
	if p.Epoch < from.Epoch {
		return 0
	}
	sum := p.Step - from.Step
	for e := from.Epoch; e < p.Epoch; e++ {
		steps := j.batching(e).NumSteps(j.spec.rows())
		if steps < 0 {
			var ended bool
			if steps, ended = j.skew.steps[e]; !ended {
				return math.MaxInt64
			}
		}
		sum += steps
	}
	return sum
}

// mayTell says whether a sealed batch may be handed over. Where it is not known which batch is the last of an epoch, each
// goes out once the next one is told.
func (j *job) mayTell(b ledger.Sealed) bool {
	most := j.spec.maxSkew()
	if !j.spec.plan.KeepsRows {
		most++
	}
	return len(j.ranks) == 1 || j.distance(b.Begin) <= most
}

// withhold takes what has been sealed, which epochs do independently of each other, and gives what may be told now. What
// lies before a failure is told whatever the distance, so that ranks see the same batches on every run.
func (j *job) withhold(eff ledger.Effects) ledger.Effects {
	if j.skew.steps == nil {
		j.skew.steps = map[uint64]int64{}
	}
	for _, e := range eff.Ended {
		j.skew.steps[e.Epoch] = e.Steps
	}
	if len(eff.Sealed)+len(eff.Ended) == 0 && eff.Failed == nil {
		return eff
	}
	j.skew.withheld = append(j.skew.withheld, eff.Sealed...)
	eff.Sealed = j.release(eff.Failed != nil)
	return eff
}

// release gives what may be told, now that ranks have gone on.
func (j *job) release(all bool) []ledger.Sealed {
	var told, kept []ledger.Sealed
	for _, b := range j.skew.withheld {
		if all || j.mayTell(b) {
			told = append(told, b)
		} else {
			kept = append(kept, b)
		}
	}
	j.skew.withheld = kept
	return told
}

// tellReleased tells sidecars what they may hand over now.
func (j *job) tellReleased() {
	slowest := j.slowest().epoch
	maps.DeleteFunc(j.skew.steps, func(epoch uint64, _ int64) bool { return epoch < slowest })
	if released := j.release(false); len(released) > 0 {
		for _, s := range j.sidecars {
			j.tell(s, ledger.Effects{Sealed: released})
		}
	}
}

// live is what a sidecar that joins late must be told.
func (j *job) live() ledger.Effects {
	eff := j.ledger.Live()
	eff.Sealed = slices.DeleteFunc(eff.Sealed, func(b ledger.Sealed) bool { return slices.Contains(j.skew.withheld, b) })
	return eff
}

// skewCause says which ranks wait for slower ones, "" when none does.
func (j *job) skewCause() string {
	if len(j.skew.withheld) == 0 {
		return ""
	}
	slowest := j.mark(j.slowest())
	var ahead, behind []int
	for _, r := range j.ranks {
		switch n := j.distance(j.mark(r)); {
		case n > j.spec.maxSkew():
			ahead = append(ahead, r.index)
		case n == 0:
			behind = append(behind, r.index)
		}
	}
	if len(ahead) == 0 {
		return ""
	}
	return fmt.Sprintf("job %q: %s may be no more than %d global batches ahead; waiting for %s to go on from epoch %d, step %d",
		j.name, j.names(ahead), j.spec.maxSkew(), j.names(behind), slowest.Epoch, slowest.Step)
}
