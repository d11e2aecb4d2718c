//go:build linux && (amd64 || arm64)

package isolate_test

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/preprocess/isolate"
	"github.com/millrace/millrace/preprocess/op"
	"github.com/millrace/millrace/preprocess/op/imagekernel"
	"github.com/millrace/millrace/preprocess/op/optest"
)

func images(t *testing.T) map[string][]byte {
	t.Helper()
	all, err := optest.AllImages("../op/optest/testdata")
	if err != nil || len(all) < 100 {
		t.Fatalf("%d images: %v", len(all), err)
	}
	return all
}

// picture is a small image of a format.
func picture(t *testing.T, format string) []byte {
	t.Helper()
	for name, data := range images(t) {
		if h, err := imagekernel.Probe(data, imagekernel.DefaultLimits()); err == nil && h.Format.String() == format && strings.HasPrefix(name, "exif") {
			return data
		}
	}
	t.Fatalf("no picture is a %s", format)
	return nil
}

func probe(t *testing.T, data []byte) imagekernel.Header {
	t.Helper()
	h, err := imagekernel.Probe(data, imagekernel.DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// recipes are chains on the field image: every mode, and jobs with every kind of output.
func recipes(t *testing.T) [][]op.Operator {
	t.Helper()
	type step struct {
		name   string
		params map[string]any
	}
	var out [][]op.Operator
	for _, steps := range [][]step{
		{{"decode_image", nil}},
		{{"decode_image", map[string]any{"exif": "ignore", "alpha": "white"}}},
		{{"decode_image", map[string]any{"mode": "l"}}},
		{{"decode_image", map[string]any{"mode": "p"}}},
		{{"decode_image", map[string]any{"mode": "rgba"}}},
		{{"decode_image", map[string]any{"mode": "i16"}}},
		{{"decode_image", map[string]any{"decode": "fast"}}, {"resize", map[string]any{"size": []any{9, 7}}}},
		{
			{"decode_image", nil},
			{"random_resized_crop", map[string]any{"size": 24}},
			{"random_horizontal_flip", nil},
			{"to_tensor", nil},
			{"normalize", map[string]any{"mean": []any{0.5, 0.4, 0.3}, "std": []any{0.2, 0.3, 0.4}}},
		},
	} {
		var chain []op.Operator
		for i, s := range steps {
			params := map[string]any{"field": "image"}
			maps.Copy(params, s.params)
			o, err := op.Build(s.name, i, params)
			if err != nil {
				t.Fatal(err)
			}
			chain = append(chain, o)
		}
		out = append(out, op.Fuse(chain))
	}
	return out
}

// result is the pixels of an image, or what is wrong with it.
func result(t *testing.T, chain []op.Operator, env *op.Env, name string, data []byte) (pixels []byte, problem string) {
	t.Helper()
	batch := &op.Batch{NumRows: 1, Samples: []uint64{7}, Keys: []string{name}, Columns: []op.Column{{Field: op.Field{Name: "image", Kind: op.KindBytes}, Bytes: [][]byte{data}}}}
	for _, o := range chain {
		if err := o.Apply(t.Context(), env, batch, func(b *op.Batch) error { batch = b; return b.Check() }); err != nil {
			return nil, err.Error()
		}
	}
	if c := batch.Column("image"); c.Kind == op.KindTensor {
		return c.Tensor, ""
	} else {
		return c.Images[0].Pix, ""
	}
}

// Every image, whole or damaged, gives the same bytes or the same error in all modes, with and without SIMD.
func TestPixelsAndErrorsAreThoseOfThisProcess(t *testing.T) {
	all, bad := images(t), 0
	for name, data := range all {
		if len(data) > 200 {
			all["cut-"+name] = data[:len(data)*2/3]
		}
	}
	chains := recipes(t)
	for _, mode := range []isolate.Mode{isolate.Format, isolate.All} {
		s := newPool(t, mode, 1, 0).Join(func(int64) {})
		for name, data := range all {
			for i, chain := range chains {
				scalar := i%2 == 1
				want, problem := result(t, chain, &op.Env{Seed: 3, Scalar: scalar}, name, data)
				got, same := result(t, chain, &op.Env{Seed: 3, Scalar: scalar, Outside: s}, name, data)
				if !bytes.Equal(want, got) || problem != same {
					t.Errorf("%s, recipe %d, isolate %s: %d bytes and %q instead of %d and %q", name, i, mode, len(got), same, len(want), problem)
				}
				if problem != "" {
					bad++
				}
			}
		}
		if s.Takes(imagekernel.FormatJPEG) != (mode == isolate.All) || !s.Takes(imagekernel.FormatTIFF) {
			t.Errorf("isolate %s takes JPEG: %v", mode, s.Takes(imagekernel.FormatJPEG))
		}
	}
	if bad < 100 {
		t.Errorf("only %d were refused", bad)
	}
}

// files is how many files are open.
func files(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// children are the processes that this one has started and not waited for.
func children(t *testing.T) []int {
	t.Helper()
	tasks, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil {
			continue // a thread that has ended
		}
		for word := range strings.FieldsSeq(string(text)) {
			pid, err := strconv.Atoi(word)
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	return pids
}

// poll waits until a file can be read from.
func poll(fd int) error {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if n == 1 || err != nil && err != unix.EINTR {
			return err
		}
	}
}
