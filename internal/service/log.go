package service

import (
	"io"
	"log/slog"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/nearest"
)

// NewLogger writes logs as text, or as JSON for machines, at a level: debug, info, warn or error.
func NewLogger(w io.Writer, level string, asJSON bool) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, errkind.Errorf(errkind.Invalid, "unknown log level %q%s", level, nearest.Hint(level, []string{"debug", "info", "warn", "error"}))
	}
	opts := &slog.HandlerOptions{Level: l}
	if asJSON {
		return slog.New(slog.NewJSONHandler(w, opts)), nil
	}
	return slog.New(slog.NewTextHandler(w, opts)), nil
}
