package archtest

import (
	"slices"
	"strings"
	"testing"
)

// pure packages decide and compute; what they know of the world is handed to them.
var pure = []string{"loader/order", "preprocess/lineage", "preprocess/exec"}

// rpc are the packages that serve or call over the network, or translate for those that do.
var rpc = []string{
	"cmd", "bench", "feed", "internal/e2e", "internal/grpcerr", "internal/service", "internal/testkit",
	"preprocess/dispatch", "preprocess/partition", "preprocess/worker", "proto",
}

// layers says for each layer what it may link of the module besides itself, and what it may not.
var layers = []struct {
	layer string
	may   []string // empty: anything but mayNot
	not   []string
}{
	{layer: "loader", not: []string{"preprocess", "feed", "cmd", "bench"}},
	{layer: "preprocess", not: []string{"feed", "cmd", "bench"}},
	{layer: "feed", may: []string{"feed", "loader/order", "preprocess/lineage", "preprocess/partition", "proto", "internal"}},
	{layer: "cmd/millrace-sidecar", may: []string{
		"cmd/millrace-sidecar", "feed", "loader/order", "preprocess/lineage", "preprocess/partition", "proto", "internal",
	}},
	{layer: "proto", may: []string{"proto"}},
}

func TestLayersLinkOnlyWhatLiesBelow(t *testing.T) {
	for _, rule := range layers {
		for _, p := range ours(t) {
			from, _ := local(p.ImportPath)
			if !under(from, rule.layer) {
				continue
			}
			for _, q := range reach(t, p) {
				to, _ := local(q.ImportPath)
				if under(to, rule.not...) || (len(rule.may) > 0 && !under(to, rule.may...)) {
					t.Errorf("%s links %s, which %s may not", from, to, rule.layer)
				}
			}
		}
	}
}

// The image beside trainers stays small, static and free of credentials.
func TestFeedLinksNoOperatorNoStoreClientAndNoCgo(t *testing.T) {
	all := packages(t)
	for _, p := range ours(t) {
		from, _ := local(p.ImportPath)
		if !under(from, "feed", "cmd/millrace-sidecar") {
			continue
		}
		for _, path := range append([]string{p.ImportPath}, p.Deps...) {
			dep := all[path]
			if strings.HasPrefix(path, "github.com/aws/") {
				t.Errorf("%s links %s", from, path)
			}
			// The standard library has its own cgo variants, which CGO_ENABLED=0 turns off.
			if dep != nil && !dep.Standard && (len(dep.CgoFiles) > 0 || slices.Contains(dep.Imports, "C")) {
				t.Errorf("%s links %s, which uses cgo", from, path)
			}
			if strings.HasPrefix(path, "golang.org/x/image/") || strings.HasPrefix(path, "image/") {
				t.Errorf("%s links the codec %s", from, path)
			}
		}
	}
}

func TestPurePackagesImportNothingImpure(t *testing.T) {
	banned := []string{"net", "os", "log", "syscall", "math/rand", "crypto/rand", "testing"}
	foreign := []string{"google.golang.org/", "github.com/apache/arrow-go/", "github.com/prometheus/", module + "/proto"}
	all := packages(t)
	for _, path := range pure {
		p := all[module+"/"+path]
		if p == nil {
			t.Errorf("%s is gone; mend the list of pure packages", path)
			continue
		}
		for _, q := range reach(t, p) {
			from, _ := local(q.ImportPath)
			for _, imported := range q.Imports {
				if under(imported, banned...) {
					t.Errorf("%s imports %s, and %s is pure", from, imported, path)
				}
			}
		}
		for _, dep := range p.Deps {
			if slices.ContainsFunc(foreign, func(prefix string) bool { return strings.HasPrefix(dep, prefix) }) {
				t.Errorf("%s links %s; it is pure", path, dep)
			}
		}
	}
}

func TestPurePackagesReadNoClockAndStartNoGoroutine(t *testing.T) {
	clock := []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTicker", "NewTimer"}
	all := packages(t)
	for _, path := range pure {
		p := all[module+"/"+path]
		if p == nil {
			continue // reported by TestPurePackagesImportNothingImpure
		}
		for _, q := range reach(t, p) {
			for _, f := range sources(t, q) {
				for _, use := range uses(f.syntax) {
					if name, ok := strings.CutPrefix(use, "time."); ok && slices.Contains(clock, name) {
						t.Errorf("%s uses %s; %s is pure", f.path, use, path)
					}
				}
				if startsGoroutine(f.syntax) {
					t.Errorf("%s starts a goroutine; %s is pure", f.path, path)
				}
			}
		}
	}
}

func TestForeignClientsStayAtTheRim(t *testing.T) {
	rims := []struct {
		prefix string
		may    []string
	}{
		{"github.com/aws/", []string{"loader/store/s3store"}},
		{"google.golang.org/grpc", rpc},
		{"github.com/spf13/cobra", []string{"cmd"}},
		{"flag", []string{"cmd"}},
	}
	for _, p := range ours(t) {
		from, _ := local(p.ImportPath)
		for _, imported := range p.Imports {
			for _, rim := range rims {
				if rim.prefix == "flag" && p.Name == "main" {
					continue
				}
				if (imported == rim.prefix || strings.HasPrefix(imported, strings.TrimSuffix(rim.prefix, "/")+"/")) && !under(from, rim.may...) {
					t.Errorf("%s imports %s; only %s may", from, imported, strings.Join(rim.may, ", "))
				}
			}
		}
	}
}

func TestMainsAloneReadTheEnvironmentAndExit(t *testing.T) {
	banned := []string{"os.Exit", "os.Getenv", "os.LookupEnv", "os.Environ", "os.Args"}
	for _, p := range ours(t) {
		if path, _ := local(p.ImportPath); under(path, "cmd") || p.Name == "main" {
			continue
		}
		for _, f := range sources(t, p) {
			for _, use := range uses(f.syntax) {
				if slices.Contains(banned, use) {
					t.Errorf("%s uses %s; only mains may", f.path, use)
				}
			}
		}
	}
}
