package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"testing"
)

func isInit(decl ast.Decl) bool {
	f, ok := decl.(*ast.FuncDecl)
	return ok && f.Recv == nil && f.Name.Name == "init"
}

func scan(t *testing.T, src string) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "a.go", src, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// The rules are worth what the scanner finds, so it is tested on the cases that matter.
func TestScannerFindsGoroutines(t *testing.T) {
	for src, want := range map[string]bool{
		"package a\nfunc f() { go f() }":                              true,
		"package a\nfunc f(g group) { g.Go(f) }":                      true,
		"package a\nfunc f(g group) { if true { g.TryGo(f) } }":       true,
		"package a\nfunc f(g group) { g.Run(f); g.Go() }":             false,
		"package a\n// go f()\nfunc f() string { return \"go f()\" }": false,
	} {
		if got := startsGoroutine(scan(t, src)); got != want {
			t.Errorf("startsGoroutine(%q) = %v", src, got)
		}
	}
}

func TestScannerSeesThroughImportNames(t *testing.T) {
	f := scan(t, "package a\nimport (\n\tclock \"time\"\n\t\"math/rand/v2\"\n)\nvar x = clock.Now()\nvar y = rand.Int()\nvar z = other.Now")
	want := []string{"math/rand/v2.Int", "time.Now"}
	if got := uses(f); !slices.Equal(got, want) {
		t.Errorf("uses = %v, want %v", got, want)
	}
}
