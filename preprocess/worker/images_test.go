package worker

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/loader/dataset/datasettest"
	"github.com/millrace/millrace/loader/store/memstore"
	"github.com/millrace/millrace/preprocess/lineage"
	"github.com/millrace/millrace/preprocess/partition"
	"github.com/millrace/millrace/preprocess/plan"
	"github.com/millrace/millrace/preprocess/recipe"
)

// pictures is a set of small images of differing sizes.
func pictures(t *testing.T) *datasettest.Set {
	t.Helper()
	samples := datasettest.Samples(benchSamples)
	for i := range samples {
		m := image.NewNRGBA(image.Rect(0, 0, 20+i%7, 24+i%5))
		for y := range m.Rect.Dy() {
			for x := range m.Rect.Dx() {
				m.SetNRGBA(x, y, color.NRGBA{R: uint8(i * 4), G: uint8(x * 8), B: uint8(y * 8), A: 255})
			}
		}
		var buf bytes.Buffer
		if err := png.Encode(&buf, m); err != nil {
			t.Fatal(err)
		}
		samples[i].Members[0] = datasettest.Member{Ext: "png", Data: buf.Bytes()}
	}
	m := memstore.New()
	m.Put("train-000000.tar", datasettest.Tar(t, samples...))
	return &datasettest.Set{
		Store: m, Samples: samples, Source: []string{"mem://data/train-000000.tar"},
		Resolver: datasettest.Resolver(t, map[string]*memstore.Store{"data": m}),
	}
}

const imageRecipe = `
source: mem://data/train-000000.tar
fields: {image: png, label: cls}
operators:
  - decode_image: {field: image}
  - random_resized_crop: {field: image, size: 16}
  - random_horizontal_flip: {field: image}
output: {image: {layout: CHW}, label: {dtype: int64}}
partition: {target_bytes: 6000}
`

// TestImagesAreMadeOnceInTheirPlace runs image operators in one stage and in several: the bytes are the same, and all
// memory that is left belongs to partitions.
func TestImagesAreMadeOnceInTheirPlace(t *testing.T) {
	set := pictures(t)
	var first []string
	for _, barriers := range [][]int{nil, {1}, {1, 2}} {
		r, err := recipe.Parse([]byte(imageRecipe))
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range barriers {
			r.Operators[i].Barrier = true
		}
		p, err := plan.New(r)
		if err != nil {
			t.Fatal(err)
		}
		b := newBench(t, set, p)
		if typ, ok := b.schema.Field(0).Type.(*partition.TensorType); !ok || !cmp.Equal(typ.Shape(), []int64{3, 16, 16}) {
			t.Errorf("images are %s", b.schema.Field(0).Type)
		}
		for source := range uint64(benchSamples / benchPartition) {
			if _, err := b.run(t.Context(), 0, lineage.SourceID(0, source), nil); err != nil {
				t.Fatal(err)
			}
		}
		held := b.store.Stats()
		if live := b.pool.Stats(); live.LiveBytes < held.HeldBytes || live.LiveBytes > 2*held.HeldBytes {
			t.Errorf("%d bytes of buffers are left for partitions of %d bytes", live.LiveBytes, held.HeldBytes)
		}
		got := rowHashes(t, b)
		if first == nil {
			first = got
		}
		if diff := cmp.Diff(first, got); diff != "" || len(got) != benchSamples {
			t.Errorf("%d rows in %d stages: %s", len(got), len(p.Stages), diff)
		}
		b.close(t)
	}
}

// rowHashes are the hashes of all rows, each alone, in stream order.
func rowHashes(t *testing.T, b *bench) []string {
	t.Helper()
	var out []string
	for _, h := range b.store.Held() {
		for i := range h.Rows {
			ticket := partition.Ticket{Job: b.name, Slices: []partition.Slice{{ID: h.ID, Attempt: h.Attempt, First: i, Rows: 1}}}
			err := partition.Local(b.store).Fetch(t.Context(), ticket, func(_ int, rec arrow.RecordBatch) error {
				out = append(out, fmt.Sprintf("%x", partition.Hash(rec)))
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	return out
}
