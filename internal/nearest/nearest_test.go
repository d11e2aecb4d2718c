package nearest_test

import (
	"testing"

	"github.com/millrace/millrace/internal/nearest"
)

func TestNameIsWhatWasMeant(t *testing.T) {
	known := []string{"size", "scale", "ratio", "interpolation", "field"}
	for _, c := range []struct{ given, want string }{
		{"scal", "scale"},
		{"sacle", "scale"},
		{"interpolaton", "interpolation"},
		{"Size", "size"},
		{"brightness", ""},
		{"", ""},
	} {
		if got := nearest.Name(c.given, known); got != c.want {
			t.Errorf("Name(%q) = %q, want %q", c.given, got, c.want)
		}
	}
}

func TestHintListsAllWhenNothingIsNear(t *testing.T) {
	if got, want := nearest.Hint("scal", []string{"scale", "size"}), `; did you mean "scale"?`; got != want {
		t.Errorf("Hint = %q, want %q", got, want)
	}
	if got, want := nearest.Hint("brightness", []string{"size", "field"}), "; known: field, size"; got != want {
		t.Errorf("Hint = %q, want %q", got, want)
	}
	if got := nearest.Hint("x", nil); got != "" {
		t.Errorf("Hint without candidates = %q", got)
	}
}
