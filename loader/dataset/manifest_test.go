package dataset_test

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset"
)

func drawManifest(t *rapid.T) *dataset.Manifest {
	text := rapid.StringN(0, 20, 60)
	m := &dataset.Manifest{Format: rapid.SampledFrom([]string{dataset.FormatWebDataset, dataset.FormatFolder}).Draw(t, "format")}
	for range rapid.IntRange(0, 6).Draw(t, "shards") {
		s := dataset.Shard{
			URI: text.Draw(t, "uri"), Pin: text.Draw(t, "pin"),
			Size: rapid.Int64Range(0, 1<<50).Draw(t, "size"), NumSamples: rapid.Int64Range(0, 1<<40).Draw(t, "samples"), DataBytes: rapid.Int64Range(0, 1<<50).Draw(t, "data"),
		}
		copy(s.Index[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "index"))
		m.Shards = append(m.Shards, s)
		if m.Format == dataset.FormatFolder {
			m.Classes = append(m.Classes, text.Draw(t, "class"))
		}
	}
	if rapid.Bool().Draw(t, "notes") {
		m.Missing = []string{text.Draw(t, "missing")}
		m.Damaged = []dataset.Damage{{URI: text.Draw(t, "damaged"), Reason: text.Draw(t, "reason")}}
	}
	return m
}

func TestDecodeGivesBackTheManifestAndItsID(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawManifest(t)
		got, err := dataset.DecodeManifest(m.Encode())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(m, got); diff != "" {
			t.Errorf("manifest (-want +got):\n%s", diff)
		}
		if m.ID() != got.ID() {
			t.Error("the ID does not survive")
		}
	})
}

func TestTheIDChangesWithTheContentAlone(t *testing.T) {
	base := func() *dataset.Manifest {
		return &dataset.Manifest{Format: dataset.FormatFolder, Classes: []string{"ab", "c"}, Shards: []dataset.Shard{{URI: "u", Pin: "p", Size: 1, NumSamples: 2, DataBytes: 3}, {URI: "v"}}}
	}
	id := base().ID()
	for name, change := range map[string]func(*dataset.Manifest){
		"format":  func(m *dataset.Manifest) { m.Format = dataset.FormatWebDataset },
		"classes": func(m *dataset.Manifest) { m.Classes = []string{"a", "bc"} },
		"URI":     func(m *dataset.Manifest) { m.Shards[0].URI = "up"; m.Shards[0].Pin = "" },
		"pin":     func(m *dataset.Manifest) { m.Shards[0].Pin = "q" },
		"size":    func(m *dataset.Manifest) { m.Shards[0].Size++ },
		"samples": func(m *dataset.Manifest) { m.Shards[0].NumSamples++ },
		"data":    func(m *dataset.Manifest) { m.Shards[0].DataBytes++ },
		"index":   func(m *dataset.Manifest) { m.Shards[1].Index[15]++ },
		"order":   func(m *dataset.Manifest) { m.Shards[0], m.Shards[1] = m.Shards[1], m.Shards[0] },
		"number":  func(m *dataset.Manifest) { m.Shards = m.Shards[:1] },
	} {
		m := base()
		change(m)
		if m.ID() == id {
			t.Errorf("another %s has the same ID", name)
		}
	}
	m := base()
	m.Missing, m.Damaged = []string{"x"}, []dataset.Damage{{URI: "y"}}
	if m.ID() != id {
		t.Error("what is missing changes the ID of what is there")
	}
}

func TestEveryFlippedBitOfAManifestIsFound(t *testing.T) {
	raw := (&dataset.Manifest{Format: dataset.FormatWebDataset, Shards: []dataset.Shard{{URI: "u", Pin: "p", Size: 1}}}).Encode()
	for i := range len(raw) * 8 {
		bad := bytes.Clone(raw)
		bad[i/8] ^= 1 << (i % 8)
		if _, err := dataset.DecodeManifest(bad); errkind.Of(err) != errkind.BadData {
			t.Errorf("bit %d flipped: %v, want BadData", i, err)
		}
	}
}

// FuzzDecodeManifest also tries inputs whose checksum it has mended, to reach the checks behind it.
func FuzzDecodeManifest(f *testing.F) {
	f.Add([]byte{}, false)
	f.Add((&dataset.Manifest{Format: dataset.FormatFolder}).Encode(), false)
	f.Add((&dataset.Manifest{Format: dataset.FormatWebDataset, Shards: []dataset.Shard{{URI: "u", Pin: "p", Size: 9, NumSamples: 3}}, Missing: []string{"m"}}).Encode(), true)
	f.Fuzz(func(t *testing.T, raw []byte, mend bool) {
		if mend && len(raw) >= 4 {
			body := raw[:len(raw)-4]
			raw = binary.LittleEndian.AppendUint32(bytes.Clone(body), crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli)))
		}
		m, err := dataset.DecodeManifest(raw)
		if err != nil {
			if errkind.Of(err) != errkind.BadData {
				t.Errorf("%v is not BadData", err)
			}
			return
		}
		again, err := dataset.DecodeManifest(m.Encode())
		if err != nil || again.ID() != m.ID() {
			t.Errorf("encoded again: %v, or another ID", err)
		}
		if m.NumSamples() < 0 || m.DataBytes() < 0 {
			t.Errorf("sums overflow: %d samples, %d bytes", m.NumSamples(), m.DataBytes())
		}
	})
}
