package dataset

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/millrace/millrace/internal/errkind"
)

// ManifestVersion is the version of the encoding that Encode writes and the only one that Decode reads.
const ManifestVersion = 1

const manifestMagic = "MRMF"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Encode writes m in the format of docs/formats/manifest.md.
func (m *Manifest) Encode() []byte {
	b := append(make([]byte, 0, 128+len(m.Shards)*128), manifestMagic...)
	b = binary.LittleEndian.AppendUint16(b, ManifestVersion)
	b = appendHeader(b, m)
	for i := range m.Shards {
		b = appendShard(b, &m.Shards[i])
	}
	b = binary.AppendUvarint(b, uint64(len(m.Missing)))
	for _, uri := range m.Missing {
		b = appendText(b, uri)
	}
	b = binary.AppendUvarint(b, uint64(len(m.Damaged)))
	for _, d := range m.Damaged {
		b = appendText(appendText(b, d.URI), d.Reason)
	}
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// DecodeManifest reads what Encode wrote. Anything else is BadData.
func DecodeManifest(b []byte) (*Manifest, error) {
	m, err := decodeManifest(b)
	if err != nil {
		return nil, errkind.Errorf(errkind.BadData, "reading a manifest of %d bytes: %w", len(b), err)
	}
	return m, nil
}

func decodeManifest(b []byte) (*Manifest, error) {
	if len(b) < len(manifestMagic)+6 || string(b[:len(manifestMagic)]) != manifestMagic {
		return nil, errkind.Errorf(errkind.BadData, "it is no manifest")
	}
	if v := binary.LittleEndian.Uint16(b[4:]); v != ManifestVersion {
		return nil, errkind.Errorf(errkind.BadData, "it has version %d, this program reads version %d", v, ManifestVersion)
	}
	body := b[:len(b)-4]
	if got, want := crc32.Checksum(body, castagnoli), binary.LittleEndian.Uint32(b[len(body):]); got != want {
		return nil, errkind.Errorf(errkind.BadData, "its checksum is %08x, should be %08x", got, want)
	}
	d := &decoder{b: body[6:]}
	m := &Manifest{Format: d.text()}
	m.Classes = listOf(d, 1, d.text)
	m.Shards = listOf(d, minShardBytes, d.shard)
	m.Missing = listOf(d, 1, d.text)
	m.Damaged = listOf(d, 2, func() Damage { return Damage{URI: d.text(), Reason: d.text()} })
	if d.bad || len(d.b) != 0 {
		return nil, errkind.Errorf(errkind.BadData, "its content does not fit its size")
	}
	if err := m.check(); err != nil {
		return nil, err
	}
	return m, nil
}

// minShardBytes is the least that an encoded shard takes: five one-byte varints and a hash.
const minShardBytes = 5 + 16

// decoder takes values off b; what does not fit sets bad and yields zero values.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.bad, d.b = true, nil
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) bytes(n uint64) []byte {
	if n > uint64(len(d.b)) {
		d.bad, d.b = true, nil
		return nil
	}
	out := d.b[:n]
	d.b = d.b[n:]
	return out
}

func (d *decoder) text() string { return string(d.bytes(d.uvarint())) }

func (d *decoder) shard() Shard {
	s := Shard{URI: d.text(), Pin: d.text()}
	s.Size = int64(d.uvarint())       //nolint:gosec // check refuses negative values
	s.NumSamples = int64(d.uvarint()) //nolint:gosec // check refuses negative values
	s.DataBytes = int64(d.uvarint())  //nolint:gosec // check refuses negative values
	copy(s.Index[:], d.bytes(uint64(len(s.Index))))
	return s
}

// listOf takes a count and as many items of at least minBytes each: the count is checked against what is
// left before anything is allocated for it.
func listOf[T any](d *decoder, minBytes int, item func() T) []T {
	n := d.uvarint()
	if n > uint64(len(d.b)/minBytes) { //nolint:gosec // not negative
		d.bad, d.b = true, nil
		return nil
	}
	if n == 0 {
		return nil
	}
	out := make([]T, 0, n)
	for range n {
		out = append(out, item())
	}
	return out
}
