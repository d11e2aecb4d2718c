package scenario

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/bench/peers"
	"github.com/millrace/millrace/internal/errkind"
)

// Host is the machine that a result is from.
type Host struct {
	CPU string `json:"cpu"`
	// Cores are those that this process may use.
	Cores     int    `json:"cores"`
	MemoryMiB uint64 `json:"memory_mb"`
	Kernel    string `json:"kernel"`
	Arch      string `json:"arch"`
}

func thisHost() Host {
	h := Host{Cores: runtime.NumCPU(), Arch: runtime.GOARCH}
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		h.CPU = modelName(text)
	}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		h.MemoryMiB = info.Totalram * uint64(info.Unit) >> 20
	}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		h.Kernel = unix.ByteSliceToString(name.Release[:])
	}
	return h
}

// modelName finds the name of the processor in /proc/cpuinfo; not every architecture tells it.
func modelName(text []byte) string {
	for line := range bytes.Lines(text) {
		key, value, _ := bytes.Cut(line, []byte(":"))
		if string(bytes.TrimSpace(key)) == "model name" {
			return string(bytes.TrimSpace(value))
		}
	}
	return "unknown"
}

// versionsOf asks the interpreter for the versions of modules, all of which must be there.
func versionsOf(ctx context.Context, python string, env []string, dir string, modules ...string) (map[string]any, error) {
	cmd := exec.CommandContext(ctx, python, append([]string{filepath.Join(dir, peers.Versions)}, modules...)...) //nolint:gosec // The user names the interpreter.
	cmd.Env = env
	out, err := cmd.Output()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.As(err, &exit):
		lines := strings.Split(strings.TrimSpace(string(exit.Stderr)), "\n")
		return nil, errkind.Errorf(errkind.Invalid, "%s: %s; make setup-demo installs what the benchmark needs, --python names another interpreter", python, lines[len(lines)-1])
	case err != nil:
		return nil, errkind.Errorf(errkind.Invalid, "starting %s: %w; --python names another interpreter", python, err)
	}
	var versions map[string]any
	if err := json.Unmarshal(out, &versions); err != nil {
		return nil, errkind.Errorf(errkind.Internal, "%s said %q instead of versions: %w", python, out, err)
	}
	return versions, nil
}
