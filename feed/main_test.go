package feed_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"testing"

	"go.uber.org/goleak"

	"github.com/millrace/millrace/feed"
)

// sidecarVariable makes this test program a sidecar, with the dispatcher and the budget that it names.
const sidecarVariable = "MILLRACE_FEED_TEST_SIDECAR"

func TestMain(m *testing.M) {
	if dispatcher := os.Getenv(sidecarVariable); dispatcher != "" {
		if err := beSidecar(dispatcher, os.Args[1], os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// beSidecar serves until standard input closes.
func beSidecar(dispatcher, listen, budget string) error {
	bytes, err := strconv.ParseInt(budget, 10, 64)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s, addresses, done, err := feed.Open(ctx, dispatcher, []string{listen}, nil, feed.Config{Name: "sidecar", BudgetBytes: bytes, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer done()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	if err := json.NewEncoder(os.Stdout).Encode(addresses); err != nil {
		return err
	}
	return s.Run(ctx)
}
