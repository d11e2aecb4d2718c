package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"runtime"
	"slices"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/loader/reshard"
)

func (a *app) reshardCmd() *cobra.Command {
	var restarts bool
	o := reshard.Options{}
	c := &cobra.Command{
		Use:   "reshard --jpeg-restarts SRC… DST",
		Short: "Write tar shards anew, with JPEGs that can be read in part",
		Long: "Write tar shards to a local directory DST, with the same samples in the same order. With --jpeg-restarts, JPEGs get restart\n" +
			"markers, so that a crop can be decoded without reading the rest: no pixel changes, metadata stay, progressive files become\n" +
			"baseline, and the files remain standard JPEGs. All other members are copied.",
		Args: usage(cobra.MinimumNArgs(2)),
		RunE: func(c *cobra.Command, args []string) error {
			if !restarts {
				return usageError{errkind.Errorf(errkind.Invalid, "nothing to do: give --jpeg-restarts")}
			}
			o.Dir = args[len(args)-1]
			counts, err := a.reshard(c.Context(), args[:len(args)-1], o)
			if err != nil {
				return err
			}
			return a.answerReshard(counts)
		},
	}
	c.Flags().BoolVar(&restarts, "jpeg-restarts", false, "give JPEGs restart markers, which may add one part in a hundred to their size")
	c.Flags().IntVar(&o.Concurrency, "concurrency", runtime.NumCPU(), "shards written at a time")
	return c
}

// reshard gives the JPEGs of a source restart markers.
func (a *app) reshard(ctx context.Context, source []string, o reshard.Options) (*restartCounts, error) {
	cache, err := a.openCache()
	if err != nil {
		return nil, err
	}
	resolver := a.newResolver()
	defer func() { _ = resolver.Close() }()
	show, done := a.indexBar()
	m, err := dataset.BuildOrLoad(ctx, resolver, source, cache, dataset.BuildOptions{OnProgress: show})
	done()
	if err != nil {
		return nil, err
	}
	if m.Format != dataset.FormatWebDataset {
		return nil, errkind.Errorf(errkind.Invalid, "reshard takes tar shards, and this source is of the format %s", m.Format)
	}
	for i := range m.Shards {
		o.Shards = append(o.Shards, m.Shards[i].URI)
	}
	counts := &restartCounts{Shards: len(o.Shards), Reasons: map[string]int{}}
	o.Change = counts.change()
	bar := progress.New(a.err, "resharding", "shards")
	o.OnProgress = func(done int) { bar.Set(progress.State{Done: int64(done), Total: int64(len(o.Shards))}) }
	err = reshard.Run(ctx, resolver, o)
	bar.Close()
	return counts, err
}

func (a *app) answerReshard(counts *restartCounts) error {
	if a.json {
		return json.NewEncoder(a.out).Encode(counts)
	}
	_, err := fmt.Fprintf(a.out, "%s shards · %s JPEGs, %s of them kept as they were · %s became %s, of which markers are %.2f %%\n",
		progress.Count(int64(counts.Shards)), progress.Count(int64(counts.JPEGs)), progress.Count(int64(counts.Kept)),
		progress.Size(counts.BytesBefore), progress.Size(counts.BytesAfter),
		100*float64(counts.BytesAfter-counts.BytesPlain)/float64(max(1, counts.BytesPlain)))
	for _, reason := range slices.Sorted(maps.Keys(counts.Reasons)) {
		_, _ = fmt.Fprintf(a.out, "kept: %d: %s\n", counts.Reasons[reason], reason)
	}
	return err
}
