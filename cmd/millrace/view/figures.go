package view

import (
	"fmt"
	"io"

	"github.com/millrace/millrace/cmd/millrace/measure"
	"github.com/millrace/millrace/internal/progress"
)

// figures are what the stages of a plan take and make for a sample: as measured, else as far as the plan tells. Stage 0
// is reading.
type figures struct {
	in     PlanInput
	mean   int64 // bytes of a sample in the manifest
	stages []measure.Stage
}

func newFigures(in PlanInput, mean int64) *figures {
	f := &figures{in: in, mean: mean}
	if m := in.Measured; m != nil && m.Samples > 0 {
		f.stages = append([]measure.Stage{m.Read}, m.Stages...)
	}
	return f
}

// micros is the time of stage i.
func (f *figures) micros(i int) string {
	if f.stages == nil {
		return "-"
	}
	return progress.Count(int64(f.seconds(i)*1e6 + 0.5))
}

func (f *figures) seconds(i int) float64 {
	return f.stages[i].Time.Seconds() / float64(f.in.Measured.Samples)
}

// bytes is what stage i makes.
func (f *figures) bytes(i int) string {
	if f.stages != nil {
		return progress.Size(f.perSample(i))
	}
	if i == 0 {
		return progress.Size(f.mean)
	}
	if n := f.in.Plan.Stages[i-1].RowBytes; n > 0 {
		return progress.Size(n)
	}
	return "varies"
}

func (f *figures) perSample(i int) int64 {
	return f.stages[i].Bytes / int64(f.in.Measured.Samples)
}

// write says what was measured, what crosses the network and why, and what a rate needs.
func (f *figures) write(out io.Writer) {
	if f.stages == nil {
		if f.in.Unmeasured != "" {
			_, _ = fmt.Fprintf(out, "measured  not: %s\n", f.in.Unmeasured)
		}
		return
	}
	m := f.in.Measured
	text := fmt.Sprintf("on %d samples of the source, one after the other", m.Samples)
	if m.Bad > 0 {
		text += fmt.Sprintf("; %d more could not be processed", m.Bad)
	}
	if rows := m.Stages[len(m.Stages)-1].Rows; rows != int64(m.Samples) {
		text += fmt.Sprintf("; %.2f rows of a sample", float64(rows)/float64(m.Samples))
	}
	_, _ = fmt.Fprintf(out, "measured  %s\n", text)
	_, _ = fmt.Fprintf(out, "place     %s\n", f.place())
	if f.in.Rate > 0 {
		_, _ = fmt.Fprintf(out, "for %s samples/s: %s\n", progress.Count(int64(f.in.Rate)), f.needs())
	}
}

// place says where stages run, and what that makes cross the network.
func (f *figures) place() string {
	last := len(f.stages) - 1
	sizes := make([]string, 0, len(f.stages))
	least := 0
	for i := range f.stages {
		sizes = append(sizes, progress.Size(f.perSample(i)))
		if f.perSample(i) < f.perSample(least) {
			least = i
		}
	}
	text := fmt.Sprintf("all stages of a partition run on the worker that reads it; %s a sample cross to the sidecar", sizes[last])
	switch {
	case least == last:
		return text + ", the least of any place in the chain"
	case least == 0:
		return text + fmt.Sprintf(", %.1fx what is read", ratio(f.perSample(last), f.perSample(0)))
	}
	return text + fmt.Sprintf(", %.1fx what stage %d makes (%s)", ratio(f.perSample(last), f.perSample(least)), least-1, sizes[least])
}

func ratio(a, b int64) float64 { return float64(a) / float64(max(1, b)) }

// where is the workers that a stage can run on.
func where(resources map[string]int) string {
	for name := range resources {
		if name != "cpu" {
			return "workers that offer it"
		}
	}
	return "any worker"
}
