// Package view writes what commands answer for people: tables, not logs.
package view

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/millrace/millrace/internal/progress"
	statusv1 "github.com/millrace/millrace/proto/millrace/status/v1"
)

// Status writes a dispatcher's snapshot.
func Status(out io.Writer, s *statusv1.GetStatusResponse) error { return status(out, s, nil) }

// status writes a snapshot, with a column of rates if there are any.
func status(out io.Writer, s *statusv1.GetStatusResponse, r *rates) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }
	if len(s.GetJobs()) == 0 {
		line("no jobs")
	} else {
		line("JOB\tSTATE\tEPOCH\tSTEP\t%sRANKS\tHELD\tSOURCE", r.title("ROWS/S"))
	}
	for _, j := range s.GetJobs() {
		step := progress.Count(j.GetStep())
		if j.GetSteps() >= 0 {
			step += " of " + progress.Count(j.GetSteps())
		}
		line("%s\t%s\t%d\t%s\t%s%s\t%s\t%s", j.GetName(), j.GetState(), j.GetEpoch(), step, r.job(j), rankStates(j), progress.Size(j.GetHeldBytes()), j.GetSource())
	}
	line("")
	if len(s.GetWorkers()) == 0 {
		line("no workers")
	} else {
		line("WORKER\tSTATE\tADDRESS\tSLOTS\tRUNNING\tHELD\tRSS\tSAMPLES%s", r.last("SAMPLES/S"))
	}
	for _, x := range s.GetWorkers() {
		line("%s\t%s\t%s\t%s\t%d\t%s of %s\t%s\t%s%s", x.GetName(), x.GetState(), x.GetAddress(), slots(x.GetSlots()), x.GetRunning(),
			progress.Size(x.GetHeldBytes()), progress.Size(x.GetBudgetBytes()), progress.Size(x.GetResidentBytes()), progress.Count(x.GetSamples()), r.worker(x))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, j := range s.GetJobs() {
		if j.GetWaiting() != "" {
			_, _ = fmt.Fprintf(out, "\nwaiting: %s\n", j.GetWaiting())
		}
		if n := j.GetBadSamples(); n > 0 {
			_, _ = fmt.Fprintf(out, "\nbad samples of job %q: %d, the last of them:\n  %s\n", j.GetName(), n, strings.Join(j.GetBad(), "\n  "))
		}
		if q := j.GetQuarantined(); len(q) > 0 {
			_, _ = fmt.Fprintf(out, "\nquarantined by job %q:\n  %s\n", j.GetName(), strings.Join(q, "\n  "))
		}
		if j.GetError() != "" {
			_, _ = fmt.Fprintf(out, "\nfailed: job %q: %s\n", j.GetName(), j.GetError())
		}
	}
	return nil
}

// rankStates counts ranks by state: "2 streaming".
func rankStates(j *statusv1.Job) string {
	counts := map[string]int{}
	for _, r := range j.GetRanks() {
		counts[r.GetState()]++
	}
	var parts []string
	for _, state := range []string{"streaming", "joined", "gone"} {
		if n := counts[state]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, state))
		}
	}
	return strings.Join(parts, ", ")
}
