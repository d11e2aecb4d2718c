package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/millrace/lookback"
	"github.com/millrace/millrace/feed/client"
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/progress"
)

func (a *app) batchCmd() *cobra.Command {
	var o jobFlags
	var at place
	var out string
	var inner localOptions
	c := &cobra.Command{
		Use:   "batch [JOB]",
		Short: "Make the very tensors of a step again, without trainer or workers, and write them to a file",
		Args:  usage(cobra.MaximumNArgs(1)),
		RunE: func(c *cobra.Command, args []string) error {
			a.quiet = !c.Flags().Changed("log-level")
			if out == "" {
				return usageError{errkind.Errorf(errkind.Invalid, "say with --out where the batch is to be written")}
			}
			if at.rank < 0 {
				return usageError{errkind.Errorf(errkind.Invalid, "--rank is at least 0, not %d", at.rank)}
			}
			j, err := a.find(c.Context(), o, oneOrNone(args), "")
			if err == nil {
				err = at.check(j)
			}
			if err != nil {
				return err
			}
			return a.writeBatch(c.Context(), j, inner, at, out)
		},
	}
	c.Flags().StringVar(&out, "out", "", "Arrow IPC file to write, one record batch for each part of the global batch")
	at.register(c, 0, "rank, from 0")
	o.register(c)
	inner.register(c)
	return c
}

// writeBatch writes what a rank got of a step. A file is there in whole or not at all.
func (a *app) writeBatch(ctx context.Context, j *lookback.Job, o localOptions, at place, path string) (err error) {
	unfinished := path + ".part"
	f, err := os.Create(unfinished)
	if err != nil {
		return fmt.Errorf("writing a batch: %w", err)
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = os.Remove(unfinished)
		}
	}()
	buffered := bufio.NewWriterSize(f, 1<<20)
	var w *ipc.FileWriter
	var rows, bytes int64
	var columns []string
	conn, stop, err := a.startInProcess(ctx, o)
	if err != nil {
		return wrongSettings(err)
	}
	defer stop()
	err = j.Remake(ctx, conn, at.epoch, at.step, at.rank, func(_, _ int, b client.Batch) error {
		if w == nil {
			schema := labelled(b.Record.Schema(), j, at, b.Meta)
			if w, err = ipc.NewFileWriter(buffered, ipc.WithSchema(schema)); err != nil {
				return fmt.Errorf("writing %s: %w", path, err)
			}
			for _, field := range schema.Fields() {
				columns = append(columns, field.Name)
			}
		}
		rows += b.Record.NumRows()
		bytes += client.DataBytes(b.Record)
		if err := w.Write(b.Record); err != nil {
			return fmt.Errorf("writing %s: %w", path, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := errors.Join(w.Close(), buffered.Flush(), f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	if err := os.Rename(unfinished, path); err != nil {
		return fmt.Errorf("writing a batch: %w", err)
	}
	if a.json {
		return json.NewEncoder(a.out).Encode(map[string]any{
			"job": j.Name, "epoch": at.epoch, "step": at.step, "rank": at.rank, "rows": rows, "bytes": bytes, "columns": columns, "out": path,
		})
	}
	_, err = fmt.Fprintf(a.out, "job %s · epoch %d · step %d · rank %d of %d · %s rows, %s → %s\n",
		j.Name, at.epoch, at.step, at.rank, j.World, progress.Count(rows), progress.Size(bytes), path)
	return err
}

// labelled is a schema that says which batch follows.
func labelled(schema *arrow.Schema, j *lookback.Job, at place, m client.Meta) *arrow.Schema {
	metadata := arrow.NewMetadata(
		append(schema.Metadata().Keys(), "millrace.job", "millrace.epoch", "millrace.step", "millrace.rank", "millrace.world_size"),
		append(schema.Metadata().Values(), j.Name, strconv.FormatUint(m.Epoch, 10), strconv.FormatUint(m.Step, 10), strconv.Itoa(at.rank), strconv.Itoa(j.World)),
	)
	return arrow.NewSchema(schema.Fields(), &metadata)
}
