package storage

import (
	"archive/tar"
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

const bucket = "bench"

// set is a number of tar shards of samples of one size. A sample begins with its number; the rest is zeros.
type set struct {
	prefix  string
	samples int64
	bytes   int64 // of a sample
	shard   int64 // bytes of a shard
}

func (s set) perShard() int64 { return max(1, s.shard/(s.bytes+tarBlock)) }

func (s set) shards() int64 { return (s.samples + s.perShard() - 1) / s.perShard() }

// source is the pattern of its shards.
func (s set) source() []string {
	return []string{fmt.Sprintf("s3://%s/%s/{000000..%06d}.tar", bucket, s.prefix, s.shards()-1)}
}

func (s set) key(shard int64) string { return fmt.Sprintf("%s/%06d.tar", s.prefix, shard) }

const tarBlock = 512

// lay writes the shards below root.
func (s set) lay(root string) error {
	if err := os.MkdirAll(filepath.Join(root, bucket, filepath.FromSlash(s.prefix)), 0o750); err != nil {
		return fmt.Errorf("making the folder of a set: %w", err)
	}
	for i := range s.shards() {
		if err := s.layShard(filepath.Join(root, bucket, filepath.FromSlash(s.key(i))), i*s.perShard()); err != nil {
			return fmt.Errorf("writing shard %d: %w", i, err)
		}
	}
	return nil
}

func (s set) layShard(path string, first int64) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	out := bufio.NewWriterSize(f, mib)
	w, data := tar.NewWriter(out), make([]byte, s.bytes)
	for i := first; i < min(s.samples, first+s.perShard()); i++ {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("%09d.bin", i), Size: s.bytes, Mode: 0o644}); err != nil {
			return err
		}
		binary.LittleEndian.PutUint64(data, uint64(i)) //nolint:gosec // not negative
		if _, err := w.Write(data); err != nil {
			return err
		}
	}
	return errors.Join(w.Close(), out.Flush())
}
