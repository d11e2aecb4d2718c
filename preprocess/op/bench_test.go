package op

import (
	"bytes"
	"image"
	"image/color"
	"image/jpeg"
	"os"
	"path/filepath"
	"testing"
)

// benchImages are photographs named by MILLRACE_OPTEST_IMAGES=GLOB, or a drawn picture of 500×375 pixels.
func benchImages(b *testing.B) [][]byte {
	b.Helper()
	names, err := filepath.Glob(os.Getenv("MILLRACE_OPTEST_IMAGES"))
	if err != nil {
		b.Fatal(err)
	}
	var files [][]byte
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			b.Fatal(err)
		}
		files = append(files, data)
	}
	if len(files) > 0 {
		return files
	}
	picture := image.NewRGBA(image.Rect(0, 0, 500, 375))
	noise := uint32(1)
	for y := range 375 {
		for x := range 500 {
			noise = noise*1664525 + 1013904223
			picture.SetRGBA(x, y, color.RGBA{R: uint8(x/2) + uint8(noise>>28), G: uint8(y/2) + uint8(noise>>29), B: uint8(x^y) / 2, A: 255})
		}
	}
	var out bytes.Buffer
	if err := jpeg.Encode(&out, picture, &jpeg.Options{Quality: 90}); err != nil {
		b.Fatal(err)
	}
	return [][]byte{out.Bytes()}
}

// BenchmarkTrain is decode, random resized crop to 224, flip and layout, fused; an operation is one image.
func BenchmarkTrain(b *testing.B) {
	large := step{"random_resized_crop", map[string]any{"size": 224}}
	for _, c := range []struct {
		name   string
		tensor step
		scalar bool
	}{{"uint8", chw, false}, {"scalar", chw, true}, {"bfloat16", bf16, false}, {"float32", tensor, false}} {
		b.Run(c.name, func(b *testing.B) {
			ops := Fuse(chain(b, decode, large, flip, c.tensor))
			batch := encoded(benchImages(b)...)
			buf := make([]byte, batch.NumRows*3*224*224*4+64)
			env := &Env{Scalar: c.scalar, Alloc: func(n int) []byte { return buf[:n] }}
			b.ReportAllocs()
			for done := 0; done < b.N; done += batch.NumRows {
				env.Epoch++
				if err := ops[0].Apply(b.Context(), env, batch, func(*Batch) error { return nil }); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
