// Package peers holds the Python programs that take batches in a benchmark: one for Millrace and one for each
// loader that it is compared with. They speak the protocol that consume.py describes.
package peers

import (
	"embed"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

//go:embed *.py
var scripts embed.FS

// Names of the programs.
const (
	Millrace = "millrace_side.py"
	Torch    = "torch_side.py"
	Versions = "versions.py"
	Kernels  = "kernel_side.py"
	Images   = "kernel_images.py"
	Ray      = "ray_side.py"
	// RingTrainer and TorchTrainer take batches that are ready, see trainer.py.
	RingTrainer  = "ring_trainer.py"
	TorchTrainer = "torch_trainer.py"
)

// Unpack writes the programs to the directory dir.
func Unpack(dir string) error {
	names, err := fs.Glob(scripts, "*.py")
	if err != nil {
		return fmt.Errorf("listing the programs: %w", err)
	}
	for _, name := range names {
		text, err := scripts.ReadFile(name)
		if err != nil {
			return fmt.Errorf("reading program %s: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			return fmt.Errorf("unpacking program %s: %w", name, err)
		}
	}
	return nil
}
