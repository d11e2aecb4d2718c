package optest

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/preprocess/op"
	"github.com/millrace/millrace/preprocess/op/imagekernel"
)

// Every format, in every mode, with and without its orientation and transparency, is decoded to Pillow's bytes.
func TestFormatsEqualPillow(t *testing.T) {
	text, err := os.ReadFile("testdata/formats/golden.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	for line := range bytes.Lines(text) {
		var want struct {
			Input  string         `json:"input"`
			Params map[string]any `json:"params"`
			Shape  [3]int         `json:"shape"`
			Hash   string         `json:"hash"`
		}
		if err := json.Unmarshal(line, &want); err != nil {
			t.Fatal(err)
		}
		if !imagekernel.Exact && strings.HasSuffix(want.Input, "-jpeg.tif") {
			continue
		}
		if !imagekernel.ReadsAVIF && strings.HasSuffix(want.Input, ".avif") {
			continue
		}
		data, err := os.ReadFile(filepath.Join("testdata", want.Input))
		if err != nil {
			t.Fatal(err)
		}
		want.Params["field"] = "image"
		decode, err := op.Build("decode_image", 0, want.Params)
		if err != nil {
			t.Fatal(err)
		}
		pixels, shape := apply(t, []op.Operator{decode}, data)
		if diff := cmp.Diff(want.Shape, shape); diff != "" || Hash(pixels) != want.Hash {
			t.Errorf("%s %v: got %v %s", want.Input, want.Params, shape, Hash(pixels))
		}
		ran++
	}
	if ran < 700 {
		t.Errorf("only %d cases", ran)
	}
}
