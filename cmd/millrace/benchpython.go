package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/errkind"
)

// benchPython is the interpreter of the measured programs and their environment: this binary, the client in the source
// tree that the binary lies in, if it does, and none of the settings that this shell may have for other runs.
func (a *app) benchPython(python string) (env []string, found string, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, "", fmt.Errorf("finding this binary: %w", err)
	}
	cache, err := a.cachePath()
	if err != nil {
		return nil, "", err
	}
	root := filepath.Dir(filepath.Dir(self))
	if python == "" {
		python = "python3"
		if own := filepath.Join(root, ".cache/venv/bin/python"); isFile(own) {
			python = own
		}
	}
	if found, err = exec.LookPath(python); err != nil {
		return nil, "", errkind.Errorf(errkind.NotFound, "python: %w; --python names the interpreter", err)
	}
	path, _ := a.lookup("PYTHONPATH")
	if client := filepath.Join(root, "clients/python/src"); isFile(filepath.Join(client, "millrace/__init__.py")) {
		path = strings.TrimSuffix(client+string(os.PathListSeparator)+path, string(os.PathListSeparator))
	}
	env = slices.DeleteFunc(os.Environ(), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return strings.HasPrefix(name, "MILLRACE_") ||
			slices.Contains([]string{"PYTHONPATH", "OMP_NUM_THREADS", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}, name)
	})
	return append(env, "PYTHONPATH="+path, "MILLRACE_BIN="+self, "MILLRACE_CACHE_DIR="+cache), found, nil
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
