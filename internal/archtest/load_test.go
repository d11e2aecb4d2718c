package archtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/millrace/millrace"

// root is the folder of the module, seen from this package.
var root = filepath.Join("..", "..")

// listed is the part of `go list -json` that the rules speak of.
type listed struct {
	ImportPath   string
	Dir          string
	Name         string
	Standard     bool
	GoFiles      []string
	CgoFiles     []string
	IgnoredFiles []string `json:"IgnoredGoFiles"`
	TestGoFiles  []string
	XTestGoFiles []string
	Imports      []string
	Deps         []string
}

// local is the path of a package inside the module ("loader/order"), and whether it belongs to it.
func local(importPath string) (string, bool) {
	if importPath == module {
		return ".", true
	}
	return strings.CutPrefix(importPath, module+"/")
}

// under reports whether a path inside the module is one of folders or lies below one.
func under(path string, folders ...string) bool {
	return slices.ContainsFunc(folders, func(folder string) bool {
		return path == folder || strings.HasPrefix(path, folder+"/")
	})
}

// everything lists the packages of the module and all that they depend on, by import path.
var everything = sync.OnceValues(func() (map[string]*listed, error) {
	cmd := exec.CommandContext(context.Background(), "go", "list", "-e", "-deps", "-json", "./...")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, errors.New("go list: " + err.Error() + ": " + stderr.String())
	}
	all := map[string]*listed{}
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		p := &listed{}
		if err := decoder.Decode(p); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all[p.ImportPath] = p
	}
})

// packages are all packages, with their dependencies, by import path.
func packages(t *testing.T) map[string]*listed {
	t.Helper()
	all, err := everything()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// ours are the packages of the module, in order of path.
func ours(t *testing.T) []*listed {
	t.Helper()
	var out []*listed
	for _, p := range packages(t) {
		if _, ok := local(p.ImportPath); ok {
			out = append(out, p)
		}
	}
	if len(out) == 0 {
		t.Fatal("go list found no package of the module")
	}
	slices.SortFunc(out, func(a, b *listed) int { return strings.Compare(a.ImportPath, b.ImportPath) })
	return out
}

// reach is the set of packages of the module that p links, p included.
func reach(t *testing.T, p *listed) []*listed {
	t.Helper()
	all := packages(t)
	out := []*listed{p}
	for _, dep := range p.Deps {
		if _, ok := local(dep); ok {
			out = append(out, all[dep])
		}
	}
	return out
}

// file is one parsed Go file.
type file struct {
	path      string // from the root of the module
	syntax    *ast.File
	lines     int
	generated bool
}

// parse reads the named files of a package, whatever their build constraints say.
func parse(t *testing.T, p *listed, names ...[]string) []file {
	t.Helper()
	var out []file
	for _, name := range slices.Concat(names...) {
		path := filepath.Join(p.Dir, name)
		src, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		syntax, err := parser.ParseFile(token.NewFileSet(), path, src, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		dir, _ := local(p.ImportPath)
		out = append(out, file{
			path:      filepath.Join(dir, name),
			syntax:    syntax,
			lines:     bytes.Count(src, []byte("\n")),
			generated: ast.IsGenerated(syntax),
		})
	}
	return out
}

// sources are the non-test files of p, on every platform and with or without cgo.
func sources(t *testing.T, p *listed) []file {
	t.Helper()
	ignored := slices.DeleteFunc(slices.Clone(p.IgnoredFiles), func(name string) bool {
		return strings.HasSuffix(name, "_test.go")
	})
	return parse(t, p, p.GoFiles, p.CgoFiles, ignored)
}

// tests are the test files of p, those of its external test package included.
func tests(t *testing.T, p *listed) []file {
	t.Helper()
	return parse(t, p, p.TestGoFiles, p.XTestGoFiles)
}

// importNames maps the name by which a file knows a package to its path; blank and dot imports are left out.
func importNames(f *ast.File) map[string]string {
	names := map[string]string{}
	for _, spec := range f.Imports {
		path := strings.Trim(spec.Path.Value, `"`)
		name := path[strings.LastIndex(path, "/")+1:]
		if name == "v2" { // math/rand/v2 is called rand
			name = filepath.Base(strings.TrimSuffix(path, "/v2"))
		}
		if spec.Name != nil {
			name = spec.Name.Name
		}
		names[name] = path
	}
	return names
}

// uses are the package-level names of other packages that a file mentions, as "path.Name".
func uses(f *ast.File) []string {
	names := importNames(f)
	found := map[string]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if id, ok := sel.X.(*ast.Ident); ok && names[id.Name] != "" {
				found[names[id.Name]+"."+sel.Sel.Name] = true
			}
		}
		return true
	})
	return slices.Sorted(maps.Keys(found))
}

// startsGoroutine reports whether a file has a go statement or hands a function to the Go method of a group.
func startsGoroutine(f *ast.File) bool {
	found := false
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			found = true
		case *ast.CallExpr:
			if sel, ok := n.Fun.(*ast.SelectorExpr); ok && len(n.Args) == 1 && (sel.Sel.Name == "Go" || sel.Sel.Name == "TryGo") {
				found = true
			}
		}
		return !found
	})
	return found
}
