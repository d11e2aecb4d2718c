// Command millrace keeps GPU trainers fed: its subcommands are the roles of the service and the tools around it.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/millrace/millrace/preprocess/isolate"
)

// version is set by the linker.
var version = "unknown" //nolint:gochecknoglobals // The linker can set nothing else.

func main() {
	if len(os.Args) == 2 && os.Args[1] == isolate.Role {
		os.Exit(isolate.Serve(isolate.Decode))
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT)
	terminate := make(chan os.Signal, 1)
	signal.Notify(terminate, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], streams{in: os.Stdin, out: os.Stdout, err: os.Stderr, terminate: terminate}, os.LookupEnv)
	stop()
	os.Exit(code)
}
