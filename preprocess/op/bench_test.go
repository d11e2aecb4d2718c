package op

import (
	"archive/tar"
	"bytes"
	"errors"
	"image"
	"image/color"
	"image/draw"
	"image/jpeg"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// photographs are up to n JPEGs: those named by MILLRACE_OPTEST_IMAGES=GLOB, else of the demo's data set if it is there,
// else one drawn picture of 500×375 pixels.
func photographs(b *testing.B, n int) [][]byte {
	b.Helper()
	names, err := filepath.Glob(os.Getenv("MILLRACE_OPTEST_IMAGES"))
	if err != nil {
		b.Fatal(err)
	}
	var files [][]byte
	for _, name := range names[:min(n, len(names))] {
		data, err := os.ReadFile(name)
		if err != nil {
			b.Fatal(err)
		}
		files = append(files, data)
	}
	if len(files) == 0 {
		files = demoImages(b, n)
	}
	if len(files) == 0 {
		files = append(files, drawn(b))
	}
	return files
}

// demoImages are the first JPEGs of a shard of the demo's data set.
func demoImages(b *testing.B, n int) [][]byte {
	b.Helper()
	shard, err := os.ReadFile("../../data/demo/val-000000.tar")
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		b.Fatal(err)
	}
	var files [][]byte
	for r := tar.NewReader(bytes.NewReader(shard)); len(files) < n; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			b.Fatal(err)
		}
		if !strings.HasSuffix(header.Name, ".jpg") {
			continue
		}
		data, err := io.ReadAll(r)
		if err != nil {
			b.Fatal(err)
		}
		files = append(files, data)
	}
	return files
}

func drawn(b *testing.B) []byte {
	b.Helper()
	picture := image.NewRGBA(image.Rect(0, 0, 500, 375))
	noise := uint32(1)
	for y := range 375 {
		for x := range 500 {
			noise = noise*1664525 + 1013904223
			picture.SetRGBA(x, y, color.RGBA{R: uint8(x/2) + uint8(noise>>28), G: uint8(y/2) + uint8(noise>>29), B: uint8(x^y) / 2, A: 255})
		}
	}
	return compress(b, picture, 90)
}

func compress(b *testing.B, m image.Image, quality int) []byte {
	b.Helper()
	var out bytes.Buffer
	if err := jpeg.Encode(&out, m, &jpeg.Options{Quality: quality}); err != nil {
		b.Fatal(err)
	}
	return out.Bytes()
}

// near is m as a JPEG of about size bytes.
func near(b *testing.B, m image.Image, size int) []byte {
	b.Helper()
	lo, hi := 1, 100
	for lo < hi {
		mid := (lo + hi) / 2
		if len(compress(b, m, mid)) < size {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return compress(b, m, lo)
}

func decoded(b *testing.B, data []byte) image.Image {
	b.Helper()
	m, err := jpeg.Decode(bytes.NewReader(data))
	if err != nil {
		b.Fatal(err)
	}
	return m
}

// smaller are the photographs at about 44 KB.
func smaller(b *testing.B) [][]byte {
	b.Helper()
	files := photographs(b, 16)
	for i, data := range files {
		files[i] = near(b, decoded(b, data), 44<<10)
	}
	return files
}

// large are pictures of 1600×1200 pixels, about 344 KB each, tiled with the photographs.
func large(b *testing.B) [][]byte {
	b.Helper()
	photos := photographs(b, 16)
	tiles := make([]image.Image, len(photos))
	for i, data := range photos {
		tiles[i] = decoded(b, data)
	}
	var files [][]byte
	for f := range 2 {
		m := image.NewRGBA(image.Rect(0, 0, 1600, 1200))
		for i := range 16 {
			at := image.Pt(i%4*500, i/4*375)
			draw.Draw(m, image.Rectangle{Min: at, Max: at.Add(image.Pt(500, 375))}, tiles[(i*3+f)%len(tiles)], image.Point{}, draw.Src)
		}
		files = append(files, near(b, m, 344<<10))
	}
	return files
}

var (
	train     = []step{decode, {"random_resized_crop", map[string]any{"size": 224}}, flip, chw}
	trainFast = append([]step{{"decode_image", map[string]any{"decode": "fast"}}}, train[1:]...)
	// plain brings images that are 224² already to the layout of a batch.
	plain = []step{chw}
)

func fusedChain(b *testing.B, steps []step) Operator {
	b.Helper()
	ops := Fuse(chain(b, steps...))
	if len(ops) != 1 {
		b.Fatalf("%d operators", len(ops))
	}
	return ops[0]
}

// feeder runs an operator on a batch again and again, into one buffer.
type feeder struct {
	op    Operator
	batch *Batch
	env   *Env
}

func newFeeder(o Operator, batch *Batch, scalar bool) *feeder {
	buf := make([]byte, batch.NumRows*3*224*224*4+64)
	return &feeder{op: o, batch: batch, env: &Env{Scalar: scalar, Alloc: func(n int) []byte { return buf[:n] }}}
}

func (f *feeder) run(b *testing.B) {
	b.Helper()
	f.env.Epoch++
	if err := f.op.Apply(b.Context(), f.env, f.batch, func(*Batch) error { return nil }); err != nil {
		b.Error(err)
	}
}

func benchmarkChain(b *testing.B, steps []step, files [][]byte, scalar bool) {
	b.Helper()
	f := newFeeder(fusedChain(b, steps), encoded(files...), scalar)
	f.run(b)
	b.ReportAllocs()
	b.ResetTimer()
	for done := 0; done < b.N; done += len(files) {
		f.run(b)
	}
}

// BenchmarkTrain is decode, random resized crop to 224, flip and layout, fused; an operation is one image. The names of
// the first are those of the scenarios of `millrace bench kernels`.
func BenchmarkTrain(b *testing.B) {
	b.Run("jpeg_44k", func(b *testing.B) { benchmarkChain(b, train, smaller(b), false) })
	b.Run("jpeg_103k", func(b *testing.B) { benchmarkChain(b, train, photographs(b, 16), false) })
	b.Run("jpeg_1600_exact", func(b *testing.B) { benchmarkChain(b, train, large(b), false) })
	b.Run("jpeg_1600_fast", func(b *testing.B) { benchmarkChain(b, trainFast, large(b), false) })
	b.Run("scalar", func(b *testing.B) { benchmarkChain(b, train, photographs(b, 16), true) })
	for name, last := range map[string]step{"bfloat16": bf16, "float32": tensor} {
		steps := append(append([]step{}, train[:3]...), last)
		b.Run(name, func(b *testing.B) { benchmarkChain(b, steps, photographs(b, 16), false) })
	}
}

// ready is a batch of the photographs at 224² pixels, as plain images.
func ready(b *testing.B) *Batch {
	b.Helper()
	steps := []step{decode, {"resize", map[string]any{"size": []any{224, 224}}}}
	out, err := runAll(b, &Env{}, Fuse(chain(b, steps...)), encoded(photographs(b, 8)...))
	if err != nil {
		b.Fatal(err)
	}
	return out
}

// BenchmarkAdded is what an operator adds to a 224² image, in µs: the difference of a chain with it and one without,
// run in turns.
func BenchmarkAdded(b *testing.B) {
	batch := ready(b)
	for _, c := range []struct {
		name string
		step step
	}{
		{"jitter", step{"color_jitter", map[string]any{"brightness": 0.4, "contrast": 0.4, "saturation": 0.4}}},
		{"jitter_hue", step{"color_jitter", map[string]any{"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}}},
		{"blur23", step{"gaussian_blur", map[string]any{"kernel_size": 23}}},
		{"rand_augment", auto},
		{"rotation", step{"random_rotation", map[string]any{"degrees": 30, "interpolation": "bilinear"}}},
	} {
		b.Run(c.name, func(b *testing.B) {
			with := newFeeder(fusedChain(b, append([]step{c.step}, plain...)), batch, false)
			without := newFeeder(fusedChain(b, plain), batch, false)
			b.ReportAllocs()
			least := [2]time.Duration{math.MaxInt64, math.MaxInt64}
			for done := 0; done < b.N; done += batch.NumRows {
				for i, f := range []*feeder{with, without} {
					start := time.Now()
					f.run(b)
					least[i] = min(least[i], time.Since(start))
				}
			}
			b.ReportMetric(float64((least[0]-least[1]).Nanoseconds())/1e3/float64(batch.NumRows), "added_us")
		})
	}
}

// BenchmarkTwoCores is how many times faster two goroutines are than one.
func BenchmarkTwoCores(b *testing.B) {
	files := photographs(b, 16)
	feeders := []*feeder{}
	for range 2 {
		feeders = append(feeders, newFeeder(fusedChain(b, train), encoded(files...), false))
		feeders[len(feeders)-1].run(b)
	}
	least := [2]time.Duration{math.MaxInt64, math.MaxInt64}
	b.ResetTimer()
	for done := 0; done < b.N; done += len(files) {
		start := time.Now()
		feeders[0].run(b)
		least[0] = min(least[0], time.Since(start))
		start = time.Now()
		var group sync.WaitGroup
		for _, f := range feeders {
			group.Go(func() { f.run(b) })
		}
		group.Wait()
		least[1] = min(least[1], time.Since(start))
	}
	b.ReportMetric(2*float64(least[0])/float64(least[1]), "speedup")
}
