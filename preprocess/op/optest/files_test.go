package optest

import (
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/millrace/millrace/preprocess/op"
)

// fileModes are the ways in which a file is decoded to be compared.
func fileModes() []object {
	return []object{
		{"mode": "rgb"}, {"mode": "rgb", "exif": "ignore"}, {"mode": "rgb", "alpha": "white"}, {"mode": "l"}, {"mode": "p"}, {"mode": "rgba"}, {"mode": "i16"},
	}
}

// A decoded is what became of a file.
type decoded struct {
	Input  string `json:"input"`
	Params object `json:"params"`
	Shape  [3]int `json:"shape"`
	Hash   string `json:"hash,omitempty"`
	Error  string `json:"error,omitempty"`
}

// Every file of a folder is decoded or refused with an error that names it: those of testdata, or with
// MILLRACE_OPTEST_FILES=FOLDER those there, what became of them going to MILLRACE_OPTEST_RESULTS for check_files.py.
func TestFiles(t *testing.T) {
	folder := "testdata"
	if other := os.Getenv("MILLRACE_OPTEST_FILES"); other != "" {
		folder = other
	}
	var results []decoded
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(folder, path)
		for _, params := range fileModes() {
			results = append(results, decodeFile(t, name, data, params))
		}
		return err
	})
	if err != nil || len(results) == 0 {
		t.Fatalf("%d files: %v", len(results), err)
	}
	if file := os.Getenv("MILLRACE_OPTEST_RESULTS"); file != "" {
		out, err := os.Create(file)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = out.Close() }()
		for _, r := range results {
			if err := json.NewEncoder(out).Encode(r); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func decodeFile(t *testing.T, name string, data []byte, params object) decoded {
	t.Helper()
	given := maps.Clone(params)
	given["field"] = "image"
	decode, err := op.Build("decode_image", 0, given)
	if err != nil {
		t.Fatal(err)
	}
	out := decoded{Input: name, Params: params}
	b := &op.Batch{NumRows: 1, Samples: []uint64{7}, Keys: []string{name}, Columns: []op.Column{{Field: op.Field{Name: "image", Kind: op.KindBytes}, Bytes: [][]byte{data}}}}
	err = decode.Apply(t.Context(), &op.Env{Scalar: scalar()}, b, func(b *op.Batch) error {
		m := b.Column("image").Images[0]
		out.Shape, out.Hash = [3]int{m.H, m.W, m.C}, Hash(m.Pix)
		return nil
	})
	if err != nil {
		out.Error = err.Error()
	}
	return out
}
