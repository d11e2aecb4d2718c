package archtest

import (
	"slices"
	"strings"
	"testing"
)

const (
	maxLines    = 500 // a file holds one idea
	maxCmdLines = 150 // mains only wire
)

func TestPackagesHaveAComment(t *testing.T) {
	for _, p := range ours(t) {
		files := slices.DeleteFunc(sources(t, p), func(f file) bool { return f.generated })
		if len(files) == 0 {
			continue // the .proto file has the comment, and generated Go gets it detached from the package clause
		}
		if !slices.ContainsFunc(files, func(f file) bool { return f.syntax.Doc != nil }) {
			path, _ := local(p.ImportPath)
			t.Errorf("%s has no package comment", path)
		}
	}
}

func TestPackagesAreNamedForWhatTheyProvide(t *testing.T) {
	banned := []string{"base", "common", "helper", "helpers", "lib", "manager", "misc", "shared", "util", "utils"}
	for _, p := range ours(t) {
		path, _ := local(p.ImportPath)
		for word := range strings.SplitSeq(path, "/") {
			if slices.Contains(banned, word) {
				t.Errorf("%s: %q says nothing of what the package provides", path, word)
			}
		}
		if slices.Contains(banned, p.Name) {
			t.Errorf("%s: package %s says nothing of what it provides", path, p.Name)
		}
	}
}

func TestFilesAreShort(t *testing.T) {
	for _, p := range ours(t) {
		path, _ := local(p.ImportPath)
		limit := maxLines
		if under(path, "cmd") {
			limit = maxCmdLines
		}
		for _, f := range sources(t, p) {
			if !f.generated && f.lines >= limit {
				t.Errorf("%s has %d lines; under %d are allowed", f.path, f.lines, limit)
			}
		}
		for _, f := range tests(t, p) {
			if f.lines >= maxLines {
				t.Errorf("%s has %d lines; under %d are allowed", f.path, f.lines, maxLines)
			}
		}
	}
}

func TestPackagesThatStartGoroutinesCheckForLeaks(t *testing.T) {
	for _, p := range ours(t) {
		path, _ := local(p.ImportPath)
		if slices.Contains(p.Imports, "testing") {
			continue // a conformance suite: it runs inside the tests of others, under their check
		}
		starts := slices.ContainsFunc(sources(t, p), func(f file) bool { return startsGoroutine(f.syntax) })
		checked := slices.ContainsFunc(tests(t, p), func(f file) bool {
			return slices.Contains(uses(f.syntax), "go.uber.org/goleak.VerifyTestMain")
		})
		if starts && !checked {
			t.Errorf("%s starts goroutines; its tests need goleak.VerifyTestMain", path)
		}
	}
}

func TestNoCodeRunsBeforeMain(t *testing.T) {
	for _, p := range ours(t) {
		for _, f := range sources(t, p) {
			if f.generated {
				continue
			}
			for _, decl := range f.syntax.Decls {
				if isInit(decl) {
					t.Errorf("%s has an init function", f.path)
				}
			}
		}
	}
}
