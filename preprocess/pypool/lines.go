package pypool

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
)

// maxLine bounds a line that is logged; longer ones are cut in two.
const maxLine = 8 << 10

// lines logs what a process writes, line by line, and remembers the last of them.
type lines struct {
	log *slog.Logger

	mu   sync.Mutex
	rest []byte
	last []string // lines, at most keptLines
}

// keptLines is how many lines are remembered: enough for what Python says of a crash.
const keptLines = 12

// Write takes more of the output.
func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(b)
	for len(b) > 0 {
		line, rest, ended := bytes.Cut(b, []byte("\n"))
		if room := maxLine - len(l.rest); len(line) > room {
			line, rest, ended = b[:room], b[room:], true
		}
		l.rest = append(l.rest, line...)
		if !ended {
			break
		}
		l.put()
		b = rest
	}
	return n, nil
}

// put logs the line that is complete.
func (l *lines) put() {
	text := strings.ToValidUTF8(strings.TrimRight(string(l.rest), "\r "), "?")
	l.rest = l.rest[:0]
	if text == "" {
		return
	}
	l.log.Info("a Python operator says", "text", text)
	if len(l.last) == keptLines {
		l.last = l.last[1:]
	}
	l.last = append(l.last, text)
}

// words are the last lines, that which has not ended among them.
func (l *lines) words() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.rest) > 0 {
		l.put()
	}
	return append([]string(nil), l.last...)
}
