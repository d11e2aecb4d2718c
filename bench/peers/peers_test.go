package peers_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/millrace/millrace/bench/peers"
)

func TestUnpackWritesEveryProgramAndWhatItImports(t *testing.T) {
	dir := t.TempDir()
	if err := peers.Unpack(dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{peers.Millrace, peers.Torch, peers.Versions, peers.Kernels, peers.Images, "consume.py", peers.RingTrainer, peers.TorchTrainer, "trainer.py"} {
		want, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || string(got) != string(want) {
			t.Errorf("%s: unpacked %d bytes, %v; want the %d of the source", name, len(got), err, len(want))
		}
	}
}

func TestUnpackNeedsADirectory(t *testing.T) {
	if err := peers.Unpack(filepath.Join(t.TempDir(), "gone")); err == nil {
		t.Error("unpacking into a directory that is not there succeeded")
	}
}
