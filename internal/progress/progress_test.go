package progress_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/internal/progress"
)

func TestLineSaysCountsRateAndTimeLeft(t *testing.T) {
	s := progress.State{Done: 250, Total: 1000, Detail: "12,345 samples"}
	got := progress.Line("indexing", "shards", s, 10*time.Second, true)
	want := "indexing ██████░░░░░░░░░░░░░░░░░░ 250 of 1,000 shards · 12,345 samples · 25.0 shards/s · 30s left"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := progress.Line("reading", "samples", progress.State{Done: 7}, 0, true); got != "reading 7 samples" {
		t.Errorf("unknown total: %q", got)
	}
}

func TestWithoutATerminalShortWorkIsSilentAndLongWorkGetsALineNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		short := progress.New(&out, "indexing", "shards")
		short.Set(progress.State{Done: 1, Total: 2})
		short.Close()
		if out.Len() != 0 {
			t.Errorf("short work wrote %q", out.String())
		}
		long := progress.New(&out, "indexing", "shards")
		for i := range 60 {
			time.Sleep(time.Second)
			long.Set(progress.State{Done: int64(i + 1), Total: 60})
		}
		long.Close()
		if n := strings.Count(out.String(), "\n"); n < 5 || n > 8 || !strings.Contains(out.String(), "60 of 60 shards") {
			t.Errorf("a minute of work wrote %d lines:\n%s", n, out.String())
		}
	})
}

func TestNumbersForPeople(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1281167: "1,281,167", -1234: "-1,234", -123: "-123"} {
		if got := progress.Count(n); got != want {
			t.Errorf("Count(%d) = %s, want %s", n, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0 B", 999: "999 B", 98113: "98.1 kB", 148e9: "148 GB", 999999: "1.00 MB", 1500: "1.50 kB"} {
		if got := progress.Size(n); got != want {
			t.Errorf("Size(%d) = %s, want %s", n, got, want)
		}
	}
}
