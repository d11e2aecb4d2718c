package dataset

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/internal/errkind"
)

// Formats of sources.
const (
	// FormatWebDataset is a list of tar shards.
	FormatWebDataset = "webdataset"
	// FormatFolder is a directory of image files, by class or flat.
	FormatFolder = "folder"
	// FormatVideoFolder and FormatAudioFolder are the same of videos, and of audio files.
	FormatVideoFolder = "videofolder"
	FormatAudioFolder = "audiofolder"
	// FormatList is a list of files.
	FormatList = "list"
)

// Shard is one stored object (or, in an image folder, one directory) that holds samples.
type Shard struct {
	// URI is where the shard lies, in the form of store.Canonical.
	URI string
	// Size is its size in bytes as stored; of all its image files together for a directory.
	Size int64
	// Pin is the version that was indexed; empty if the store has none and that was allowed.
	Pin string
	// NumSamples is the number of samples.
	NumSamples int64
	// DataBytes is the number of payload bytes of its samples.
	DataBytes int64
	// Index is the hash of the shard's index object.
	Index [16]byte
}

// Damage is a shard of which only the samples before a damaged place are in the manifest.
type Damage struct {
	// URI is that of the shard.
	URI string
	// Reason says what is wrong, and where.
	Reason string
}

// Manifest is an immutable list of shards. It must not be changed once its ID was asked for.
type Manifest struct {
	// Format is FormatWebDataset, FormatFolder or that of other folders, or the name of another format: "parquet", "jsonl", …
	Format string
	// Shards are the shards in the order of the source.
	Shards []Shard
	// Classes are the names of the classes of an image folder: class i is shard i. Empty for other sources.
	Classes []string
	// Missing are the shards that were asked for, not found, and tolerated. They are no part of the ID.
	Missing []string
	// Damaged are the shards that were cut short, and tolerated. They are no part of the ID.
	Damaged []Damage
}

// ID identifies the content: format, classes, and every property of every shard.
func (m *Manifest) ID() [16]byte {
	h := xxh3.New()
	var b []byte
	flush := func() {
		_, _ = h.Write(b) // a hash takes all
		b = b[:0]
	}
	b = appendHeader(b, m)
	flush()
	for i := range m.Shards {
		b = appendShard(b, &m.Shards[i])
		flush()
	}
	return h.Sum128().Bytes()
}

// NumSamples is the number of samples of all shards.
func (m *Manifest) NumSamples() int64 {
	var n int64
	for i := range m.Shards {
		n += m.Shards[i].NumSamples
	}
	return n
}

// DataBytes is the number of payload bytes of all samples.
func (m *Manifest) DataBytes() int64 {
	var n int64
	for i := range m.Shards {
		n += m.Shards[i].DataBytes
	}
	return n
}

// maxTotal bounds sums over shards, so that they can't overflow: 2^60 bytes are an exbibyte.
const maxTotal = 1 << 60

func (m *Manifest) check() error {
	if m.Format != FormatWebDataset && !isFolder(m.Format) && formatNamed(m.Format) == nil {
		return errkind.Errorf(errkind.BadData, "manifest: unknown format %q", m.Format)
	}
	if len(m.Classes) > 0 && (!isFolder(m.Format) || m.Format == FormatList || len(m.Classes) != len(m.Shards)) {
		return errkind.Errorf(errkind.BadData, "manifest: %d classes for %d shards of format %s", len(m.Classes), len(m.Shards), m.Format)
	}
	var samples, data, size int64
	for i := range m.Shards {
		s := &m.Shards[i]
		for _, c := range []struct {
			v   int64
			sum *int64
		}{{s.NumSamples, &samples}, {s.DataBytes, &data}, {s.Size, &size}} {
			if c.v < 0 || c.v > maxTotal-*c.sum {
				return errkind.Errorf(errkind.BadData, "manifest: shard %s: impossible sizes", s.URI)
			}
			*c.sum += c.v
		}
	}
	return nil
}

func appendHeader(b []byte, m *Manifest) []byte {
	b = appendText(b, m.Format)
	b = binary.AppendUvarint(b, uint64(len(m.Classes)))
	for _, c := range m.Classes {
		b = appendText(b, c)
	}
	return binary.AppendUvarint(b, uint64(len(m.Shards)))
}

func appendShard(b []byte, s *Shard) []byte {
	b = appendText(b, s.URI)
	b = appendText(b, s.Pin)
	for _, v := range []int64{s.Size, s.NumSamples, s.DataBytes} {
		b = binary.AppendUvarint(b, uint64(v)) //nolint:gosec // not negative
	}
	return append(b, s.Index[:]...)
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}
