package view

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/millrace/millrace/internal/progress"
)

// Audit is what each rank got in a step.
type Audit struct {
	Job      string     `json:"job"`
	Epoch    uint64     `json:"epoch"`
	Step     int64      `json:"step"`
	World    int        `json:"world_size"`
	Manifest string     `json:"manifest"`
	Rows     []AuditRow `json:"rows"`
}

// AuditRow is one row of a batch.
type AuditRow struct {
	Rank int `json:"rank"`
	// Part of the global batch, from 0, and Row of the batch.
	Part int `json:"part"`
	Row  int `json:"row"`
	// Sample is the sample's number in the manifest, Partition its source partition.
	Sample    int64  `json:"sample"`
	Partition string `json:"partition"`
	Key       string `json:"key"`
	// Valid is false for padding.
	Valid bool `json:"valid"`
}

// Write writes the rows as a table.
func (a Audit) Write(out io.Writer) error {
	_, _ = fmt.Fprintf(out, "job %s · epoch %d · step %d · %s rows for %s ranks · manifest %.6s…\n", a.Job, a.Epoch, a.Step,
		progress.Count(int64(len(a.Rows))), progress.Count(int64(a.World)), a.Manifest)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "RANK\tPART\tROW\tSAMPLE\tPARTITION\tKEY")
	for _, r := range a.Rows {
		key := r.Key
		if !r.Valid {
			key += " (padding)"
		}
		_, _ = fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%s\t%s\n", r.Rank, r.Part, r.Row, r.Sample, r.Partition, key)
	}
	return w.Flush()
}
