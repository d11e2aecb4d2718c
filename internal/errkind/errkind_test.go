package errkind_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/millrace/millrace/internal/errkind"
)

func TestOfFindsTheOutermostKindThroughWrapping(t *testing.T) {
	base := errors.New("disk on fire")
	inner := errkind.Errorf(errkind.Unavailable, "reading shard 3: %w", base)
	wrapped := fmt.Errorf("partition 0/7: %w", inner)
	for _, c := range []struct {
		name string
		err  error
		want errkind.Kind
	}{
		{"nil", nil, errkind.Unknown},
		{"plain", base, errkind.Unknown},
		{"direct", inner, errkind.Unavailable},
		{"wrapped", wrapped, errkind.Unavailable},
		{"reclassed", errkind.With(errkind.BadData, wrapped), errkind.BadData},
		{"context", fmt.Errorf("waiting: %w", context.DeadlineExceeded), errkind.Canceled},
	} {
		if got := errkind.Of(c.err); got != c.want {
			t.Errorf("%s: Of = %v, want %v", c.name, got, c.want)
		}
	}
	if !errors.Is(wrapped, base) {
		t.Error("wrapping with a kind hides the cause")
	}
	if errkind.With(errkind.Invalid, nil) != nil {
		t.Error("With(kind, nil) is not nil")
	}
}

func TestEveryKindHasItsOwnName(t *testing.T) {
	seen := map[string]errkind.Kind{}
	for k := errkind.Unknown; k <= errkind.Canceled; k++ {
		if other, dup := seen[k.String()]; dup {
			t.Errorf("%d and %d share the name %q", k, other, k)
		}
		seen[k.String()] = k
		if back := errkind.Parse(k.String()); back != k {
			t.Errorf("%q is read as %v", k.String(), back)
		}
	}
}
