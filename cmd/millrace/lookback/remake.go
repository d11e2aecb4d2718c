package lookback

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	"github.com/millrace/millrace/feed/client"
	"github.com/millrace/millrace/internal/errkind"
)

// errSeen ends the reading of a stream that has given what was wanted.
var errSeen = errkind.Errorf(errkind.Canceled, "all that was wanted was read")

// Remake runs the job on the sidecar behind conn up to a step and gives fn what a rank gets of it, part by part; rank -1
// stands for all ranks, by turns within each part.
func (j *Job) Remake(ctx context.Context, conn grpc.ClientConnInterface, epoch uint64, step int64, rank int, fn func(rank, part int, b client.Batch) error) error {
	// One rank that takes a global batch in as many parts as there are ranks and parts gets what they get, one after the other.
	settings := j.Settings
	settings.Accumulation = int64(j.parts())
	s, err := client.Open(ctx, conn, client.OpenRequest{Job: j.Name, Recipe: string(j.Recipe), WorldSize: 1, Settings: settings, Cursor: j.State})
	if err != nil {
		return fmt.Errorf("job %q: %w", j.Name, err)
	}
	if err := j.CheckManifest(s.Info.Manifest); err != nil {
		return err
	}
	at, err := j.begin(s.Info, epoch, step)
	if err != nil {
		return err
	}
	part, found := 0, false
	err = s.Read(ctx, at, func(b client.Batch) error {
		if b.Meta.Step != uint64(step) { //nolint:gosec // Steps are never negative.
			return nil
		}
		found = true
		if r := part % j.World; rank < 0 || r == rank {
			if err := fn(r, part/j.World, b); err != nil {
				return err
			}
		}
		if part++; b.Meta.LastPart {
			return errSeen
		}
		return nil
	})
	switch {
	case err != nil && err != errSeen: //nolint:errorlint // The very value that was returned.
		return fmt.Errorf("job %q: %w", j.Name, err)
	case !found:
		return j.noStep(epoch, step)
	}
	return nil
}

// begin is where to begin reading for a step: at the step itself where every sample is a row, else where rows are counted from.
func (j *Job) begin(info client.Info, epoch uint64, step int64) (client.Position, error) {
	b, err := j.batchingAt(epoch, step)
	if err != nil {
		return client.Position{}, err
	}
	if info.Rows >= 0 {
		first, rows, _ := b.Step(info.Rows, step)
		if rows == 0 {
			return client.Position{}, j.noStep(epoch, step)
		}
		return client.Position{Epoch: epoch, Step: uint64(step), Row: uint64(first)}, nil //nolint:gosec // Never negative.
	}
	if info.Start.Epoch == epoch {
		return info.Start, nil
	}
	return client.Position{Epoch: epoch}, nil
}
