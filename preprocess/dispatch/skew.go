package dispatch

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/millrace/millrace/preprocess/dispatch/ledger"
)

// skew keeps ranks from running away from the slowest one. A sidecar hands over what it was told to be sealed, so a batch
// that lies too far ahead is sealed in the ledger and not yet told.
type skew struct {
	withheld []ledger.Sealed // the last sealed batches, in order
}

// maxSkew is how many global batches a rank may be ahead of the slowest: what it reads ahead.
func (s *spec) maxSkew() int {
	parts := max(1, s.asked.GetSettings().GetPrefetch())
	return int(min(1<<20, (parts+s.accumulation-1)/s.accumulation))
}

// bounded says whether there is anybody to be ahead of.
func (j *job) bounded() bool { return len(j.ranks) > 1 }

// withhold takes what has been sealed and gives what may be told now.
func (j *job) withhold(eff ledger.Effects) ledger.Effects {
	j.skew.withheld = append(j.skew.withheld, eff.Sealed...)
	eff.Sealed = j.release(eff.Failed != nil)
	return eff
}

// release gives what may be told, now that ranks have gone on. What lies before a failure is told whatever the distance, so
// that ranks see the same batches on every run.
func (j *job) release(all bool) []ledger.Sealed {
	live := j.ledger.NumSealed()
	held := j.skew.withheld
	held = held[max(0, len(held)-live):] // others are consumed
	n := len(held)
	if j.bounded() && !all {
		// The slowest rank is at the first; and where it is not known which batch is the last, each goes out once the next is told.
		told := 1 + j.spec.maxSkew()
		if !j.spec.plan.KeepsRows {
			told++
		}
		n = min(n, max(0, told-(live-len(held))))
	}
	j.skew.withheld = held[n:]
	return held[:n]
}

// tellReleased tells sidecars what they may hand over now.
func (j *job) tellReleased() {
	if released := j.release(false); len(released) > 0 {
		for _, s := range j.sidecars {
			j.tell(s, ledger.Effects{Sealed: released})
		}
	}
}

// live is what a sidecar that joins late must be told.
func (j *job) live() ledger.Effects {
	eff := j.ledger.Live()
	eff.Sealed = eff.Sealed[:max(0, len(eff.Sealed)-len(j.skew.withheld))]
	return eff
}

// skewCause says which ranks wait for slower ones, "" when none does.
func (j *job) skewCause() string {
	if len(j.skew.withheld) == 0 {
		return ""
	}
	next, slowest := j.skew.withheld[0].Begin, j.mark(j.slowest())
	var ahead, behind []int
	for _, r := range j.ranks {
		at := j.mark(r)
		switch {
		case cmp.Or(cmp.Compare(at.Epoch, next.Epoch), cmp.Compare(at.Step, next.Step)) >= 0:
			ahead = append(ahead, r.index)
		case at.Epoch == slowest.Epoch && at.Step == slowest.Step:
			behind = append(behind, r.index)
		}
	}
	if len(ahead) == 0 {
		return ""
	}
	slices.Sort(ahead)
	return fmt.Sprintf("job %q: %s may be no more than %d global batches ahead; waiting for %s to go on from epoch %d, step %d",
		j.name, j.names(ahead), j.spec.maxSkew(), j.names(behind), slowest.Epoch, slowest.Step)
}
