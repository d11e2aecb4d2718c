package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"go.uber.org/goleak"
)

// root is the top of the source tree, from this package's folder.
const root = "../.."

func TestMain(m *testing.M) {
	if err := checkBinaries(); err != nil {
		fmt.Fprintf(os.Stderr, "error: %v\n", err)
		os.Exit(1)
	}
	code := m.Run()
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintf(os.Stderr, "error: a test left goroutines behind: %v\n", err)
		code = 1
	}
	os.Exit(code)
}

// millrace and sidecar are the paths of the binaries.
func millrace() string {
	if path := os.Getenv("MILLRACE_BIN"); path != "" {
		return path
	}
	path, err := filepath.Abs(filepath.Join(root, "bin", "millrace"))
	if err != nil {
		return "bin/millrace"
	}
	return path
}

func sidecar() string { return filepath.Join(filepath.Dir(millrace()), "millrace-sidecar") }

// checkBinaries says how to make what is missing: a test that is left out would look like one that passed.
func checkBinaries() error {
	for _, path := range []string{millrace(), sidecar()} {
		info, err := os.Stat(path)
		if err != nil {
			return fmt.Errorf("the tests drive the real binaries: %w; run `make build` or set MILLRACE_BIN", err)
		}
		if !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
			return fmt.Errorf("%s (mode %s) is no program; run `make build` or set MILLRACE_BIN", path, strconv.FormatUint(uint64(info.Mode()), 8))
		}
	}
	return nil
}
