package view

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/millrace/millrace/internal/progress"
)

// Lineage is what a source partition is made from.
type Lineage struct {
	Job       string `json:"job"`
	Partition string `json:"partition"`
	Manifest  string `json:"manifest"`
	Plan      string `json:"plan"`
	Seed      uint64 `json:"seed"`
	Shuffle   string `json:"shuffle"`
	// FirstPosition is the place of its first sample in the stream of the epoch.
	FirstPosition int64           `json:"first_position"`
	Samples       []LineageSample `json:"samples"`
	// Steps are the first and the last step that it feeds; empty where that depends on what the recipe keeps, or nobody
	// gets it.
	Steps []int64 `json:"steps"`
	// Outputs are those that a dispatcher has on record.
	Outputs []LineageOutput `json:"outputs"`
}

// LineageSample is one of its samples.
type LineageSample struct {
	Sample int64  `json:"sample"`
	Key    string `json:"key"`
}

// LineageOutput is one output partition.
type LineageOutput struct {
	Partition string `json:"partition"`
	Rows      int64  `json:"rows"`
	Bytes     int64  `json:"bytes"`
	Hash      string `json:"hash"`
	Worker    string `json:"worker,omitempty"`
}

// Write writes the lineage for people.
func (l Lineage) Write(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(name, format string, args ...any) { _, _ = fmt.Fprintf(w, name+"\t"+format+"\n", args...) }
	line("partition", "%s of job %s", l.Partition, l.Job)
	line("manifest", "%s", l.Manifest)
	line("plan", "%s, seed %d", l.Plan, l.Seed)
	line("order", "%s, positions %s to %s", l.Shuffle, progress.Count(l.FirstPosition), progress.Count(l.FirstPosition+int64(len(l.Samples))-1))
	if len(l.Steps) == 2 {
		line("feeds", "steps %s to %s", progress.Count(l.Steps[0]), progress.Count(l.Steps[1]))
	}
	for _, o := range l.Outputs {
		line("output", "%s", o.text())
	}
	_, _ = fmt.Fprintln(w, "SAMPLE\tKEY")
	for _, s := range l.Samples {
		_, _ = fmt.Fprintf(w, "%d\t%s\n", s.Sample, s.Key)
	}
	return w.Flush()
}

func (o LineageOutput) text() string {
	text := fmt.Sprintf("%s: %s rows, %s, hash %s", o.Partition, progress.Count(o.Rows), progress.Size(o.Bytes), o.Hash)
	if o.Worker != "" {
		text += ", on worker " + o.Worker
	}
	return text
}

// Outputs writes output partitions, one a line, and what became of the comparison, if any.
func Outputs(out io.Writer, made []LineageOutput, verdict string) error {
	for _, o := range made {
		if _, err := fmt.Fprintln(out, o.text()); err != nil {
			return err
		}
	}
	if verdict == "" {
		return nil
	}
	_, err := fmt.Fprintln(out, verdict)
	return err
}
