package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/bench/scenario"
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset"
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
	c.AddCommand(a.benchE2ECmd(), a.benchTransportCmd(), a.benchKernelsCmd(), a.benchExecutorCmd())
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
	result, err := scenario.RunE2E(ctx, e)
	if err != nil {
		return err
	}
	return json.NewEncoder(a.out).Encode(result)
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

// benchPython is the interpreter of the measured programs and their environment: this binary, the client in the source
// tree that the binary lies in, if it does, and none of the settings that this shell may have for other runs.
func (a *app) benchPython(python string) (env []string, found string, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, "", fmt.Errorf("finding this binary: %w", err)
	}
	cache, err := a.cachePath()
	if err != nil {
		return nil, "", err
	}
	root := filepath.Dir(filepath.Dir(self))
	if python == "" {
		python = "python3"
		if own := filepath.Join(root, ".cache/venv/bin/python"); isFile(own) {
			python = own
		}
	}
	if found, err = exec.LookPath(python); err != nil {
		return nil, "", errkind.Errorf(errkind.NotFound, "python: %w; --python names the interpreter", err)
	}
	path, _ := a.lookup("PYTHONPATH")
	if client := filepath.Join(root, "clients/python/src"); isFile(filepath.Join(client, "millrace/__init__.py")) {
		path = strings.TrimSuffix(client+string(os.PathListSeparator)+path, string(os.PathListSeparator))
	}
	env = slices.DeleteFunc(os.Environ(), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return strings.HasPrefix(name, "MILLRACE_") ||
			slices.Contains([]string{"PYTHONPATH", "OMP_NUM_THREADS", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}, name)
	})
	return append(env, "PYTHONPATH="+path, "MILLRACE_BIN="+self, "MILLRACE_CACHE_DIR="+cache), found, nil
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
