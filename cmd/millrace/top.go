package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/millrace/millrace/cmd/millrace/view"
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/sleep"
	"github.com/millrace/millrace/internal/statusjson"
	statusv1 "github.com/millrace/millrace/proto/millrace/status/v1"
)

// clearScreen moves to the top left corner and clears what is below.
const clearScreen = "\x1b[H\x1b[2J"

// topOptions are the flags of `millrace top`.
type topOptions struct {
	endpoint string
	interval time.Duration
	count    int
}

func (a *app) topCmd() *cobra.Command {
	var o topOptions
	c := &cobra.Command{
		Use:   "top",
		Short: "Show jobs, ranks and workers again and again, with rows a second",
		Args:  usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			if o.interval <= 0 || o.count < 0 {
				return usageError{errkind.Errorf(errkind.Invalid, "--interval has to be above 0 and --count at least 0")}
			}
			return a.top(c.Context(), o)
		},
	}
	endpointFlag(c, &o.endpoint)
	c.Flags().DurationVar(&o.interval, "interval", time.Second, "time between two looks")
	c.Flags().IntVar(&o.count, "count", 0, "looks to take; 0: until stopped")
	return c
}

// top looks until it has looked often enough or is stopped, which is how it usually ends and no error.
func (a *app) top(ctx context.Context, o topOptions) error {
	var before *statusv1.GetStatusResponse
	var looked time.Time
	for i := 0; o.count == 0 || i < o.count; i++ {
		if i > 0 {
			if err := sleep.For(ctx, o.interval); err != nil {
				return nil //nolint:nilerr // Stopped.
			}
		}
		var now *statusv1.GetStatusResponse
		err := a.control(ctx, o.endpoint, func(ctx context.Context, ask asker) (err error) { now, err = ask.snapshot(ctx); return err })
		if errors.Is(ctx.Err(), context.Canceled) {
			return nil
		}
		if err != nil {
			return err
		}
		at := time.Now()
		if err := a.showTop(before, now, at.Sub(looked), i); err != nil {
			return err
		}
		before, looked = now, at
	}
	return nil
}

// showTop writes one look: over the one before on a terminal, below it elsewhere.
func (a *app) showTop(before, now *statusv1.GetStatusResponse, between time.Duration, look int) error {
	if a.json {
		text, err := statusjson.Marshal(now)
		if err == nil {
			_, err = fmt.Fprintln(a.out, string(text))
		}
		return err
	}
	var page bytes.Buffer // drawn at once, so that it does not flicker
	if f, ok := a.out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		page.WriteString(clearScreen)
	} else if look > 0 {
		page.WriteString("\n")
	}
	if err := view.Top(&page, before, now, between); err != nil {
		return err
	}
	_, err := a.out.Write(page.Bytes())
	return err
}
