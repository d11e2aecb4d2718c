package dispatch

import (
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/dispatch/ledger"
	"github.com/millrace/millrace/preprocess/lineage"
	"github.com/millrace/millrace/preprocess/plan"
	workerv1 "github.com/millrace/millrace/proto/millrace/worker/v1"
)

// listedBad is how many bad samples the status lists.
const listedBad = 20

// badSamples are those of a job that were skipped or replaced: how many, and the last of them.
type badSamples struct {
	total uint64
	last  []string
}

// badSamples gives samples that a worker calls bad their places in the source partition. Others than its own are ignored.
func (j *job) badSamples(id lineage.ID, found []*workerv1.BadSample) []ledger.Bad {
	if len(found) == 0 {
		return nil
	}
	ordinals := j.order(id.Epoch).Samples(int64(id.Source), nil) //nolint:gosec // The source partition was granted.
	var out []ledger.Bad
	for _, b := range found {
		if i := slices.Index(ordinals, int64(b.GetSample())); i >= 0 { //nolint:gosec // A wrong one is not found.
			out = append(out, ledger.Bad{Index: int64(i), Sample: b.GetSample(), Text: b.GetText()})
		}
	}
	return out
}

// hinted is what a worker says of a failure; where a sample is to blame, with what to do about it.
func (j *job) hinted(f *workerv1.SourceFailed) string {
	text := f.GetText()
	if errkind.Parse(f.GetKind()) != errkind.BadData || j.spec.onError != plan.Raise || !strings.HasPrefix(text, "sample ") {
		return text
	}
	first, rest, more := strings.Cut(text, "\n")
	first += `; on_error="skip" leaves such samples out`
	if more {
		first += "\n" + rest
	}
	return first
}

// noteBad counts bad samples whose place in the stream is settled.
func (j *job) noteBad(found []ledger.Bad) {
	for _, b := range found {
		j.d.cfg.Logger.Warn("bad sample", "job", j.name, "on_error", j.spec.onError.String(), "error", b.Text)
		j.bad.last = append(j.bad.last, b.Text)
	}
	if extra := len(j.bad.last) - listedBad; extra > 0 {
		j.bad.last = slices.Delete(j.bad.last, 0, extra)
	}
	j.bad.total += uint64(len(found))
	j.d.metrics.bad.WithLabelValues(j.spec.onError.String()).Add(float64(len(found)))
}
