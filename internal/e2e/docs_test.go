package e2e

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// pages are the documents for users, by path from the root.
func pages(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, top := range []string{"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs", "bench/README.md", "clients/python/README.md"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || filepath.Ext(path) != ".md" {
				return err
			}
			name, err := filepath.Rel(root, path)
			out[name] = readFile(t, path)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// blocks are the fenced blocks of a page in a language.
func blocks(text, language string) []string {
	var out []string
	for _, m := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```$").FindAllStringSubmatch(text, -1) {
		out = append(out, m[1])
	}
	return out
}

// example is a place that has what the documents speak of: the demo's shards and a recipe for them.
func example(t *testing.T) *place {
	t.Helper()
	p := newPlace(t)
	shards(t, p.path("data", "demo"), 10, 8)
	p.write("recipe.yaml", "source: data/demo/train-{000000..000009}.tar\noperators:\n  - decode_image: {field: image}\n"+
		"  - random_resized_crop: {field: image, size: 16}\n")
	return p
}

func TestShellBlocksRun(t *testing.T) {
	ran := 0
	for name, text := range pages(t) {
		if strings.HasPrefix(name, "CONTRIBUTING") || strings.HasPrefix(name, "bench/") {
			continue // they set up a machine, or measure it
		}
		for i, script := range blocks(text, "sh") {
			ran++
			t.Run(fmt.Sprintf("%s/%d", name, i), func(t *testing.T) {
				p := example(t)
				mark := "E2E_ROLE=" + p.dir
				// What a block starts in the background goes on after it, so its output goes to a file, not into a pipe
				// whose end would have to be waited for.
				output, err := os.Create(p.path("output"))
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = output.Close() }()
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				c := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
				c.Dir, c.Env, c.Stdout, c.Stderr = p.dir, append(p.env, mark), output, output
				c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
				err = c.Run()
				for _, pid := range running(t, mark) {
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
				eventually(t, patience, "the end of what the block has started", func() bool { return len(running(t, mark)) == 0 })
				if err != nil {
					t.Errorf("%v\n%s\n%s", err, script, readFile(t, output.Name()))
				}
			})
		}
	}
	if ran == 0 {
		t.Error("no document has a shell block")
	}
}

func TestRecipesInDocumentsCanBePlanned(t *testing.T) {
	planned := 0
	for name, text := range pages(t) {
		for i, recipe := range blocks(text, "yaml") {
			if !strings.HasPrefix(recipe, "source:") {
				continue
			}
			planned++
			p := example(t)
			if a := p.millrace("plan", p.write("recipe.yaml", recipe)); a.code != 0 {
				t.Errorf("%s, recipe %d: %s", name, i, a.errors)
			}
		}
	}
	if planned == 0 {
		t.Error("no document has a recipe")
	}
}

func TestLinksLeadSomewhere(t *testing.T) {
	for name, text := range pages(t) {
		for _, m := range regexp.MustCompile(`\]\(([^)#\s]+)(#[^)\s]*)?\)`).FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(root, filepath.Dir(name), m[1])); err != nil {
				t.Errorf("%s links to %s, which is not there", name, m[1])
			}
		}
	}
}

// flagsOf reads flags and defaults out of a help text.
func flagsOf(help string) map[string]string {
	out := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^ +(?:-\w, |    )--([a-z-]+)(?: \w+)?  +(.*)$`).FindAllStringSubmatch(help, -1) {
		value := ""
		if d := regexp.MustCompile(`\(default "?([^"]*?)"?\)$`).FindStringSubmatch(m[2]); d != nil {
			value = d[1]
		}
		out[m[1]] = value
	}
	delete(out, "help")
	delete(out, "version")
	return out
}

func TestOperationsListsEveryFlag(t *testing.T) {
	p := newPlace(t)
	sections := map[string]string{}
	for _, part := range strings.Split(readFile(t, filepath.Join(root, "docs/operations.md")), "\n### ")[1:] {
		title, text, _ := strings.Cut(part, "\n")
		text, _, _ = strings.Cut(text, "\n## ")
		sections[title] = text
	}
	listed := func(title string) map[string]string {
		out := map[string]string{}
		for _, m := range regexp.MustCompile("(?m)^\\| `--([a-z-]+)` \\| ([^|]*) ?\\|").FindAllStringSubmatch(sections[title], -1) {
			out[m[1]] = strings.Trim(m[2], "` ")
		}
		return out
	}
	compare := func(title string, help map[string]string) {
		t.Helper()
		doc := listed(title)
		for name, value := range help {
			have, ok := doc[name]
			switch {
			case !ok:
				t.Errorf("%s: --%s is not in docs/operations.md", title, name)
			case have == "cores": // differs from machine to machine
			case have != value:
				t.Errorf("%s: docs/operations.md says that --%s is %q by default, the program %q", title, name, have, value)
			}
		}
		for name := range doc {
			if _, ok := help[name]; !ok {
				t.Errorf("%s: docs/operations.md lists --%s, which does not exist", title, name)
			}
		}
	}
	global := flagsOf(p.must("--help"))
	compare("All commands", global)
	for _, command := range []string{"local", "dispatcher", "worker", "sidecar", "index", "reshard", "plan", "preview", "run", "status", "top", "stop", "audit", "batch", "lineage", "rederive"} {
		own, _, _ := strings.Cut(p.must(command, "--help"), "Global Flags:")
		compare("millrace "+command, flagsOf(own))
	}
	small := p.run(nil, sidecar(), "--help")
	want := listed("millrace sidecar")
	maps.Copy(want, map[string]string{"log-level": "warn", "json": "", "tls-cert": "", "tls-key": "", "tls-ca": "", "tls-name": ""})
	for name, value := range flagsOf(small.out + small.errors) {
		if have, ok := want[name]; !ok || have != value {
			t.Errorf("millrace-sidecar: docs/operations.md says that --%s is %q by default, the program %q", name, have, value)
		}
		delete(want, name)
	}
	for name := range want {
		t.Errorf("millrace-sidecar has no --%s", name)
	}
}

// paths are the files that a page names in code spans.
func paths(text string) []string {
	var out []string
	for _, m := range regexp.MustCompile("`([A-Za-z][\\w./-]*/[\\w.-]+\\.[a-z]+|[A-Za-z][\\w./-]*/)`").FindAllStringSubmatch(text, -1) {
		out = append(out, m[1])
	}
	return out
}

func TestArchitectureNamesWhatIsThere(t *testing.T) {
	text := readFile(t, filepath.Join(root, "docs/architecture.md"))
	named := paths(text)
	if len(named) < 40 {
		t.Errorf("only %d files are named", len(named))
	}
	for _, path := range named {
		if _, err := os.Stat(filepath.Join(root, path)); err != nil {
			t.Errorf("docs/architecture.md names %s, which is not there", path)
		}
	}
	// A test is named after its file: `a/b_test.go`: `TestOne`, `TestTwo`.
	tests := 0
	for line := range strings.SplitSeq(text, "\n") {
		var file string
		for _, m := range regexp.MustCompile("`([\\w./-]+_test\\.(?:go|py)|test_\\w+|Test\\w+|[\\w./-]+/test_\\w+\\.py)`").FindAllStringSubmatch(line, -1) {
			if strings.Contains(m[1], "/") {
				file = readFile(t, filepath.Join(root, m[1]))
				continue
			}
			tests++
			if !regexp.MustCompile(`(?m)^(func|def) ` + m[1] + `\(`).MatchString(file) {
				t.Errorf("docs/architecture.md names %s in a file that does not have it: %s", m[1], line)
			}
		}
	}
	if tests < 10 {
		t.Errorf("only %d tests are named", tests)
	}
}

func TestArchitectureMapsEveryPackage(t *testing.T) {
	_, table, found := strings.Cut(readFile(t, filepath.Join(root, "docs/architecture.md")), "## Packages")
	if !found {
		t.Fatal("docs/architecture.md has no map of packages")
	}
	listed := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([\\w./-]+)` \\|").FindAllStringSubmatch(table, -1) {
		listed[m[1]] = true
	}
	have := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if entry.IsDir() && name != "." && strings.HasPrefix(entry.Name(), ".") || name == "internal/tools" {
			return fs.SkipDir
		}
		if filepath.Ext(path) == ".go" && !strings.HasSuffix(path, "_test.go") {
			have[filepath.ToSlash(filepath.Dir(name))] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(have)) {
		if !listed[name] {
			t.Errorf("docs/architecture.md does not list package %s", name)
		}
	}
	for name := range listed {
		if !have[name] {
			t.Errorf("docs/architecture.md lists %s, which is no package", name)
		}
	}
}
