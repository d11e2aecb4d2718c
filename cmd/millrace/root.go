package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/service"
)

// Exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// streams are where commands read and write: nothing but the answer goes to out, logs and bars to err.
type streams struct {
	in       io.Reader
	out, err io.Writer
	// terminate tells when the process is asked to end in its own time.
	terminate <-chan os.Signal
}

// app is what every command shares.
type app struct {
	streams
	lookup   func(string) (string, bool)
	logLevel string
	json     bool
	cacheDir string
	stores   storeFlags
	tls      service.TLSFiles
	quiet    bool // logs of parts would only repeat the command's own error
	// leave is what the first request to end does instead of ending at once.
	leave atomic.Pointer[func()]
}

// run executes a command line and says with which code to exit.
func run(ctx context.Context, args []string, s streams, lookup func(string) (string, bool)) int {
	a := &app{streams: s, lookup: lookup}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go a.terminated(ctx, cancel)
	root := a.root() //nolint:contextcheck // Commands get their context from cobra.
	root.SetArgs(args)
	root.SetIn(s.in)
	root.SetOut(s.out)
	root.SetErr(s.err)
	c, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitDone
	}
	_, _ = fmt.Fprintf(s.err, "error: %s\n", oneLine(err))
	if _, ok := errors.AsType[usageError](err); ok {
		_, _ = fmt.Fprintf(s.err, "Run %s --help for usage.\n", c.CommandPath())
		return exitUsage
	}
	return exitFailed
}

// terminated ends the command when it is asked to, unless it knows a better way to leave: then at the second time.
func (a *app) terminated(ctx context.Context, end func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.terminate:
		}
		leave := a.leave.Swap(nil)
		if leave == nil {
			end()
			return
		}
		(*leave)()
	}
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "millrace",
		Short:         "Keep GPU trainers fed",
		Long:          "Millrace reads, decodes and augments training samples on CPU nodes and hands every rank ready batches.",
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          known("command"),
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(flagError)
	flags := root.PersistentFlags()
	flags.StringVar(&a.logLevel, "log-level", "warn", "debug, info, warn or error")
	flags.BoolVar(&a.json, "json", false, "answer in JSON, log in JSON")
	flags.StringVar(&a.cacheDir, "cache-dir", "", "where manifests and indices are kept (default: the user's cache directory)")
	a.stores.register(flags)
	a.tls.Register(flags)
	root.PersistentPreRunE = func(c *cobra.Command, _ []string) error {
		if err := service.Configure(c.Flags(), a.lookup); err != nil {
			return usageError{err}
		}
		return nil
	}
	root.AddCommand(a.localCmd(), a.dispatcherCmd(), a.workerCmd(), a.sidecarCmd(),
		a.indexCmd(), a.reshardCmd(), a.planCmd(), a.previewCmd(), a.runCmd(), a.statusCmd(), a.topCmd(), a.stopCmd(), a.auditCmd(), a.batchCmd(), a.lineageCmd(), a.rederiveCmd(), a.benchCmd())
	return root
}

func (a *app) logger() (*slog.Logger, error) {
	if a.quiet {
		return slog.New(slog.DiscardHandler), nil
	}
	l, err := service.NewLogger(a.err, a.logLevel, a.json)
	if err != nil {
		return nil, usageError{err}
	}
	return l, nil
}
