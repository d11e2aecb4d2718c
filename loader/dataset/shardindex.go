package dataset

import (
	"encoding/binary"
	"strings"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset/format"
	"github.com/millrace/millrace/loader/dataset/index"
)

// shardIndex is the index of a shard: that of a tar or a folder, or that of another format.
type shardIndex struct {
	raw     []byte
	members *index.Index // tar shards and folders
	shard   format.Shard // other formats
	content int64        // bytes of the shard after decompression
	data    int64        // payload bytes of its samples
	sums    []uint32     // checksums of the fields of a tar shard, nil if they are not known
}

// membersMagic begins the index of a tar shard or a folder.
const membersMagic = "MRIX"

// openIndex checks the index of the shard uri.
func openIndex(uri string, raw []byte) (*shardIndex, error) {
	if strings.HasPrefix(string(raw[:min(len(raw), len(membersMagic))]), membersMagic) {
		x, err := index.Parse(raw)
		if err != nil {
			return nil, err
		}
		return &shardIndex{raw: raw, members: x, content: x.ArchiveBytes(), data: x.DataBytes()}, nil
	}
	t := typeOf(uri)
	r := format.Reader{Rest: raw}
	content, data := r.Int(maxTotal), r.Int(maxTotal)
	if t.format == nil || r.Bad {
		return nil, errkind.Errorf(errkind.BadData, "reading a shard index of %d bytes: it is no index of such a shard", len(raw))
	}
	s, err := t.format.Open(r.Rest)
	if err != nil {
		return nil, errkind.Errorf(errkind.BadData, "reading a %s index of %d bytes: %w", t.format.Name(), len(raw), err)
	}
	return &shardIndex{raw: raw, shard: s, content: content, data: data}, nil
}

// sealIndex is the index of a shard of another format.
func sealIndex(x format.Indexed) []byte {
	b := binary.AppendUvarint(make([]byte, 0, len(x.Raw)+2*binary.MaxVarintLen64), uint64(x.Content)) //nolint:gosec // not negative
	b = binary.AppendUvarint(b, uint64(x.DataBytes))                                                  //nolint:gosec // not negative
	return append(b, x.Raw...)
}

// NumSamples is the number of samples of the shard.
func (x *shardIndex) NumSamples() int64 {
	if x.members != nil {
		return int64(x.members.NumSamples())
	}
	return x.shard.NumSamples()
}

// MemoryBytes is about what the index holds in memory.
func (x *shardIndex) MemoryBytes() int64 {
	if x.members != nil {
		return x.members.MemoryBytes() + 4*int64(len(x.sums))
	}
	return int64(len(x.raw)) + x.shard.MemoryBytes()
}

// Names are the fields that samples of the shard may have.
func (x *shardIndex) Names() []string {
	if x.members != nil {
		return x.members.Names()
	}
	names := make([]string, 0, len(x.shard.Columns()))
	for _, c := range x.shard.Columns() {
		names = append(names, c.Name)
	}
	return names
}
