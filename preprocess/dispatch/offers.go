package dispatch

import (
	"fmt"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/op"
)

// offers says whether w has all that the stages of a job take, and runs its functions of users. The error says what it lacks.
func (w *worker) offers(s *spec) error {
	if err := op.PythonAllowed(w.python, s.plan.PythonFunctions()); err != nil {
		return fmt.Errorf("worker %s: %w", w.name, err)
	}
	for i := range s.plan.Stages {
		stage := &s.plan.Stages[i]
		for name, n := range stage.Resources {
			if n > w.slots[name] {
				return errkind.Errorf(errkind.Invalid, "stage %s takes %d %s, and worker %s has %d: start workers that have them with --slots %s=%d",
					stage.Name, n, name, w.name, w.slots[name], name, n)
			}
		}
	}
	return nil
}

// checkOffers refuses a job that no worker can run, as long as there are workers to ask.
func (d *Dispatcher) checkOffers(s *spec) error {
	var refused error
	for _, w := range d.sortedWorkers() {
		err := w.offers(s)
		if err == nil {
			return nil
		}
		refused = err
	}
	return refused
}

// shipFunctions takes the functions that come with rank 0's recipe for those of the job: other ranks may have pickled
// theirs into other bytes. It is the last to decide, since no generation runs without it.
func (j *job) shipFunctions(rank int, s *spec) {
	if rank != 0 || j.core != nil || s.plan.Shipped() == "" {
		return
	}
	j.d.cfg.Logger.Info("functions are shipped by rank 0", "job", j.name, "sha256", s.plan.Shipped())
	if j.spec.plan.Shipped() == s.plan.Shipped() {
		return
	}
	j.spec = s
	for _, w := range j.d.sortedWorkers() {
		delete(w.jobs, j.name) // so that it is told anew
	}
}
