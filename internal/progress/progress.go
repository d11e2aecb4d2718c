// Package progress shows how far long work is: a bar on a terminal, a line now and then elsewhere.
package progress

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// State is how far the work is.
type State struct {
	// Done of Total units; Total 0 means unknown.
	Done, Total int64
	// Detail is shown after the counts: "12,345 samples, 1.2 GB".
	Detail string
}

// Bar shows one piece of work. It is safe for concurrent use.
type Bar struct {
	mu       sync.Mutex
	out      io.Writer
	terminal bool
	width    int
	what     string
	unit     string
	started  time.Time
	shown    time.Time
	last     State
	closed   bool
}

// Pauses between two drawings.
const (
	terminalPause = 100 * time.Millisecond
	linePause     = 10 * time.Second
)

// New is a bar for what, counted in unit ("shards"), on out. Only a terminal gets a moving bar.
func New(out io.Writer, what, unit string) *Bar {
	b := &Bar{out: out, what: what, unit: unit, started: time.Now(), width: 80}
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		b.terminal = true
		if w, _, err := term.GetSize(int(f.Fd())); err == nil && w > 20 {
			b.width = w
		}
	}
	return b
}

// Set shows a new state, if enough time has passed since the last one was drawn.
func (b *Bar) Set(s State) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last = s
	pause := linePause
	if b.terminal {
		pause = terminalPause
	}
	if b.closed || time.Since(b.shown) < pause {
		return
	}
	if b.shown.IsZero() && !b.terminal && time.Since(b.started) < linePause {
		return // short work needs no lines
	}
	b.shown = time.Now()
	b.draw()
}

// Close draws the last state for good, if anything was drawn before.
func (b *Bar) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	b.closed = true
	if b.shown.IsZero() {
		return
	}
	b.draw()
	if b.terminal {
		_, _ = fmt.Fprintln(b.out)
	}
}

func (b *Bar) draw() {
	line := Line(b.what, b.unit, b.last, time.Since(b.started), b.terminal)
	if b.terminal {
		if runes := []rune(line); len(runes) > b.width-1 {
			line = string(runes[:b.width-1])
		}
		_, _ = fmt.Fprintf(b.out, "\r\x1b[K%s", line)
		return
	}
	_, _ = fmt.Fprintln(b.out, line)
}

// Line is the text of a state after some time: bar (if asked for), counts, rate and time left.
func Line(what, unit string, s State, elapsed time.Duration, withBar bool) string {
	var b strings.Builder
	b.WriteString(what)
	if withBar && s.Total > 0 {
		const cells = 24
		full := int(min(s.Done, s.Total) * cells / s.Total)
		b.WriteString(" " + strings.Repeat("█", full) + strings.Repeat("░", cells-full))
	}
	if s.Total > 0 {
		fmt.Fprintf(&b, " %s of %s %s", Count(s.Done), Count(s.Total), unit)
	} else {
		fmt.Fprintf(&b, " %s %s", Count(s.Done), unit)
	}
	if s.Detail != "" {
		b.WriteString(" · " + s.Detail)
	}
	if seconds := elapsed.Seconds(); seconds > 0 && s.Done > 0 {
		rate := float64(s.Done) / seconds
		fmt.Fprintf(&b, " · %.1f %s/s", rate, unit)
		if s.Total > s.Done {
			left := time.Duration(float64(s.Total-s.Done) / rate * float64(time.Second)).Round(time.Second)
			fmt.Fprintf(&b, " · %s left", left)
		}
	}
	return b.String()
}

// Count writes n with a comma between groups of three digits.
func Count(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Size writes a number of bytes with three digits and a decimal unit: "148 GB", "98.1 kB".
func Size(n int64) string {
	const units = "kMGTPE"
	if n < 1000 {
		return fmt.Sprintf("%d B", n)
	}
	v, i := float64(n)/1000, 0
	for v >= 999.5 && i < len(units)-1 {
		v, i = v/1000, i+1
	}
	switch {
	case v < 9.995:
		return fmt.Sprintf("%.2f %cB", v, units[i])
	case v < 99.95:
		return fmt.Sprintf("%.1f %cB", v, units[i])
	}
	return fmt.Sprintf("%.0f %cB", v, units[i])
}
