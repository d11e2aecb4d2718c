package dispatch

import (
	"fmt"

	"github.com/millrace/millrace/preprocess/op"
)

// runs says whether w runs the functions of users that a job calls.
func (w *worker) runs(s *spec) error { return op.PythonAllowed(w.python, s.plan.PythonFunctions()) }

// checkPython refuses a job whose functions no worker runs, as long as there are workers to ask.
func (d *Dispatcher) checkPython(s *spec) error {
	var refused error
	for _, w := range d.sortedWorkers() {
		err := w.runs(s)
		if err == nil {
			return nil
		}
		refused = fmt.Errorf("worker %s: %w", w.name, err)
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
