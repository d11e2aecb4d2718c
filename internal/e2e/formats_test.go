package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	pq "github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/klauspost/compress/zstd"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/millrace/millrace/loader/dataset/datasettest"
	"github.com/millrace/millrace/loader/store/storetest/s3servers"
)

// Shards of a set in any format: the samples are their numbers, as field "n".
const (
	formatShards, formatPerShard = 3, 20
	formatSamples                = formatShards * formatPerShard
)

// formatted are the ways to write a shard of the samples from on, by the suffix of its name.
func formatted() map[string]func(t *testing.T, from int64) []byte {
	return map[string]func(*testing.T, int64) []byte{
		".tar": tarOf, ".parquet": parquetOf, ".arrow": arrowOf, ".tfrecord": tfrecordOf, ".mds": mdsOf, ".jsonl": jsonOf,
		".jsonl.zst": func(t *testing.T, from int64) []byte {
			t.Helper()
			w, err := zstd.NewWriter(nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = w.Close() }() // writes to memory
			return w.EncodeAll(jsonOf(t, from), nil)
		},
	}
}

func tarOf(t *testing.T, from int64) []byte {
	t.Helper()
	var samples []datasettest.Sample
	for n := from; n < from+formatPerShard; n++ {
		samples = append(samples, datasettest.Sample{Key: fmt.Sprintf("%04d", n), Members: []datasettest.Member{{Ext: "n", Data: fmt.Append(nil, n)}}})
	}
	return datasettest.Tar(t, samples...)
}

func jsonOf(_ *testing.T, from int64) []byte {
	var b []byte
	for n := from; n < from+formatPerShard; n++ {
		b = fmt.Appendf(b, "{\"n\": %d}\n", n)
	}
	return b
}

func numbersOf(from int64) arrow.RecordBatch {
	b := array.NewInt64Builder(memory.DefaultAllocator)
	for n := from; n < from+formatPerShard; n++ {
		b.Append(n)
	}
	s := arrow.NewSchema([]arrow.Field{{Name: "n", Type: arrow.PrimitiveTypes.Int64}}, nil)
	return array.NewRecordBatch(s, []arrow.Array{b.NewArray()}, formatPerShard)
}

func arrowOf(t *testing.T, from int64) []byte {
	t.Helper()
	var buf bytes.Buffer
	rec := numbersOf(from)
	w := ipc.NewWriter(&buf, ipc.WithSchema(rec.Schema()))
	for i := int64(0); i < formatPerShard; i += 7 {
		if err := w.Write(rec.NewSlice(i, min(i+7, formatPerShard))); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func parquetOf(t *testing.T, from int64) []byte {
	t.Helper()
	var buf bytes.Buffer
	rec := numbersOf(from)
	w, err := pqarrow.NewFileWriter(rec.Schema(), &buf, pq.NewWriterProperties(pq.WithMaxRowGroupLength(9)), pqarrow.DefaultWriterProps())
	if err == nil {
		err = w.WriteBuffered(rec)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func tfrecordOf(_ *testing.T, from int64) []byte {
	nested := func(field protowire.Number, b []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, field, protowire.BytesType), b)
	}
	masked := func(b []byte) []byte {
		sum := crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
		return binary.LittleEndian.AppendUint32(nil, (sum>>15|sum<<17)+0xa282ead8)
	}
	var out []byte
	for n := from; n < from+formatPerShard; n++ {
		value := nested(3, nested(1, protowire.AppendVarint(nil, uint64(n))))
		data := nested(1, nested(1, append(nested(1, []byte("n")), nested(2, value)...)))
		head := binary.LittleEndian.AppendUint64(nil, uint64(len(data)))
		out = slices.Concat(out, head, masked(head), data, masked(data))
	}
	return out
}

func mdsOf(_ *testing.T, from int64) []byte {
	const config = `{"version": 2, "format": "mds", "column_names": ["n"], "column_encodings": ["int"], "column_sizes": [8]}`
	at := uint32(4 + 4*(formatPerShard+1) + len(config))
	head, body := binary.LittleEndian.AppendUint32(nil, formatPerShard), []byte(nil)
	for i := range uint32(formatPerShard + 1) {
		head = binary.LittleEndian.AppendUint32(head, at+8*i)
	}
	for n := from; n < from+formatPerShard; n++ {
		body = binary.LittleEndian.AppendUint64(body, uint64(n))
	}
	return slices.Concat(head, []byte(config), body)
}

// layFormats writes a directory for each format below root, and is what each is called.
func layFormats(t *testing.T, root string) []string {
	t.Helper()
	for suffix, write := range formatted() {
		for i := range int64(formatShards) {
			datasettest.WriteFile(t, root, fmt.Sprintf("%s/part-%d%s", suffix[1:], i, suffix), write(t, i*formatPerShard))
		}
	}
	folder(t, filepath.Join(root, "images"), formatShards, formatPerShard)
	return append(slices.Sorted(maps.Keys(formatted())), ".images")
}

// formatStream is an epoch of a job over the set of one format below base, as two ranks get it.
func formatStream(t *testing.T, p *place, r *role, job, base, name, shuffle string) [][][]row {
	t.Helper()
	text := fmt.Sprintf("source: %s/%s\nfields: {label: n}\noperators:\n  - label: {field: label}\npartition: {samples: 4}\n", base, name[1:])
	if name == ".images" {
		text = imageRecipe(base + "/images")
	}
	if shuffle == "block" && name != ".images" {
		text = text[:len(text)-2] + ", block_samples: 4, window_blocks: 2}\n"
	}
	if shuffle != "block" && name == ".images" {
		text = text[:len(text)-len(", block_samples: 4, window_blocks: 2}\n")] + "}\n"
	}
	recipe := p.write("recipe.yaml", text)
	ranks := make([][][]row, 2)
	var wg sync.WaitGroup
	for rank := range ranks {
		req := ask(t, recipe, job+name+"-"+shuffle, rank, len(ranks), 8)
		req.Settings.Shuffle, req.Settings.Epochs = shuffle, 1
		s := open(t, dial(t, r.address(0)), req)
		wg.Go(func() {
			ranks[rank] = readWith(t, s, 0, func(int) {})
			if err := s.Close(context.WithoutCancel(t.Context())); err != nil {
				t.Errorf("closing rank %d: %v", rank, err)
			}
		})
	}
	wg.Wait()
	return ranks
}

// Whatever the format, and whether it lies on disk or in a bucket, the stream is one: every sample once, the same for one worker and
// for three.
func TestEveryFormatGivesOneStreamOverS3(t *testing.T) {
	p := newPlace(t)
	root := p.path("store")
	names := layFormats(t, filepath.Join(root, "data"))
	program := filepath.Join(filepath.Dir(filepath.Dir(millrace())), ".cache", "servers", "bin", "versitygw")
	if dir := os.Getenv("MILLRACE_S3_SERVERS"); dir != "" {
		program = filepath.Join(dir, "versitygw")
	}
	if err := os.Mkdir(p.path("side"), 0o700); err != nil {
		t.Fatal(err)
	}
	server, err := s3servers.Versity(t.Context(), program, root, p.path("side"), "")
	if err != nil {
		t.Fatalf("%v; `make setup-servers` builds it", err)
	}
	t.Cleanup(server.Stop)
	env := []string{"AWS_ACCESS_KEY_ID=" + s3servers.AccessKey, "AWS_SECRET_ACCESS_KEY=" + s3servers.SecretKey, "AWS_EC2_METADATA_DISABLED=true"}
	local := func(socket, workers string) *role {
		return p.startWith(env, millrace(), "local", "--socket", p.path(socket), "--s3-endpoint", server.Endpoint, "--workers", workers, "--cpu-slots", "1", "--cache-dir", p.path("cache-"+socket))
	}
	one, three := local("one", "1"), local("three", "3")
	for _, name := range names {
		for _, shuffle := range []string{"none", "block", "full"} {
			t.Run(name[1:]+" "+shuffle, func(t *testing.T) {
				want := formatStream(t, p, one, "files", filepath.Join(root, "data"), name, shuffle)
				everySampleOnce(t, want, formatSamples)
				for workers, r := range map[int]*role{1: one, 3: three} {
					got := formatStream(t, p, r, "bucket", "s3://data", name, shuffle)
					sameStream(t, [2][][][]row{want}, [2][][][]row{got})
					if t.Failed() {
						t.Fatalf("with %d workers over S3", workers)
					}
				}
			})
		}
	}
	one.stop()
	three.stop()
}
