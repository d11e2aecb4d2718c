package e2e

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"image/jpeg"
	"os"
	"path/filepath"
	"testing"

	"github.com/millrace/millrace/loader/dataset/datasettest"
)

// picture is a small JPEG that differs from those of other numbers.
func picture(t *testing.T, n int) []byte {
	t.Helper()
	img := image.NewRGBA(image.Rect(0, 0, 40+n%7, 48-n%5))
	for y := range img.Rect.Dy() {
		for x := range img.Rect.Dx() {
			img.SetRGBA(x, y, color.RGBA{R: uint8(n * 37), G: uint8(x * 5), B: uint8(y*5 + n), A: 255})
		}
	}
	var buf bytes.Buffer
	if err := jpeg.Encode(&buf, img, nil); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func pictures(t *testing.T, from, to int) []datasettest.Sample {
	t.Helper()
	var out []datasettest.Sample
	for n := from; n < to; n++ {
		out = append(out, datasettest.Sample{Key: fmt.Sprintf("%06d", n), Members: []datasettest.Member{
			{Ext: "jpg", Data: picture(t, n)},
			{Ext: "cls", Data: fmt.Appendf(nil, "%d", n%10)},
			{Ext: "json", Data: fmt.Appendf(nil, `{"annotation": {"class_id": %d}}`, n%10)},
		}})
	}
	return out
}

// shards writes tar shards train-000000.tar and so on below dir, and is the pattern that names them all.
func shards(t *testing.T, dir string, count, perShard int) string {
	t.Helper()
	for i := range count {
		datasettest.WriteTar(t, dir, fmt.Sprintf("train-%06d.tar", i), pictures(t, i*perShard, (i+1)*perShard)...)
	}
	return filepath.Join(dir, fmt.Sprintf("train-{000000..%06d}.tar", count-1))
}

// folder writes an image folder with a directory for each class.
func folder(t *testing.T, dir string, classes, perClass int) string {
	t.Helper()
	for c := range classes {
		for i := range perClass {
			datasettest.WriteFile(t, dir, fmt.Sprintf("class-%d/%03d.jpg", c, i), picture(t, c*perClass+i))
		}
	}
	return dir
}

// imageRecipe crops and flips at random, so that a byte shows if any key is wrong. Its partitions are small, so that
// little data makes many of them.
func imageRecipe(source string) string {
	return fmt.Sprintf(`source: %s
operators:
  - decode_image: {field: image}
  - random_resized_crop: {field: image, size: 16}
  - random_horizontal_flip: {field: image}
partition: {samples: 4, block_samples: 4, window_blocks: 2}
`, source)
}

// imageSet is a place with shards of pictures and a recipe for them.
func imageSet(t *testing.T, count, perShard int) (p *place, recipe string) {
	t.Helper()
	p = newPlace(t)
	return p, p.write("recipe.yaml", imageRecipe(shards(t, p.path("data"), count, perShard)))
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
