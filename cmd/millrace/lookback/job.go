// Package lookback tells and makes again what the ranks of a job got, from the description of the job alone.
package lookback

import (
	"encoding/hex"
	"fmt"

	"github.com/millrace/millrace/feed/client"
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/order"
	"github.com/millrace/millrace/preprocess/plan"
	statusv1 "github.com/millrace/millrace/proto/millrace/status/v1"
)

// Job is all that the stream of a job depends on.
type Job struct {
	Name string
	// Recipe is its YAML or JSON text.
	Recipe   []byte
	Settings client.Settings
	// World is the number of ranks.
	World int
	// State is the cursor from which steps are counted and cut; empty: the beginning.
	State string
	// Manifest is the id of the dataset that the job reads; empty when nobody has said.
	Manifest []byte
	// Records are what a dispatcher knows of the partition that was asked for.
	Records []*statusv1.Record
}

// FromWire is a job as a dispatcher describes it.
func FromWire(j *statusv1.GetJobResponse) *Job {
	s := j.GetSettings()
	return &Job{
		Name: j.GetJob(), Recipe: j.GetRecipe(), World: int(j.GetWorldSize()), State: j.GetStart(), Manifest: j.GetManifest(), Records: j.GetRecords(),
		Settings: client.Settings{
			Seed: s.GetSeed(), Shuffle: s.GetShuffle(), GlobalBatch: s.GetGlobalBatch(), Accumulation: s.GetAccumulation(),
			Tail: s.GetTail(), OnError: s.GetOnError(), Prefetch: 1,
			MaxBad: s.GetMaxBad(), MaxBadFraction: s.GetMaxBadFraction(),
		},
	}
}

// Validate says what is wrong with settings that a user gave, as an error of kind Invalid.
func (j *Job) Validate() error {
	if j.Settings.Accumulation < 1 || j.Settings.Accumulation > 1<<20 {
		return errkind.Errorf(errkind.Invalid, "accumulation is %d; a global batch is taken in at least one part", j.Settings.Accumulation)
	}
	if _, err := order.ParseShuffle(j.Settings.Shuffle); err != nil {
		return err
	}
	b, err := j.batching()
	if err != nil {
		return err
	}
	return b.CheckWorld(j.parts())
}

// parts is how many pieces a global batch is dealt in: part 0 to all ranks, then part 1.
func (j *Job) parts() int { return j.World * int(j.Settings.Accumulation) }

// batching cuts the epochs of the job that begin at their beginning.
func (j *Job) batching() (order.Batching, error) {
	tail, err := order.ParseTail(j.Settings.Tail)
	if err != nil {
		return order.Batching{}, err
	}
	b := order.Batching{GlobalBatch: j.Settings.GlobalBatch, Tail: tail}
	return b, b.Validate()
}

// batchingAt cuts an epoch for a step of it: that of the state is counted and cut from there.
func (j *Job) batchingAt(epoch uint64, step int64) (order.Batching, error) {
	b, err := j.batchingOf(epoch)
	if err == nil && step < b.OriginStep {
		err = errkind.Errorf(errkind.Invalid, "step %d of epoch %d lies before the state from which job %q went on (step %d)", step, epoch, j.Name, b.OriginStep)
	}
	return b, err
}

func (j *Job) batchingOf(epoch uint64) (order.Batching, error) {
	b, err := j.batching()
	if err != nil || j.State == "" {
		return b, err
	}
	c, err := order.ParseCursor(j.State)
	if err != nil {
		return b, fmt.Errorf("state: %w", err)
	}
	if c.Epoch == epoch {
		b.OriginStep, b.OriginRow = int64(c.Step), int64(c.Rows) //nolint:gosec // Validate says what is too large.
	}
	return b, b.Validate()
}

// CheckManifest says, as an error of kind Conflict, when a manifest, by its id in hex, is not the job's.
func (j *Job) CheckManifest(id string) error {
	want := hex.EncodeToString(j.Manifest)
	if want == "" || want == id {
		return nil
	}
	return errkind.Errorf(errkind.Conflict, "job %q reads manifest %.6s…, the source is now manifest %.6s…; give the --cache-dir of the dispatcher, or bring the old files back",
		j.Name, want, id)
}

// Policy puts the plan of a source under the job's policy for bad samples.
func (j *Job) Policy(s *Source) error {
	o, err := plan.ParseOnError(j.Settings.OnError)
	if err != nil {
		return err
	}
	s.Plan, err = s.Plan.With(o)
	return err
}

func (j *Job) noStep(epoch uint64, step int64) error {
	return errkind.Errorf(errkind.NotFound, "epoch %d of job %q has no step %d", epoch, j.Name, step)
}
