package archtest

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// reason is a line of docs/dependencies.md: a module in a code span, and after it why it is there.
var reason = regexp.MustCompile("(?m)^\\| `([^` ]+)` \\| *(\\S.*\\S) *\\|$")

func TestEachDirectDependencyHasAReason(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join(root, "docs", "dependencies.md"))
	if err != nil {
		t.Fatal(err)
	}
	reasons := map[string]bool{}
	for _, m := range reason.FindAllStringSubmatch(string(doc), -1) {
		if reasons[m[1]] {
			t.Errorf("docs/dependencies.md gives two reasons for %s", m[1])
		}
		reasons[m[1]] = true
	}

	cmd := exec.CommandContext(t.Context(), "go", "mod", "edit", "-json")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go mod edit -json: %v", err)
	}
	var mod struct {
		Require []struct {
			Path     string
			Indirect bool
		}
	}
	if err := json.Unmarshal(out, &mod); err != nil {
		t.Fatal(err)
	}
	required := map[string]bool{}
	for _, r := range mod.Require {
		required[r.Path] = true
		if !r.Indirect && !reasons[r.Path] {
			t.Errorf("docs/dependencies.md has no reason for %s", r.Path)
		}
	}
	for path := range reasons {
		if !required[path] {
			t.Errorf("docs/dependencies.md gives a reason for %s, which go.mod does not require", path)
		}
	}
}
