package tfrecord_test

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/loader/dataset/datasettest"
	"github.com/millrace/millrace/loader/dataset/formattest"
	"github.com/millrace/millrace/loader/dataset/tfrecord"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func mask(b []byte) []byte {
	sum := crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
	return binary.LittleEndian.AppendUint32(nil, (sum>>15|sum<<17)+0xa282ead8)
}

// record frames data.
func record(data []byte) []byte {
	head := binary.LittleEndian.AppendUint64(nil, uint64(len(data)))
	return bytes.Join([][]byte{head, mask(head), data, mask(data)}, nil)
}

// field is a field of a message that holds bytes.
func field(n protowire.Number, b []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, n, protowire.BytesType), b)
}

func byteses(values ...string) []byte {
	var list []byte
	for _, v := range values {
		list = append(list, field(1, []byte(v))...)
	}
	return field(1, list)
}

// floats are packed or, as old writers had them, one by one.
func floats(packed bool, values ...float32) []byte {
	var list []byte
	for _, v := range values {
		if !packed {
			list = protowire.AppendTag(list, 1, protowire.Fixed32Type)
		}
		list = protowire.AppendFixed32(list, math.Float32bits(v))
	}
	if packed {
		list = field(1, list)
	}
	return field(2, list)
}

func ints(packed bool, values ...int64) []byte {
	var list []byte
	for _, v := range values {
		if !packed {
			list = protowire.AppendTag(list, 1, protowire.VarintType)
		}
		list = protowire.AppendVarint(list, uint64(v))
	}
	if packed {
		list = field(1, list)
	}
	return field(3, list)
}

// example is a tf.train.Example of features, given as name and feature in turns.
func example(features ...any) []byte {
	var set []byte
	for i := 0; i+1 < len(features); i += 2 {
		name, _ := features[i].(string)
		feature, _ := features[i+1].([]byte)
		set = append(set, field(1, append(field(1, []byte(name)), field(2, feature)...))...)
	}
	return field(1, set)
}

// The record of no bytes, as TensorFlow writes it.
func TestAnEmptyRecordIsThatOfTensorFlow(t *testing.T) {
	if got := hex.EncodeToString(record(nil)); got != "000000000000000029039807d8ea82a2" {
		t.Errorf("%s", got)
	}
	x, err := tfrecord.Format{}.Index(t.Context(), formattest.Bytes(record(nil)), func(err error) error { return err })
	if err != nil || x.Samples != 1 || x.DataBytes != 0 {
		t.Errorf("%+v, %v", x, err)
	}
}

func TestLawsPlainAndCompressed(t *testing.T) {
	var rows []formattest.Row
	shard := func(from, to int) []byte {
		var out []byte
		for i := from; i < to; i++ {
			image := strings.Repeat(string([]byte{byte(i), 0, 255}), i%70+1)
			row := formattest.Row{
				"image/encoded": image, "image/class/label": fmt.Sprint(i - 100), "score": fmt.Sprint(float32(i) / 4), "box": fmt.Sprintf("[%d,0.5]", i),
				"ids": fmt.Sprintf("[%d,-1]", i), "texts": fmt.Sprintf(`[%q,""]`, base64.StdEncoding.EncodeToString([]byte(fmt.Sprint(i)))), "empty": "",
			}
			features := []any{
				"image/encoded", byteses(image), "image/class/label", ints(i%2 == 0, int64(i-100)), "score", floats(i%3 == 0, float32(i)/4),
				"box", floats(i%3 != 0, float32(i), 0.5), "ids", ints(i%2 != 0, int64(i), -1), "texts", byteses(fmt.Sprint(i), ""), "empty", byteses(""),
			}
			if i%5 == 0 { // a feature without values is no field
				delete(row, "score")
				features[5] = floats(true)
			}
			if i%7 == 0 { // of a name that comes twice the last counts
				features = append([]any{"image/class/label", ints(true, 7)}, features...)
			}
			rows = append(rows, row)
			out = append(out, record(example(features...))...)
		}
		return out
	}
	var zipped bytes.Buffer
	first, second, third := shard(0, 120), shard(120, 200), shard(200, 260)
	w := gzip.NewWriter(&zipped)
	if _, err := w.Write(second); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{"a.tfrecord": first, "b.tfrecords.gz": zipped.Bytes(), "c.tfrec": third}
	formattest.Check(t, os.Getenv("MILLRACE_S3_SERVERS"), formattest.Set{Files: files, Format: "tfrecord", Rows: rows})
}

func TestColumnsHaveTheTypesOfAllRecords(t *testing.T) {
	var data []byte
	for _, e := range [][]byte{
		example("a", ints(true, 1), "b", byteses("x"), "c", floats(true, 1), "d", ints(true)),
		example("a", floats(true, 2.5), "b", byteses("x", "y"), "c", floats(true, float32(math.NaN())), "e", ints(true, 1, 2)),
	} {
		data = append(data, record(e)...)
	}
	x, err := tfrecord.Format{}.Index(t.Context(), formattest.Bytes(data), func(err error) error { return err })
	if err != nil {
		t.Fatal(err)
	}
	s, err := tfrecord.Format{}.Open(x.Raw)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(s.Columns()); got != "[{a float64} {b json} {c float64} {e json}]" {
		t.Errorf("columns %s", got)
	}
}

// One record that is damaged, or no Example, is an error of its sample alone.
func TestABadRecordIsAnErrorOfItsSampleAlone(t *testing.T) {
	good := record(example("a", ints(true, 5)))
	flipped := bytes.Clone(good)
	flipped[len(flipped)-6] ^= 1
	for what, bad := range map[string][]byte{
		"does not have its checksum":          flipped,
		"no tf.train.Example":                 record([]byte("this is text, and no message of protobuf")),
		"no tf.train.Example: unexpected EOF": record(field(1, field(1, append(field(1, []byte("a")), field(2, field(3, field(1, []byte{0x80})))...)))),
	} {
		dir := t.TempDir()
		datasettest.WriteFile(t, dir, "x.tfrecord", bytes.Join([][]byte{good, bad, good}, nil))
		r := datasettest.Resolver(t, nil)
		m, err := dataset.Build(t.Context(), r, []string{dir + "/x.tfrecord"}, nil, dataset.BuildOptions{})
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		samples, release, err := datasettest.Open(t, m, r, nil, dataset.OpenOptions{}).Read(t.Context(), []int64{0, 1, 2}, nil)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if samples[0].Err != nil || samples[2].Err != nil || string(samples[2].Fields[0].Data) != "5" {
			t.Errorf("%s: samples beside it: %+v", what, samples)
		}
		if err := samples[1].Err; errkind.Of(err) != errkind.BadData || !strings.Contains(err.Error(), what) || !strings.Contains(err.Error(), "x.tfrecord") {
			t.Errorf("%s: %v", what, err)
		}
		release()
	}
}

// A file whose framing is damaged can be read up to there, and only if that is asked for.
func TestDamagedFramingIsToldWithItsPlace(t *testing.T) {
	good := record(example("a", ints(true, 5)))
	length := bytes.Clone(good)
	length[0]++
	huge := binary.LittleEndian.AppendUint64(nil, 1<<40)
	huge = append(huge, mask(huge)...)
	for want, bad := range map[string][]byte{
		"does not have its checksum": length,
		"is cut off":                 good[:len(good)-1],
		"has 1099511627776 bytes":    huge,
	} {
		data := bytes.Join([][]byte{good, bad}, nil)
		_, err := tfrecord.Format{}.Index(t.Context(), formattest.Bytes(data), func(err error) error { return err })
		if errkind.Of(err) != errkind.BadData || !strings.Contains(err.Error(), fmt.Sprintf("at offset %d ", len(good))) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
		x, err := tfrecord.Format{}.Index(t.Context(), formattest.Bytes(data), func(error) error { return nil })
		if err != nil || x.Samples != 1 {
			t.Errorf("%s: %d samples, %v", want, x.Samples, err)
		}
	}
}

func FuzzSurvive(f *testing.F) {
	f.Add(record(example("a", ints(true, 1, -2), "b", byteses("x"), "c", floats(false, 1.5))))
	f.Add(append(record(nil), record([]byte{0x0a, 0x02, 0x0a, 0x00})...))
	f.Add([]byte("000000000000"))
	f.Fuzz(func(t *testing.T, data []byte) { formattest.Survive(t, tfrecord.Format{}, data) })
}
