package optest

import (
	"testing"

	"github.com/millrace/millrace/preprocess/op"
	"github.com/millrace/millrace/preprocess/op/imagekernel"
)

// The parameter pillow chooses between the pass orders of Pillow 13 and of earlier versions. The hashes are those of
// Pillow 13.0.0 and 12.3.0 for a resize that shrinks the height far more than the width.
func TestPillowVersions(t *testing.T) {
	if !imagekernel.Exact {
		return // The hashes are of a JPEG.
	}
	file := inputs(t)["f-420-b.jpg"]
	for filter, want := range map[string]map[string]string{
		"bilinear": {">=13": "92e0b3de0b72", "<13": "ccf6f2d997d8"},
		"bicubic":  {">=13": "ceec6d90867d", "<13": "6409dc549ed3"},
		"lanczos":  {">=13": "0306cece6cb3", "<13": "5c450a58f3aa"},
	} {
		for version, hash := range want {
			decode, err := op.Build("decode_image", 0, map[string]any{"field": "image"})
			if err != nil {
				t.Fatal(err)
			}
			resize, err := op.Build("resize", 1, map[string]any{"field": "image", "size": []any{20, 150}, "interpolation": filter, "pillow": version})
			if err != nil {
				t.Fatal(err)
			}
			pixels, _ := apply(t, op.Fuse([]op.Operator{decode, resize}), file)
			if got := Hash(pixels); got != hash {
				t.Errorf("%s %s: got %s, want %s", filter, version, got, hash)
			}
		}
	}
}
