package jpegrestart_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/op/imagekernel"
	"github.com/millrace/millrace/preprocess/op/jpegrestart"
)

// files are the JPEGs that are kept for tests: all kinds of sampling, odd sizes, grey, inks, progressive, and with restart
// markers already.
func files(tb testing.TB) map[string][]byte {
	tb.Helper()
	names, err := filepath.Glob("../optest/testdata/*.jpg")
	if err != nil || len(names) == 0 {
		tb.Fatal("no JPEGs to test with", err)
	}
	out := map[string][]byte{}
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			tb.Fatal(err)
		}
		out[filepath.Base(name)] = data
	}
	return out
}

// segments are the markers of a JPEG up to its scans, each with its content.
type segments struct {
	list     []string
	interval int
	sof      byte
	// restarts are the markers within the scan, in order; after is what follows the end.
	restarts []byte
	after    []byte
}

func parse(t *testing.T, data []byte) segments {
	t.Helper()
	var s segments
	at := 2
	for {
		marker, size := data[at+1], int(binary.BigEndian.Uint16(data[at+2:]))
		body := data[at+4 : at+2+size]
		at += 2 + size
		switch {
		case marker == 0xDD:
			s.interval = int(binary.BigEndian.Uint16(body))
		case marker >= 0xC0 && marker <= 0xCF && marker != 0xC4:
			s.sof = marker
		case marker >= 0xE0 && marker <= 0xEF || marker == 0xFE:
			s.list = append(s.list, string(marker)+string(body))
		}
		if marker == 0xDA {
			break
		}
	}
	for ; ; at++ {
		if data[at] != 0xFF {
			continue
		}
		if m := data[at+1]; m >= 0xD0 && m <= 0xD7 {
			s.restarts = append(s.restarts, m)
		} else if m == 0xD9 {
			s.after = data[at+2:]
			return s
		}
	}
}

// A file written anew is baseline, has its metadata and what followed it, markers at the interval that was chosen, in
// order, and costs no more than was allowed, but where one marker a row costs more.
func TestFilesAreStandardAndCostLittle(t *testing.T) {
	for name, data := range files(t) {
		data = append(bytes.Clone(data), "trailer \xFF\xD9 of another"...)
		r, err := jpegrestart.Add(data, jpegrestart.DefaultOptions())
		if errors.Is(err, jpegrestart.ErrUnsupported) {
			return
		}
		if err != nil {
			if name != "extra-unfinished.jpg" {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		h, err := imagekernel.Probe(data, imagekernel.DefaultLimits())
		if err != nil {
			t.Fatal(err)
		}
		before, after := parse(t, data), parse(t, r.Data)
		if name != "extra-multiscan.jpg" && !h.Progressive { // Those have more than one scan to pass over.
			if diff := cmp.Diff(before.after, after.after); diff != "" {
				t.Errorf("%s: other bytes after the end\n%s", name, diff)
			}
		}
		if diff := cmp.Diff(before.list, after.list); diff != "" {
			t.Errorf("%s: other metadata (-want +got)\n%s", name, diff)
		}
		if after.sof > 0xC1 || after.interval != r.Interval || r.Interval < 1 || r.Interval > r.RowMCUs {
			t.Errorf("%s: frame %x with an interval of %d, said to be %d of %d", name, after.sof, after.interval, r.Interval, r.RowMCUs)
		}
		for i, m := range after.restarts {
			if m != 0xD0+byte(i%8) {
				t.Fatalf("%s: marker %d is %x", name, i, m)
			}
		}
		size := len(r.Data) - len(after.after)
		if r.Interval < r.RowMCUs && float64(size) > 1.01*float64(r.Plain) {
			t.Errorf("%s: %d bytes instead of %d, with an interval of %d", name, size, r.Plain, r.Interval)
		}
	}
}

// Any crop of any file has the pixels of the same crop of the file written anew, however many markers that has, with vector
// instructions and without.
func TestAnyCropHasTheSamePixels(t *testing.T) {
	type pair struct {
		name string
		old  []byte
		made map[float64][]byte
	}
	costs := []float64{0.002, 0.01, 0.05, 1}
	var pairs []pair
	for name, data := range files(t) {
		p := pair{name, data, map[float64][]byte{}}
		for _, cost := range costs {
			r, err := jpegrestart.Add(data, jpegrestart.Options{MaxCost: cost, MaxScans: 100})
			if err != nil {
				break
			}
			p.made[cost] = r.Data
		}
		if len(p.made) == len(costs) {
			pairs = append(pairs, p)
		}
	}
	if !imagekernel.Exact {
		return
	}
	k, scalar := imagekernel.New(imagekernel.DefaultLimits()), imagekernel.New(imagekernel.DefaultLimits())
	scalar.Scalar(true)
	t.Cleanup(k.Close)
	t.Cleanup(scalar.Close)
	rapid.Check(t, func(t *rapid.T) {
		for range 25 { // Crops for each of the 100 draws.
			p := rapid.SampledFrom(pairs).Draw(t, "file")
			made := p.made[rapid.SampledFrom(costs).Draw(t, "cost")]
			h, err := imagekernel.Probe(p.old, imagekernel.DefaultLimits())
			if err != nil {
				t.Fatal(err)
			}
			again, err := imagekernel.Probe(made, imagekernel.DefaultLimits())
			if err != nil {
				t.Fatal(err)
			}
			j := imagekernel.Job{JPEG: p.old, Header: h, Channels: 3, Orient: rapid.Bool().Draw(t, "orient"), Planar: true}
			w, hgt := h.Size(j.Orient)
			j.Crop.W, j.Crop.H = rapid.IntRange(1, w).Draw(t, "w"), rapid.IntRange(1, hgt).Draw(t, "h")
			j.Crop.X, j.Crop.Y = rapid.IntRange(0, w-j.Crop.W).Draw(t, "x"), rapid.IntRange(0, hgt-j.Crop.H).Draw(t, "y")
			j.ResizeW, j.ResizeH = j.Crop.W, j.Crop.H
			if rapid.Bool().Draw(t, "resized") {
				j.ResizeW, j.ResizeH = 31, 17
			}
			j.Window = imagekernel.Rect{W: j.ResizeW, H: j.ResizeH}
			j.Visible = j.Window
			j.Dst = make([]byte, 3*j.ResizeW*j.ResizeH)
			restarted := j
			restarted.JPEG, restarted.Header = made, again
			if err := k.Run(&j); err != nil {
				t.Fatalf("%s: %v", p.name, err)
			}
			for _, k := range []*imagekernel.Kernel{k, scalar} {
				restarted.Dst = make([]byte, len(j.Dst))
				if err := k.Run(&restarted); err != nil {
					t.Fatalf("%s: %v", p.name, err)
				}
				if !bytes.Equal(j.Dst, restarted.Dst) {
					t.Fatalf("%s: other pixels of %+v", p.name, j.Crop)
				}
			}
		}
	})
}

// Files that libjpeg has to guess about are refused; nothing that is not a JPEG does harm.
func FuzzAdd(f *testing.F) {
	for _, data := range files(f) {
		f.Add(data)
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<16 {
			return
		}
		if h, err := imagekernel.Probe(data, imagekernel.DefaultLimits()); err != nil || h.W*h.H > 1<<20 {
			return
		}
		r, err := jpegrestart.Add(data, jpegrestart.DefaultOptions())
		if err != nil {
			if k := errkind.Of(err); k != errkind.BadData && !errors.Is(err, jpegrestart.ErrUnsupported) {
				t.Errorf("%v is of kind %v", err, k)
			}
			return
		}
		if _, err := jpegrestart.Add(r.Data, jpegrestart.DefaultOptions()); err != nil {
			t.Errorf("what was written is refused: %v", err)
		}
	})
}
