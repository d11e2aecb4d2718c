package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/bench/scenario"
	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/loader/reshard"
)

// benchWarmUp is the time before a measured window.
const benchWarmUp = 3 * time.Second

func (a *app) benchCmd() *cobra.Command {
	c := &cobra.Command{
		Use:   "bench SCENARIO",
		Short: "Run a benchmark; its last line is one JSON object",
		Args:  known("scenario"),
		RunE: func(*cobra.Command, []string) error {
			for _, s := range scenario.All() {
				if _, err := fmt.Fprintf(a.out, "%-8s %s\n", s.Name, s.About); err != nil {
					return err
				}
			}
			return nil
		},
	}
	c.AddCommand(a.benchE2ECmd(), a.benchTransportCmd(), a.benchKernelsCmd(), a.benchExecutorCmd(), a.benchStorageCmd(), a.benchRecoveryCmd())
	return c
}

func (a *app) benchE2ECmd() *cobra.Command {
	var data string
	var seconds float64
	e := scenario.E2E{WarmUp: benchWarmUp, Version: version, Log: a.err}
	c := &cobra.Command{
		Use:   scenario.NameE2E,
		Short: "Feed crops to a Python consumer, beside torch's DataLoader",
		Long: "Feed random-resized 224² uint8 crops of JPEGs, in batches of 64, to a Python consumer that only touches each batch,\n" +
			"with torch's DataLoader and torchvision on the same files and cores beside it, in turns.\n" +
			"taskset chooses the cores. Needs a quiet machine: the result says whether it was.",
		Args: usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			e.Window = time.Duration(seconds * float64(time.Second))
			if err := e.Check(); err != nil {
				return usageError{err}
			}
			return a.benchE2E(c.Context(), e, data)
		},
	}
	c.Flags().StringVar(&e.Peer, "peer", scenario.PeerTorch, "torch (Pillow) or torch-tensor (torchvision.io and transforms of tensors)")
	c.Flags().BoolVar(&e.Restarts, "restarts", false, "let Millrace read the files as reshard --jpeg-restarts writes them, the peer as they are")
	c.Flags().StringVar(&data, "data", "data/demo", "directory with train-*.tar or images by class, or any local source of JPEGs")
	c.Flags().IntVar(&e.Rounds, "rounds", 3, "turns of each side")
	c.Flags().Float64Var(&seconds, "seconds", 10, "least length of a measured window")
	c.Flags().IntVar(&e.Workers, "workers", runtime.NumCPU(), "images decoded at a time: worker processes of the peer, CPU slots of Millrace")
	c.Flags().StringVar(&e.Python, "python", "", "interpreter of both sides (default: that of make setup-demo, else python3)")
	return c
}

func (a *app) benchE2E(ctx context.Context, e scenario.E2E, data string) error {
	var err error
	if e.Source, err = scenario.Source(data); err != nil {
		return err
	}
	if e.Env, e.Python, err = a.benchPython(e.Python); err != nil {
		return err
	}
	e.Env = append(e.Env, fmt.Sprintf("MILLRACE_CPU_SLOTS=%d", e.Workers))
	if e.Data, err = a.benchData(ctx, e.Source); err != nil {
		return err
	}
	if e.Restarts {
		dir, err := os.MkdirTemp("", "millrace-restarts-")
		if err != nil {
			return fmt.Errorf("making a folder for the shards with restart markers: %w", err)
		}
		defer func() { _ = os.RemoveAll(dir) }()
		if e.Source, err = a.benchRestarts(ctx, e.Source, dir); err != nil {
			return err
		}
	}
	result, err := scenario.RunE2E(ctx, e)
	if err != nil {
		return err
	}
	return json.NewEncoder(a.out).Encode(result)
}

// benchRestarts writes the source to dir with restart markers, reads all of it, so that it is in the page cache as the peer's
// files are, and gives its shards.
func (a *app) benchRestarts(ctx context.Context, source []string, dir string) ([]string, error) {
	if _, err := a.reshard(ctx, source, reshard.Options{Dir: dir, Concurrency: runtime.NumCPU()}); err != nil {
		return nil, err
	}
	made, err := scenario.Source(dir)
	if err != nil {
		return nil, err
	}
	_, err = a.benchData(ctx, made)
	return made, err
}

// benchData indexes the source, so that no measured process has to, and finds what the peer needs to know.
func (a *app) benchData(ctx context.Context, source []string) (scenario.Data, error) {
	cache, err := a.openCache()
	if err != nil {
		return scenario.Data{}, err
	}
	resolver := a.newResolver()
	defer func() { _ = resolver.Close() }()
	show, done := a.indexBar()
	m, err := dataset.BuildOrLoad(ctx, resolver, source, cache, dataset.BuildOptions{OnProgress: show})
	done()
	if err != nil {
		return scenario.Data{}, err
	}
	d, err := dataset.Open(m, resolver, cache, dataset.OpenOptions{})
	if err != nil {
		return scenario.Data{}, err
	}
	defer func() { _ = d.Close() }()
	return scenario.Places(ctx, d)
}
