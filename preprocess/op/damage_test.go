package op

import (
	"bytes"
	"errors"
	"image"
	"image/color"
	"image/gif"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/op/imagekernel"
	"github.com/millrace/millrace/preprocess/op/optest"
)

// testImages are the test images by name.
func testImages(tb testing.TB) map[string][]byte {
	tb.Helper()
	images, err := optest.Images("optest/testdata")
	if err != nil {
		tb.Fatal(err)
	}
	return images
}

// A file cut off anywhere is an error, wherever the crop lies.
func TestTruncatedFiles(t *testing.T) {
	images := testImages(t)
	ops := Fuse(chain(t, decode, step{"random_crop", map[string]any{"size": 5}}))
	for _, name := range []string{"d-420-b.jpg", "d-444-p.jpg", "b-420-b.jpg", "b-420-p.jpg", "gray.jpg", "p.png", "rgb-adam7.png"} {
		file := images[name]
		stride := max(len(file)/200, 1)
		for n := 0; n < len(file); n += stride {
			_, err := runAll(t, &Env{}, ops, encoded(file[:n]))
			var bad *SampleError
			if !errors.As(err, &bad) || errkind.Of(err) != errkind.BadData {
				t.Fatalf("%s, %d of %d bytes: %v", name, n, len(file), err)
			}
		}
	}
}

// A file of another format cut off anywhere is an error, or what is left is enough for all pixels.
func TestTruncatedOtherFormats(t *testing.T) {
	images, err := optest.AllImages("optest/testdata")
	if err != nil {
		t.Fatal(err)
	}
	ops := Fuse(chain(t, decode))
	for _, name := range []string{"lossy-64x48.webp", "lossless-33x16.webp", "alpha-57x35.webp", "animated.webp", "plain.gif", "transparent.gif", "rgb.bmp", "palette.bmp", "rgb-lzw.tif", "alpha-raw.tif", "palette-packbits.tif"} {
		file := images[name]
		whole, err := runAll(t, &Env{}, ops, encoded(file))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		stride := max(len(file)/150, 1)
		for n := 0; n < len(file); n += stride {
			got, err := runAll(t, &Env{}, ops, encoded(file[:n]))
			var bad *SampleError
			switch {
			case err == nil && bytes.Equal(got.Columns[0].Images[0].Pix, whole.Columns[0].Images[0].Pix):
			case err == nil:
				t.Fatalf("%s, %d of %d bytes: no error, other pixels", name, n, len(file))
			case !errors.As(err, &bad) || errkind.Of(err) != errkind.BadData:
				t.Fatalf("%s, %d of %d bytes: %v", name, n, len(file), err)
			}
		}
	}
}

// wideGIF is a GIF with pixels of one colour.
func wideGIF(t *testing.T, w, h int) []byte {
	t.Helper()
	var buf bytes.Buffer
	if err := gif.Encode(&buf, image.NewPaletted(image.Rect(0, 0, w, h), color.Palette{color.Black, color.White}), nil); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// An image may be a thousand times as long as wide, no more.
func TestThinImagesAreRefused(t *testing.T) {
	ops := chain(t, decode)
	for _, c := range []struct {
		w, h int
		kind errkind.Kind
	}{{1000, 1, errkind.Unknown}, {2, 2000, errkind.Unknown}, {1001, 1, errkind.Exhausted}, {1, 1001, errkind.Exhausted}} {
		_, err := runAll(t, &Env{}, ops, encoded(wideGIF(t, c.w, c.h)))
		if errkind.Of(err) != c.kind || err != nil && !strings.Contains(err.Error(), "the limit is a longer side of 1000 times the shorter one") {
			t.Errorf("%dx%d: %v", c.w, c.h, err)
		}
	}
}

// What decoding a large image takes is charged before the image is decoded, and given back, damaged or not.
func TestDecodingLargeImagesIsCharged(t *testing.T) {
	ops := chain(t, decode)
	whole := wideGIF(t, 1000, 900)
	for _, data := range [][]byte{whole, whole[:len(whole)/2]} {
		var most, now int64
		env := &Env{Charge: func(delta int64) { now += delta; most = max(most, now) }}
		_, err := runAll(t, env, ops, encoded(data, data))
		if (err != nil) != (len(data) < len(whole)) || most != 12*1000*900 || now != 0 {
			t.Errorf("it was charged %d and still is %d (%v)", most, now, err)
		}
	}
	env := &Env{Charge: func(delta int64) { t.Errorf("a small image is charged %d", delta) }}
	if _, err := runAll(t, env, ops, encoded(wideGIF(t, 300, 300))); err != nil {
		t.Error(err)
	}
}

// Every format's header is checked against the limits before memory is taken.
func TestHugeHeaders(t *testing.T) {
	images, err := optest.AllImages("optest/testdata")
	if err != nil {
		t.Fatal(err)
	}
	spoil := func(name string, at int, bytes ...byte) []byte {
		file := slices.Clone(images[name])
		copy(file[at:], bytes)
		return file
	}
	for name, file := range map[string][]byte{
		"WebP, lossless": spoil("lossless-33x16.webp", 21, 0xFF, 0xFF, 0xFF, 0x0F),
		"WebP, lossy":    spoil("lossy-64x48.webp", 26, 0xFF, 0x3F, 0xFF, 0x3F),
		"GIF":            spoil("plain.gif", 6, 0xFF, 0xFF, 0xFF, 0xFF),
		"BMP":            spoil("rgb.bmp", 18, 0, 0xFF, 0, 0, 0, 0xFF, 0, 0),
		"PNG":            spoil("rgb.png", 16, 0, 0, 0xFF, 0, 0, 0, 0xFF, 0),
	} {
		_, err := imagekernel.Probe(file, imagekernel.DefaultLimits())
		if errkind.Of(err) != errkind.Exhausted {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// A truncated JPEG says how much of it could be read.
func TestTruncationSaysHowMuch(t *testing.T) {
	if !imagekernel.Exact {
		return // image/jpeg doesn't tell.
	}
	file := testImages(t)["f-420-b.jpg"]
	_, err := runAll(t, &Env{}, Fuse(chain(t, decode, rrc)), encoded(file[:len(file)*6/10]))
	if err == nil || !strings.HasSuffix(err.Error(), "truncated JPEG, 58 % of rows read") {
		t.Errorf("got %v", err)
	}
}

// Damage in the entropy-coded data is an error where it loses pixels that are needed; bytes between segments, which
// many real files have, are none.
func TestDamagedAndStrayBytes(t *testing.T) {
	if !imagekernel.Exact {
		return // image/jpeg judges otherwise.
	}
	file := testImages(t)["a-420-b.jpg"]
	ops := Fuse(chain(t, decode))
	want, err := runAll(t, &Env{}, ops, encoded(file))
	if err != nil {
		t.Fatal(err)
	}
	stray := slices.Concat(file[:len(file)-2], []byte{1, 2, 3}, file[len(file)-2:], []byte("trailing"))
	got, err := runAll(t, &Env{}, ops, encoded(stray))
	if err != nil || !bytes.Equal(want.Columns[0].Images[0].Pix, got.Columns[0].Images[0].Pix) {
		t.Errorf("stray bytes before the end marker: %v", err)
	}
	early := bytes.Clone(file)
	copy(early[len(early)/2:], []byte{0xFF, 0xD9})
	if _, err := runAll(t, &Env{}, ops, encoded(early)); err == nil || !strings.Contains(err.Error(), "damaged JPEG: Corrupt JPEG data: premature end of data segment") {
		t.Errorf("an end marker in the middle: %v", err)
	}
}

// An image stored in more scans than allowed is refused.
func TestTooManyScans(t *testing.T) {
	if !imagekernel.Exact {
		return // image/jpeg counts no scans.
	}
	file := testImages(t)["a-420-p.jpg"]
	limits := imagekernel.DefaultLimits()
	limits.Scans = 3
	k := imagekernel.New(limits)
	defer k.Close()
	_, err := optest.RunFused(k, file, optest.Case{})
	if errkind.Of(err) != errkind.Exhausted || err.Error() != "JPEG of more than 3 scans" {
		t.Errorf("got %v", err)
	}
}

// A thin image resized by its shorter side would become huge: it is refused, not allocated.
func TestHugeResult(t *testing.T) {
	thin := step{"center_crop", map[string]any{"size": []any{1, 60_000}}}
	big := step{"resize", map[string]any{"size": 1000}}
	file := testImages(t)["rgb-adam7.png"] // 13×17 pixels.
	for _, ops := range [][]Operator{chain(t, decode, thin, big), Fuse(chain(t, decode, thin, big))} {
		_, err := runAll(t, &Env{}, ops, encoded(file))
		if errkind.Of(err) != errkind.Invalid {
			t.Errorf("known beforehand: got %v", err)
		}
	}
	big.params["size"] = 40_000
	for _, ops := range [][]Operator{chain(t, decode, big, center), Fuse(chain(t, decode, big, center))} {
		_, err := runAll(t, &Env{}, ops, encoded(file))
		if errkind.Of(err) != errkind.Exhausted {
			t.Errorf("known when read: got %v", err)
		}
	}
}

// fuzzImages seeds f with small images of a format and checks that any bytes give an image or a SampleError, the same
// with vector instructions and without, fused and one by one.
func fuzzImages(f *testing.F, suffix string) {
	f.Helper()
	images, err := optest.AllImages("optest/testdata")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(images)) {
		if strings.HasSuffix(name, suffix) && len(images[name]) < 2200 {
			f.Add(images[name], uint64(len(name)))
		}
	}
	single := chain(f, upright, rrc, flip, tensor)
	fused := Fuse(single)
	f.Fuzz(func(t *testing.T, data []byte, seed uint64) {
		if h, err := imagekernel.Probe(data, imagekernel.DefaultLimits()); err == nil && h.W*h.H > 1<<16 {
			return // Legal, and slow.
		}
		got, err := runAll(t, &Env{Seed: seed}, fused, encoded(data))
		var bad *SampleError
		if err != nil && !errors.As(err, &bad) {
			t.Fatalf("got %v", err)
		}
		scalar, scalarErr := runAll(t, &Env{Seed: seed, Scalar: true}, fused, encoded(data))
		if (err == nil) != (scalarErr == nil) || err == nil && !bytes.Equal(got.Columns[0].Tensor, scalar.Columns[0].Tensor) {
			t.Fatalf("with vector instructions %v, without %v", err, scalarErr)
		}
		// One by one all rows are decoded, so that damage below the crop shows there alone.
		want, wantErr := runAll(t, &Env{Seed: seed}, single, encoded(data))
		if wantErr == nil && (err != nil || !bytes.Equal(got.Columns[0].Tensor, want.Columns[0].Tensor)) {
			t.Fatalf("fused %v, one by one fine", err)
		}
	})
}

func FuzzJPEG(f *testing.F) { fuzzImages(f, ".jpg") }

func FuzzPNG(f *testing.F) { fuzzImages(f, ".png") }

func FuzzWebP(f *testing.F) { fuzzImages(f, ".webp") }

func FuzzGIF(f *testing.F) { fuzzImages(f, ".gif") }

func FuzzBMP(f *testing.F) { fuzzImages(f, ".bmp") }

func FuzzTIFF(f *testing.F) { fuzzImages(f, ".tif") }

func FuzzAVIF(f *testing.F) { fuzzImages(f, ".avif") }
