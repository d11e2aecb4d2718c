package view

import (
	"fmt"
	"io"
	"time"

	"github.com/millrace/millrace/internal/progress"
	statusv1 "github.com/millrace/millrace/proto/millrace/status/v1"
)

// Top writes a dispatcher's snapshot with what went through since the one before, which may be nil.
func Top(out io.Writer, before, now *statusv1.GetStatusResponse, between time.Duration) error {
	r := &rates{seconds: between.Seconds(), rows: map[string]int64{}, samples: map[string]int64{}}
	for _, j := range before.GetJobs() {
		r.rows[j.GetName()] = consumed(j)
	}
	for _, w := range before.GetWorkers() {
		r.samples[w.GetName()] = w.GetSamples()
	}
	return status(out, now, r)
}

// rates are counts of the snapshot before; nil has no columns to show.
type rates struct {
	seconds       float64
	rows, samples map[string]int64
}

// title is a column's title within a line, last one at its end.
func (r *rates) title(name string) string {
	if r == nil {
		return ""
	}
	return name + "\t"
}

func (r *rates) last(name string) string {
	if r == nil {
		return ""
	}
	return "\t" + name
}

func (r *rates) job(j *statusv1.Job) string {
	if r == nil {
		return ""
	}
	return r.since(r.rows, j.GetName(), consumed(j)) + "\t"
}

func (r *rates) worker(w *statusv1.Worker) string {
	if r == nil {
		return ""
	}
	return "\t" + r.since(r.samples, w.GetName(), w.GetSamples())
}

// since is a rate as text: "-" for what is new, or has gone back as a job does that resumes.
func (r *rates) since(before map[string]int64, name string, now int64) string {
	was, known := before[name]
	if !known || now < was || r.seconds <= 0 {
		return "-"
	}
	if perSecond := float64(now-was) / r.seconds; perSecond < 10 {
		return fmt.Sprintf("%.1f", perSecond)
	}
	return progress.Count(int64(float64(now-was) / r.seconds))
}

// consumed is how many rows the slowest rank's steps had, in all epochs; without a known length, those of this epoch.
func consumed(j *statusv1.Job) int64 {
	steps := j.GetStep()
	if j.GetSteps() > 0 {
		steps += int64(j.GetEpoch()) * j.GetSteps() //nolint:gosec // Epochs are few.
	}
	return steps * j.GetGlobalBatch()
}
