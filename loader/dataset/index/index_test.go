package index_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset/index"
)

type sample struct {
	Key    string
	Fields []index.Field
}

func build(t interface{ Fatal(args ...any) }, samples []sample, archive int64) []byte {
	b := &index.Builder{}
	for _, s := range samples {
		if err := b.Add(s.Key, s.Fields); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes(archive)
}

func contents(x *index.Index) []sample {
	var out []sample
	for i := range x.NumSamples() {
		s := sample{Key: x.Key(i)}
		x.Fields(i, func(_ int, f index.Field) { s.Fields = append(s.Fields, f) })
		out = append(out, s)
	}
	return out
}

func TestParseGivesBackWhatWasAdded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pins := rapid.Bool().Draw(t, "pins")
		field := rapid.Custom(func(t *rapid.T) index.Field {
			f := index.Field{
				Name:   rapid.SampledFrom([]string{"jpg", "cls", "seg.png", "", "ü"}).Draw(t, "name"),
				Offset: rapid.Int64Range(0, 1<<40).Draw(t, "offset"),
				Length: rapid.Int64Range(0, 1<<30).Draw(t, "length"),
			}
			if pins {
				f.Pin = rapid.StringN(0, 20, 40).Draw(t, "pin")
			}
			return f
		})
		samples := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) sample {
			return sample{Key: rapid.String().Draw(t, "key"), Fields: rapid.SliceOfN(field, 1, 5).Draw(t, "fields")}
		}), 1, 20).Draw(t, "samples")
		raw := build(t, samples, 1<<41)
		x, err := index.Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(samples, contents(x)); diff != "" {
			t.Errorf("samples (-want +got):\n%s", diff)
		}
		var data int64
		for _, s := range samples {
			for _, f := range s.Fields {
				data += f.Length
			}
		}
		if x.DataBytes() != data || x.ArchiveBytes() != 1<<41 {
			t.Errorf("DataBytes %d, ArchiveBytes %d, want %d, %d", x.DataBytes(), x.ArchiveBytes(), data, int64(1)<<41)
		}
	})
}

func TestAnIndexWithoutSamplesIsWhole(t *testing.T) {
	x, err := index.Parse((&index.Builder{}).Bytes(10_240))
	if err != nil || x.NumSamples() != 0 || x.DataBytes() != 0 {
		t.Errorf("%v with %v", x, err)
	}
}

func TestEveryFlippedBitIsFound(t *testing.T) {
	raw := build(t, []sample{{"a", []index.Field{{Name: "jpg", Offset: 512, Length: 10}}}}, 2048)
	for i := range len(raw) * 8 {
		bad := bytes.Clone(raw)
		bad[i/8] ^= 1 << (i % 8)
		if _, err := index.Parse(bad); errkind.Of(err) != errkind.BadData {
			t.Errorf("bit %d flipped: %v, want BadData", i, err)
		}
	}
	for n := range raw {
		if _, err := index.Parse(raw[:n]); errkind.Of(err) != errkind.BadData {
			t.Errorf("cut to %d bytes: %v, want BadData", n, err)
		}
	}
}

func TestTheBuilderRefusesWhatNoArchiveHolds(t *testing.T) {
	long := strings.Repeat("x", index.MaxText+1)
	for _, s := range []sample{
		{long, nil},
		{"k", []index.Field{{Name: long}}},
		{"k", []index.Field{{Name: "a", Offset: -1}}},
		{"k", []index.Field{{Name: "a", Length: -1}}},
		{"k", []index.Field{{Name: "a", Offset: 1 << 62, Length: 1 << 62}}},
	} {
		if err := (&index.Builder{}).Add(s.Key, s.Fields); errkind.Of(err) != errkind.BadData {
			t.Errorf("Add of a key of %d bytes, %d fields: %v, want BadData", len(s.Key), len(s.Fields), err)
		}
	}
}

// The size of an index is what it costs in memory: a million samples of three fields fit in 100 MB.
func TestAnIndexIsSmall(t *testing.T) {
	b := &index.Builder{}
	for i := range 1000 {
		off := int64(i) * 200_000
		if err := b.Add(fmt.Sprintf("n01440764_%08d", i), []index.Field{{Name: "jpg", Offset: off, Length: 100_000}, {Name: "cls", Offset: off, Length: 3}, {Name: "json", Offset: off, Length: 300}}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(b.Bytes(1 << 40)); n > 100_000 {
		t.Errorf("1,000 samples take %d bytes, more than 100,000", n)
	}
}

// FuzzParse also tries inputs whose checksum it has mended, which is where the checks behind it are reached.
func FuzzParse(f *testing.F) {
	f.Add([]byte{}, false)
	f.Add((&index.Builder{}).Bytes(0), false)
	raw := build(f, []sample{{"a", []index.Field{{Name: "jpg", Offset: 512, Length: 10, Pin: "p"}}}, {"b", []index.Field{{Name: "cls", Offset: 1024, Length: 1}}}}, 2048)
	f.Add(raw, false)
	f.Add(raw[:len(raw)-5], true)
	f.Fuzz(func(t *testing.T, raw []byte, mend bool) {
		if mend && len(raw) >= 4 {
			body := raw[:len(raw)-4]
			raw = binary.LittleEndian.AppendUint32(bytes.Clone(body), crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli)))
		}
		x, err := index.Parse(raw)
		if err != nil {
			if errkind.Of(err) != errkind.BadData {
				t.Errorf("%v is not BadData", err)
			}
			return
		}
		var data int64
		for _, s := range contents(x) {
			for _, f := range s.Fields {
				if f.Offset < 0 || f.Length < 0 || f.Offset+f.Length > x.ArchiveBytes() {
					t.Errorf("field %+v lies outside the archive of %d bytes", f, x.ArchiveBytes())
				}
				data += f.Length
			}
		}
		if data != x.DataBytes() {
			t.Errorf("fields have %d bytes, the index states %d", data, x.DataBytes())
		}
	})
}
