package mds_test

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"go.uber.org/goleak"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/loader/dataset/datasettest"
	"github.com/millrace/millrace/loader/dataset/format"
	"github.com/millrace/millrace/loader/dataset/formattest"
	"github.com/millrace/millrace/loader/dataset/mds"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// column is one of a shard; size 0 is that of each value.
type column struct {
	name, encoding string
	size           int
}

// shard writes samples, each with a value for each column, as Streaming's MDSWriter does.
func shard(t *testing.T, columns []column, samples ...[][]byte) []byte {
	t.Helper()
	var names, encodings []string
	var sizes []any
	for _, c := range columns {
		names, encodings = append(names, c.name), append(encodings, c.encoding)
		if c.size > 0 {
			sizes = append(sizes, c.size)
		} else {
			sizes = append(sizes, nil)
		}
	}
	config, err := json.Marshal(map[string]any{
		"version": 2, "format": "mds", "compression": nil, "hashes": []string{}, "size_limit": 1 << 26,
		"column_names": names, "column_encodings": encodings, "column_sizes": sizes,
	})
	if err != nil {
		t.Fatal(err)
	}
	head := binary.LittleEndian.AppendUint32(nil, uint32(len(samples)))
	at := len(head) + 4*(len(samples)+1) + len(config)
	head = binary.LittleEndian.AppendUint32(head, uint32(at))
	var body []byte
	for _, values := range samples {
		for i, c := range columns {
			if c.size == 0 {
				body = binary.LittleEndian.AppendUint32(body, uint32(len(values[i])))
			}
		}
		body = append(body, bytes.Join(values, nil)...)
		head = binary.LittleEndian.AppendUint32(head, uint32(at+len(body)))
	}
	return bytes.Join([][]byte{head, config, body}, nil)
}

func le(values ...any) []byte {
	var b []byte
	for _, v := range values {
		b, _ = binary.Append(b, binary.LittleEndian, v)
	}
	return b
}

func TestLawsPlainAndCompressed(t *testing.T) {
	columns := []column{{"image", "jpeg", 0}, {"label", "int", 8}, {"text", "str", 0}, {"score", "float32", 4}, {"meta", "json", 0}}
	var rows []formattest.Row
	part := func(from, to int) []byte {
		var samples [][][]byte
		for i := from; i < to; i++ {
			image, text := strings.Repeat(string([]byte{0xff, byte(i)}), i%60), fmt.Sprintf("line %d", i)
			meta := fmt.Sprintf(`{"n": [%d]}`, i)
			samples = append(samples, [][]byte{[]byte(image), le(int64(i - 50)), []byte(text), le(float32(i) / 2), []byte(meta)})
			rows = append(rows, formattest.Row{"image": image, "label": fmt.Sprint(i - 50), "text": text, "score": fmt.Sprint(float32(i) / 2), "meta": meta})
		}
		return shard(t, columns, samples...)
	}
	first, second := part(0, 150), part(150, 260)
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{"shard.00000.mds": first, "shard.00001.mds.zstd": w.EncodeAll(second, nil), "index.json": []byte("{}")}
	formattest.Check(t, os.Getenv("MILLRACE_S3_SERVERS"), formattest.Set{Files: files, Format: "mds", Rows: rows})
}

// read is the values of the one sample of a shard with one column.
func read(t *testing.T, encoding string, value []byte) (format.Type, string, error) {
	t.Helper()
	data := shard(t, []column{{"x", encoding, 0}}, [][]byte{value})
	x, err := mds.Format{}.Index(t.Context(), formattest.Bytes(data), func(err error) error { return err })
	if err != nil {
		return 0, "", err
	}
	s, err := mds.Format{}.Open(x.Raw)
	if err != nil {
		t.Fatal(err)
	}
	units, err := s.Units([]int64{0}, []bool{true})
	if err != nil {
		t.Fatal(err)
	}
	at := units[0].Ranges[0]
	b, err := s.Decode(t.Context(), units[0], []bool{true}, [][]byte{data[at.Off : at.Off+at.Len]}, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	err = b.Values(0, func(_ int, data []byte) { got = string(data) })
	return s.Columns()[0].Type, got, err
}

func TestEveryEncoding(t *testing.T) {
	files := func(placeholder bool, names ...string) []byte {
		var b []byte
		if placeholder {
			b = le(uint32(0))
		}
		b = append(b, le(uint32(len(names)))...)
		for _, n := range names {
			b = append(b, le(uint32(len(n)))...)
		}
		return append(b, strings.Join(names, "")...)
	}
	list := fmt.Sprintf(`["%s","%s"]`, base64.StdEncoding.EncodeToString([]byte("first")), base64.StdEncoding.EncodeToString([]byte("2")))
	for _, c := range []struct {
		encoding string
		value    []byte
		kind     format.Type
		want     string
	}{
		{"bytes", []byte{0, 255}, format.Bytes, "\x00\xff"},
		{"bytes", nil, format.Bytes, ""},
		{"str", []byte("grüß"), format.Text, "grüß"},
		{"int", le(int64(-5)), format.Int64, "-5"},
		{"uint8", le(uint8(200)), format.Int64, "200"},
		{"int8", le(int8(-2)), format.Int64, "-2"},
		{"uint16", le(uint16(65535)), format.Int64, "65535"},
		{"int16", le(int16(-300)), format.Int64, "-300"},
		{"uint32", le(uint32(1 << 31)), format.Int64, "2147483648"},
		{"int32", le(int32(-1 << 31)), format.Int64, "-2147483648"},
		{"uint64", le(uint64(1 << 63)), format.Int64, "9223372036854775808"},
		{"int64", le(int64(math.MinInt64)), format.Int64, "-9223372036854775808"},
		{"float16", le(uint16(0x3555)), format.Float64, "0.33325195"},
		{"float16", le(uint16(0x8001)), format.Float64, "-5.9604645e-08"},
		{"float16", le(uint16(0xfc00)), format.Float64, "-Infinity"},
		{"float16", le(uint16(0x7e00)), format.Float64, "NaN"},
		{"float32", le(float32(0.1)), format.Float64, "0.1"},
		{"float64", le(0.1), format.Float64, "0.1"},
		{"str_int", []byte("123456789012345678901234567890"), format.Int64, "123456789012345678901234567890"},
		{"str_float", []byte("1e400"), format.Float64, "1e400"},
		{"str_decimal", []byte("1.10"), format.Text, "1.10"},
		{"json", []byte(`{"a": [1]}`), format.JSON, `{"a": [1]}`},
		{"jpeg", []byte("\xff\xd8"), format.Bytes, "\xff\xd8"},
		{"png", []byte("\x89PNG"), format.Bytes, "\x89PNG"},
		{"ndarray:int16:2,3", le(int16(1), int16(2), int16(3), int16(-4), int16(5), int16(6)), format.JSON, "[[1,2,3],[-4,5,6]]"},
		{"ndarray:uint8", []byte{2 << 2, 1, 3, 7, 8, 9}, format.JSON, "[[7,8,9]]"},
		{"ndarray:uint8", []byte{1<<2 | 1, 2, 0, 7, 8}, format.JSON, "[7,8]"},
		{"ndarray", append([]byte{66, 1<<2 | 2, 2, 0, 0, 0}, le(0.5, math.Inf(1))...), format.JSON, `[0.5,"Infinity"]`},
		{"list[jpeg]", files(true, "first", "2"), format.JSON, list},
		{"list[png]", files(true), format.JSON, "[]"},
		{"jpeg_array", files(false, "first", "2"), format.JSON, list},
		{"jpegarray", files(false, "first", "2"), format.JSON, list},
	} {
		kind, got, err := read(t, c.encoding, c.value)
		if err != nil || kind != c.kind || got != c.want {
			t.Errorf("%s of %x: %s %q, want %s %q: %v", c.encoding, c.value, kind, got, c.kind, c.want, err)
		}
	}
}

// Raw images become PNGs of the same pixels.
func TestRawImagesBecomeFiles(t *testing.T) {
	raw := func(mode string, pix ...byte) []byte {
		return append(append(le(uint32(2), uint32(1), uint32(len(mode))), mode...), pix...)
	}
	for _, c := range []struct {
		value []byte
		want  [2]color.Color
	}{
		{raw("L", 3, 200), [2]color.Color{color.Gray{Y: 3}, color.Gray{Y: 200}}},
		{raw("RGB", 1, 2, 3, 4, 5, 6), [2]color.Color{color.RGBA{1, 2, 3, 255}, color.RGBA{4, 5, 6, 255}}},
		{raw("RGBA", 1, 2, 3, 0, 4, 5, 6, 128), [2]color.Color{color.NRGBA{1, 2, 3, 0}, color.NRGBA{4, 5, 6, 128}}},
		{raw("I;16", 1, 2, 3, 4), [2]color.Color{color.Gray16{Y: 0x0201}, color.Gray16{Y: 0x0403}}},
	} {
		_, got, err := read(t, "pil", c.value)
		if err != nil {
			t.Fatal(err)
		}
		m, err := png.Decode(strings.NewReader(got))
		if err != nil || m.Bounds() != image.Rect(0, 0, 2, 1) {
			t.Fatalf("%v, %v", m, err)
		}
		for x, want := range c.want {
			if m.At(x, 0) != want {
				t.Errorf("pixel %d of %q is %v, want %v", x, c.value, m.At(x, 0), want)
			}
		}
		listed := append(le(uint32(0), uint32(1), uint32(len(c.value))), c.value...)
		if _, list, err := read(t, "list[pil]", listed); err != nil || list != fmt.Sprintf(`["%s"]`, base64.StdEncoding.EncodeToString([]byte(got))) {
			t.Errorf("in a list: %q, %v", list, err)
		}
	}
}

func TestBadValuesAreErrorsThatNameTheColumn(t *testing.T) {
	for _, c := range []struct {
		encoding string
		value    []byte
		kind     errkind.Kind
		says     string
	}{
		{"str", []byte{0xff}, errkind.BadData, "it is no text"},
		{"json", []byte("{"), errkind.BadData, "it is no JSON"},
		{"int32", []byte{1, 2}, errkind.BadData, "it is no int32: it has 2 bytes"},
		{"ndarray:int16:2,3", le(int16(1)), errkind.BadData, "does not fit 2 bytes"},
		{"ndarray:uint8", []byte{1<<2 | 3, 0, 0, 0, 0, 0, 0, 0, 255, 1}, errkind.BadData, "has a side of"},
		{"ndarray:uint8", []byte{0, 1}, errkind.BadData, "does not fit"},
		{"ndarray", []byte{1, 1}, errkind.BadData, "unknown type 1"},
		{"list[jpeg]", le(uint32(0), uint32(5)), errkind.BadData, "the list is cut off"},
		{"jpeg_array", le(uint32(1), uint32(5)), errkind.BadData, "the list is cut off"},
		{"pil", le(uint32(9), uint32(9), uint32(1), uint8('L')), errkind.BadData, "9x9 pixels in mode L do not fit 0 bytes"},
		{"pil", append(le(uint32(1), uint32(1), uint32(4)), "CMYK...."...), errkind.Invalid, `mode "CMYK"`},
		{"pkl", []byte("x"), errkind.Invalid, "pickled Python"},
		{"unheard", []byte("x"), errkind.Invalid, `unknown encoding "unheard"`},
		{"ndarray:int7", []byte("x"), errkind.Invalid, `unknown type "int7"`},
		{"ndarray:int8:0", []byte("x"), errkind.Invalid, `"0" is no shape`},
	} {
		if _, _, err := read(t, c.encoding, c.value); errkind.Of(err) != c.kind || !strings.Contains(fmt.Sprint(err), c.says) || !strings.Contains(fmt.Sprint(err), `column "x"`) {
			t.Errorf("%s of %x: %v", c.encoding, c.value, err)
		}
	}
}

// What a shard says of itself is checked; one that was cut off is told, and read up to there if that is asked for.
func TestDamagedShardsAreTold(t *testing.T) {
	good := shard(t, []column{{"a", "int", 8}, {"b", "bytes", 0}}, [][]byte{le(int64(1)), []byte("x")}, [][]byte{le(int64(2)), []byte("yy")})
	later := bytes.Clone(good)
	binary.LittleEndian.PutUint32(later[4:], 1<<30)
	for what, c := range map[string]struct {
		data []byte
		says string
		rest int64 // samples that can be read if damage is tolerated, -1 for none
	}{
		"cut off":          {good[:len(good)-1], "sample 1 is cut off", 1},
		"only a number":    {[]byte{9, 0, 0, 0, 1}, "ends within its header", -1},
		"another version":  {bytes.Replace(good, []byte(`"version":2`), []byte(`"version":3`), 1), "version 3", -1},
		"no JSON":          {bytes.Replace(good, []byte(`"version"`), []byte(`"version_`), 1), "can't be read", -1},
		"samples far away": {later, "can't begin at offset 1073741824", -1},
	} {
		_, err := mds.Format{}.Index(t.Context(), formattest.Bytes(c.data), func(err error) error { return err })
		if errkind.Of(err) != errkind.BadData || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", what, err)
		}
		x, err := mds.Format{}.Index(t.Context(), formattest.Bytes(c.data), func(error) error { return nil })
		if c.rest >= 0 && (err != nil || x.Samples != c.rest) || c.rest < 0 && err == nil {
			t.Errorf("%s, tolerated: %d samples, %v", what, x.Samples, err)
		}
	}
	// A size within a sample that can't be is an error of that sample alone.
	bad := bytes.Clone(good)
	at := len(bad) - (4 + 8 + 2)
	bad[at] = 99
	dir := t.TempDir()
	datasettest.WriteFile(t, dir, "x.mds", bad)
	r := datasettest.Resolver(t, nil)
	m, err := dataset.Build(t.Context(), r, []string{dir + "/x.mds"}, nil, dataset.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	samples, release, err := datasettest.Open(t, m, r, nil, dataset.OpenOptions{}).Read(t.Context(), []int64{0, 1}, nil)
	defer release()
	if err != nil || samples[0].Err != nil || errkind.Of(samples[1].Err) != errkind.BadData || !strings.Contains(samples[1].Err.Error(), `column "b" has 99 bytes`) {
		t.Errorf("%+v, %v", samples, err)
	}
}

func FuzzSurvive(f *testing.F) {
	f.Add([]byte{})
	f.Add(bytes.Join([][]byte{le(uint32(1), uint32(113), uint32(115)), []byte(`{"version":2,"format":"mds","column_names":["a"],"column_encodings":["bytes"],"column_sizes":[2]}....`), []byte("xy")}, nil))
	f.Fuzz(func(t *testing.T, data []byte) { formattest.Survive(t, mds.Format{}, data) })
}
