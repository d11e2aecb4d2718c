package view_test

import (
	"bytes"
	"regexp"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/millrace/view"
	statusv1 "github.com/millrace/millrace/proto/millrace/status/v1"
)

// Rows a second count over the end of an epoch, and a job that has gone back has no rate.
func TestTopGivesRatesBetweenTwoLooks(t *testing.T) {
	at := func(epoch uint64, step, samples int64) *statusv1.GetStatusResponse {
		return &statusv1.GetStatusResponse{
			Jobs:    []*statusv1.Job{{Name: "resnet", State: "running", Epoch: epoch, Step: step, Steps: 10, GlobalBatch: 100}},
			Workers: []*statusv1.Worker{{Name: "w0", State: "ready", Samples: samples}},
		}
	}
	for _, c := range []struct {
		name        string
		before, now *statusv1.GetStatusResponse
		job, worker string
	}{
		{"the first look", nil, at(0, 3, 500), "-", "-"},
		{"within an epoch", at(0, 3, 500), at(0, 7, 1100), "200", "300"},
		{"over an epoch's end", at(0, 9, 500), at(1, 1, 501), "100", "0.5"},
		{"after a resume", at(1, 1, 500), at(0, 9, 500), "-", "0.0"},
		{"after a worker's restart", at(0, 0, 500), at(0, 1, 30), "50", "-"},
	} {
		var out bytes.Buffer
		if err := view.Top(&out, c.before, c.now, 2*time.Second); err != nil {
			t.Fatal(err)
		}
		job := regexp.MustCompile(`(?m)^resnet +running +\d+ +\d+ of 10 +(\S+) `).FindStringSubmatch(out.String())
		worker := regexp.MustCompile(`(?m)^w0 .* (\S+)$`).FindStringSubmatch(out.String())
		if job == nil || worker == nil || job[1] != c.job || worker[1] != c.worker {
			t.Errorf("%s: rates %q and %q, want %q and %q\n%s", c.name, job, worker, c.job, c.worker, out.String())
		}
	}
}
