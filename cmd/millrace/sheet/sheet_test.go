package sheet_test

import (
	"bytes"
	"encoding/base64"
	"image"
	"image/color"
	"image/png"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/millrace/millrace/cmd/millrace/lookback"
	"github.com/millrace/millrace/cmd/millrace/sheet"
	"github.com/millrace/millrace/loader/dataset/datasettest"
	"github.com/millrace/millrace/loader/order"
	"github.com/millrace/millrace/loader/store/memstore"
	"github.com/millrace/millrace/preprocess/plan"
	"github.com/millrace/millrace/preprocess/recipe"
)

// source is a recipe over twelve pictures, of which the bad ones are no pictures.
func source(t *testing.T, operators string, bad ...int) *lookback.Source {
	t.Helper()
	samples := datasettest.Samples(12)
	for i := range samples {
		data := picture(t, i)
		if slices.Contains(bad, i) {
			data = data[:len(data)/2]
		}
		samples[i].Members = append(samples[i].Members, datasettest.Member{Ext: "png", Data: data})
	}
	m := memstore.New()
	m.Put("train.tar", datasettest.Tar(t, samples...))
	set := &datasettest.Set{
		Store: m, Samples: samples, Source: []string{"mem://data/train.tar"},
		Resolver: datasettest.Resolver(t, map[string]*memstore.Store{"data": m}),
	}
	r, err := recipe.Parse([]byte("source: mem://data/train.tar\nfields: {image: png, label: cls}\noperators:\n  - decode_image: {field: image}\n" +
		operators + "output: {image: {layout: CHW}, label: {}}\npartition: {samples: 4, block_samples: 4, window_blocks: 1}\n"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := plan.New(r)
	if err != nil {
		t.Fatal(err)
	}
	manifest := set.Build(t)
	layout, err := p.Layout(manifest, order.ShuffleBlock)
	if err != nil {
		t.Fatal(err)
	}
	return &lookback.Source{Plan: p, Manifest: manifest, Layout: layout, Resolver: set.Resolver}
}

func picture(t *testing.T, i int) []byte {
	t.Helper()
	m := image.NewRGBA(image.Rect(0, 0, 40+i, 30))
	for p := range 40 * 30 {
		m.SetRGBA(p%40, p/40, color.RGBA{R: uint8(7 * p), G: uint8(20 * i), B: uint8(p / 40), A: 255})
	}
	var b bytes.Buffer
	if err := png.Encode(&b, m); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func take(t *testing.T, s *lookback.Source, o sheet.Options) []*sheet.Sample {
	t.Helper()
	out, err := sheet.Take(t.Context(), s, o)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

const random = "  - label: {field: label}\n  - random_resized_crop: {field: image, size: 16}\n  - random_horizontal_flip: {field: image}\n"

func TestASheetIsThatOfTheJobWithItsSeed(t *testing.T) {
	s := source(t, random)
	o := sheet.Options{Samples: 5, Seed: 3, Epoch: 1}
	first, again := take(t, s, o), take(t, s, o)
	epoch := s.Layout.Epoch(3, 1)
	for i, sample := range first {
		if want := epoch.Sample(int64(i)); sample.Number != want || !strings.HasPrefix(sample.Key, "train.tar!") {
			t.Errorf("sample %d is %d (%s), the order has %d", i, sample.Number, sample.Key, want)
		}
		if len(sample.Drawn) != 2 || sample.Drawn[0].Operator != "random_resized_crop" || sample.Drawn[1].Operator != "random_horizontal_flip" {
			t.Errorf("sample %d drew %v", i, sample.Drawn)
		}
	}
	var sheets [][]byte
	for _, samples := range [][]*sheet.Sample{first, again, take(t, s, sheet.Options{Samples: 5, Seed: 4, Epoch: 1})} {
		m, err := sheet.Draw(sheet.Heading{Title: "title", Below: "below", CropOfWhole: true}, samples)
		if err != nil {
			t.Fatal(err)
		}
		sheets = append(sheets, m.Pix)
	}
	if !bytes.Equal(sheets[0], sheets[1]) {
		t.Error("two sheets of the same samples differ")
	}
	if bytes.Equal(sheets[0], sheets[2]) {
		t.Error("sheets of two seeds are the same")
	}
}

// A bad sample shows its error; the others are what they are without it.
func TestABadSampleKeepsItsPlaceOnTheSheet(t *testing.T) {
	for _, operators := range []string{random, "  - label: {field: label}\n  - resize: {field: image, size: [16, 16]}\n  - five_crop: {field: image, size: 8}\n"} {
		whole := take(t, source(t, operators), sheet.Options{Samples: 12})
		damaged := take(t, source(t, operators, 2, 7), sheet.Options{Samples: 12})
		for i, got := range damaged {
			if got.Number != 2 && got.Number != 7 {
				if diff := cmp.Diff(whole[i], got, cmpopts.IgnoreUnexported(sheet.Sample{})); diff != "" {
					t.Errorf("%s: a good sample differs (-whole +damaged)\n%s", operators, diff)
				}
				continue
			}
			if want := "train.tar!" + got.Key[len("train.tar!"):] + ".png"; !strings.Contains(got.Error, want) || !strings.Contains(got.Error, "decode_image") {
				t.Errorf("the error is %q", got.Error)
			}
		}
		if _, err := sheet.Draw(sheet.Heading{}, damaged); err != nil {
			t.Error(err)
		}
	}
}

// Operators that mix rows get all of their source partition, as in a job.
func TestMixedRowsNameEachOther(t *testing.T) {
	s := source(t, "  - label: {field: label}\n  - resize: {field: image, size: [16, 16]}\n  - to_tensor: {field: image}\n  - mixup: {field: image, num_classes: 20}\n")
	few, all := take(t, s, sheet.Options{Samples: 2}), take(t, s, sheet.Options{Samples: 4})
	if diff := cmp.Diff(all[:2], few, cmpopts.IgnoreUnexported(sheet.Sample{})); diff != "" {
		t.Errorf("rows depend on how many are shown:\n%s", diff)
	}
	for _, sample := range all {
		if len(sample.Drawn) != 1 || !strings.Contains(sample.Drawn[0].Values, `"other":"train.tar!`) {
			t.Errorf("sample %s drew %v", sample.Key, sample.Drawn)
		}
	}
}

func TestTerminalsAreToldByTheirEnvironment(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		want sheet.Protocol
	}{
		{map[string]string{"TERM": "xterm-256color"}, sheet.ProtocolNone},
		{map[string]string{"TERM": "xterm-kitty"}, sheet.ProtocolKitty},
		{map[string]string{"TERM": "xterm-256color", "TERM_PROGRAM": "ghostty"}, sheet.ProtocolKitty},
		{map[string]string{"TERM": "xterm-256color", "TERM_PROGRAM": "iTerm.app"}, sheet.ProtocolITerm2},
		{map[string]string{"TERM": "xterm-256color", "LC_TERMINAL": "iTerm2"}, sheet.ProtocolITerm2},
		{map[string]string{"TERM": "tmux-256color", "TMUX": "/tmp/tmux", "TERM_PROGRAM": "iTerm.app"}, sheet.ProtocolNone},
	} {
		if got := sheet.ProtocolOf(func(name string) (string, bool) { v, ok := c.env[name]; return v, ok }); got != c.want {
			t.Errorf("%v: protocol %d, want %d", c.env, got, c.want)
		}
	}
}

// What is shown is the file, in pieces that the protocol allows.
func TestShowSendsTheWholeFile(t *testing.T) {
	file := bytes.Repeat([]byte("a picture"), 2000)
	var kitty, iterm bytes.Buffer
	if err := sheet.Show(&kitty, sheet.ProtocolKitty, file); err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	pieces := strings.Split(strings.TrimSuffix(kitty.String(), "\x1b\\\n"), "\x1b\\")
	for i, piece := range pieces {
		control, data, ok := strings.Cut(piece, ";")
		want := map[bool]string{false: "m=1", true: "m=0"}[i == len(pieces)-1]
		if !ok || !strings.HasPrefix(control, "\x1b_G") || !strings.HasSuffix(control, want) || strings.Contains(control, "a=T") != (i == 0) || len(data) > 4096 {
			t.Errorf("piece %d has control %q and %d letters", i, control, len(data))
		}
		text.WriteString(data)
	}
	if got, err := base64.StdEncoding.DecodeString(text.String()); err != nil || !bytes.Equal(got, file) {
		t.Errorf("kitty got %d bytes (%v)", len(got), err)
	}
	if err := sheet.Show(&iterm, sheet.ProtocolITerm2, file); err != nil {
		t.Fatal(err)
	}
	_, data, _ := strings.Cut(iterm.String(), ":")
	if got, err := base64.StdEncoding.DecodeString(strings.TrimSuffix(data, "\a\n")); err != nil || !bytes.Equal(got, file) {
		t.Errorf("iTerm2 got %d bytes (%v)", len(got), err)
	}
}
