// Command millrace-sidecar is the small image beside trainers: the sidecar role alone, static and without cgo.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/feed"
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/service"
)

// version is set by the linker.
var version = "unknown" //nolint:gochecknoglobals // The linker can set nothing else.

// stopGrace is how long the parts may take to stop.
const stopGrace = 1500 * time.Millisecond

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr, os.LookupEnv)
	stop()
	os.Exit(code)
}

// options are the flags.
type options struct {
	config, dispatcher, name, metrics, logLevel string
	listen                                      []string
	json, version                               bool
	budget                                      service.Bytes
	tls                                         service.TLSFiles
}

// run says with which code to exit: 0 done, 1 failed, 2 used wrongly.
func run(ctx context.Context, args []string, out, errOut io.Writer, lookup func(string) (string, bool)) int {
	o, err := parse(args, errOut, lookup)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return 0
	case err != nil:
		_, _ = fmt.Fprintf(errOut, "error: %v\nRun millrace-sidecar --help for usage.\n", err)
		return 2
	case o.version:
		_, _ = fmt.Fprintf(out, "millrace-sidecar version %s\n", version)
		return 0
	}
	err = serve(ctx, o, out, errOut)
	switch {
	case err == nil:
		return 0
	case errkind.Of(err) == errkind.Invalid: // a setting; nothing else can be invalid here
		_, _ = fmt.Fprintf(errOut, "error: %v\nRun millrace-sidecar --help for usage.\n", err)
		return 2
	}
	_, _ = fmt.Fprintf(errOut, "error: %v\n", err)
	return 1
}

func parse(args []string, errOut io.Writer, lookup func(string) (string, bool)) (*options, error) {
	o := &options{budget: 512 << 20}
	f := pflag.NewFlagSet("millrace-sidecar", pflag.ContinueOnError)
	f.SetOutput(errOut)
	f.StringVar(&o.config, service.ConfigFlag, "", "YAML file whose keys are the names of these flags")
	f.StringVar(&o.dispatcher, "dispatcher", "", "address of the dispatcher: host:port or unix:///path")
	f.StringVar(&o.name, "name", "", "name among sidecars (default: host and process)")
	f.StringSliceVar(&o.listen, "listen", nil, "addresses for trainers: unix:///path or host:port")
	f.StringVar(&o.metrics, "metrics", "", "address that serves Prometheus metrics at /metrics; empty: none")
	f.Var(&o.budget, "budget", "bytes that the sidecar may hold: slices, batches, windows of data streams")
	o.tls.Register(f)
	f.StringVar(&o.logLevel, "log-level", "warn", "debug, info, warn or error")
	f.BoolVar(&o.json, "json", false, "log in JSON")
	f.BoolVar(&o.version, "version", false, "say the version and exit")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if err := service.Configure(f, lookup); err != nil {
		return nil, err
	}
	if !o.version && (o.dispatcher == "" || len(o.listen) == 0) {
		return nil, errkind.Errorf(errkind.Invalid, "give the dispatcher's address with --dispatcher, and addresses for trainers with --listen")
	}
	if o.name == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "sidecar"
		}
		o.name = fmt.Sprintf("%s-%d", host, os.Getpid())
	}
	return o, nil
}

func serve(ctx context.Context, o *options, out, errOut io.Writer) error {
	logger, err := service.NewLogger(errOut, o.logLevel, o.json)
	if err != nil {
		return err
	}
	t, err := o.tls.Open(logger)
	if err != nil {
		return err
	}
	g := service.NewGroup(ctx)
	s, addresses, done, err := feed.Open(ctx, o.dispatcher, o.listen, t, feed.Config{Name: o.name, BudgetBytes: int64(o.budget), Logger: logger})
	if err != nil {
		return err
	}
	defer done()
	g.Go(s.Run)
	ready := map[string]any{"ready": true, "role": "sidecar", "name": o.name, "addresses": addresses}
	if o.metrics != "" {
		registry, err := service.NewRegistry(s.Collectors()...)
		if err != nil {
			return err
		}
		l, err := service.Listen(ctx, o.metrics)
		if err != nil {
			g.Stop()
			return errors.Join(err, g.Wait(stopGrace))
		}
		ready["metrics"] = l.Addr().String()
		g.Go(func(ctx context.Context) error { return service.ServeMonitor(ctx, l, registry) })
	}
	if err := json.NewEncoder(out).Encode(ready); err != nil {
		return fmt.Errorf("writing that the sidecar is ready: %w", err)
	}
	return g.Wait(stopGrace)
}
