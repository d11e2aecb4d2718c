package store_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/store"
)

func TestExpandWritesOutPatterns(t *testing.T) {
	for pattern, want := range map[string]string{
		"plain.tar":                      "plain.tar",
		"a-{000008..000011}.tar":         "a-000008.tar a-000009.tar a-000010.tar a-000011.tar",
		"{8..11}":                        "8 9 10 11",
		"{3..1}":                         "3 2 1",
		"{0..10..5}":                     "0 5 10",
		"{-1..1}":                        "-1 0 1",
		"{08..10}":                       "08 09 10",
		"{a..c}":                         "a b c",
		"{train,val}/x":                  "train/x val/x",
		"{a,b}{1..2}":                    "a1 a2 b1 b2",
		"{x,{1..2}z,}":                   "x 1z 2z ",
		"run{1}/a":                       "run{1}/a",
		"{}":                             "{}",
		"{a{1,2}}":                       "{a1} {a2}",
		`\{1..2\}`:                       "{1..2}",
		`{a\,b,c}`:                       "a,b c",
		`back\slash`:                     `back\slash`,
		"s3://b/t-{00..01}.tar,not,list": "s3://b/t-00.tar,not,list s3://b/t-01.tar,not,list",
	} {
		got, err := store.Expand(pattern)
		if err != nil {
			t.Errorf("Expand(%q): %v", pattern, err)
			continue
		}
		if diff := cmp.Diff(strings.Split(want, " "), got); diff != "" {
			t.Errorf("Expand(%q) (-want +got):\n%s", pattern, diff)
		}
	}
}

func TestExpandRefusesWhatItCannotMean(t *testing.T) {
	for pattern, want := range map[string]string{
		"a-{00..12":                 "never closed",
		"a-00..12}":                 "without an opening",
		"{00..x}":                   "not a range",
		"{1..2..0}":                 "step",
		"{1..2..3..4}":              "not a range",
		"{0..1000000}":              "more than 1000000",
		"{0..9999}{0..9999}":        "more than 1000000",
		"{1..99999999999999999999}": "not a range",
		strings.Repeat("{a,", 40):   "nest deeper",
		"{1..999999}" + strings.Repeat("x", 2000): "too long",
	} {
		_, err := store.Expand(pattern)
		if errkind.Of(err) != errkind.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("Expand(%q): %v, want Invalid with %q", pattern, err, want)
		}
	}
	if got, err := store.Expand("{1..1000000}"); err != nil || len(got) != store.MaxExpansion {
		t.Errorf("the largest expansion: %d URIs, %v", len(got), err)
	}
}

func FuzzExpand(f *testing.F) {
	for _, s := range []string{"a", "{1..3}", "{a,b{1..2}}", "{}", "{{{", `\{`, "{-9..9..4}", "{a..z}{0..9}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, pattern string) {
		got, err := store.Expand(pattern)
		if err != nil {
			if errkind.Of(err) != errkind.Invalid {
				t.Errorf("Expand(%q): %v is not Invalid", pattern, err)
			}
			return
		}
		if len(got) == 0 || len(got) > store.MaxExpansion {
			t.Errorf("Expand(%q) has %d URIs", pattern, len(got))
		}
	})
}
