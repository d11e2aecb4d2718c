package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/millrace/millrace/feed/client"
	"github.com/millrace/millrace/internal/progress"
)

// drained is what a drain has seen.
type drained struct {
	Epochs  int     `json:"epochs"`
	Batches int64   `json:"batches"`
	Rows    int64   `json:"rows"`
	Bytes   int64   `json:"bytes"`
	Seconds float64 `json:"seconds"`
	First   float64 `json:"first_batch_s"`
}

func (a *app) drainEpochs(ctx context.Context, s *client.Session, epochs int) (drained, error) {
	bar := progress.New(a.err, "reading", "rows")
	defer bar.Close()
	started := time.Now()
	result, at := drained{}, s.Info.Start
	for range epochs {
		err := s.Read(ctx, at, func(b client.Batch) error {
			if result.Batches == 0 {
				result.First = time.Since(started).Seconds()
			}
			result.Batches++
			result.Rows += int64(b.Meta.ValidRows)
			result.Bytes += client.DataBytes(b.Record)
			bar.Set(progress.State{Done: result.Rows, Total: max(0, s.Info.Rows) * int64(epochs)})
			at = b.Meta.Next()
			return nil
		})
		if err != nil {
			return result, err
		}
		result.Epochs++
	}
	result.Seconds = time.Since(started).Seconds()
	return result, nil
}

func (a *app) tellDrained(r drained) error {
	if a.json {
		return json.NewEncoder(a.out).Encode(r)
	}
	epochs := "1 epoch"
	if r.Epochs != 1 {
		epochs = fmt.Sprintf("%d epochs", r.Epochs)
	}
	_, err := fmt.Fprintf(a.out, "%s · %s rows in %s batches · %s rows/s · %s/s · first batch after %.2f s\n", epochs, progress.Count(r.Rows),
		progress.Count(r.Batches), progress.Count(int64(float64(r.Rows)/r.Seconds)), progress.Size(int64(float64(r.Bytes)/r.Seconds)), r.First)
	return err
}
