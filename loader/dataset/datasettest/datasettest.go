// Package datasettest writes small datasets for tests: tar shards, image folders, and a synthetic set in memory.
package datasettest

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/loader/store"
	"github.com/millrace/millrace/loader/store/filestore"
	"github.com/millrace/millrace/loader/store/memstore"
)

// Member is one file of a sample.
type Member struct {
	// Ext is the extension without the first dot, "jpg" or "seg.png".
	Ext string
	// Data is the content.
	Data []byte
}

// Sample is a sample as it is written.
type Sample struct {
	// Key is the path of the members without their extension.
	Key string
	// Members are the files, in the order of the archive.
	Members []Member
}

// Tar is an archive of samples.
func Tar(tb testing.TB, samples ...Sample) []byte {
	tb.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, s := range samples {
		for _, m := range s.Members {
			if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: s.Key + "." + m.Ext, Size: int64(len(m.Data)), Mode: 0o644}); err != nil {
				tb.Fatal(err)
			}
			if _, err := w.Write(m.Data); err != nil {
				tb.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return buf.Bytes()
}

// WriteTar writes an archive of samples to the file name in dir, and is its path.
func WriteTar(tb testing.TB, dir, name string, samples ...Sample) string {
	tb.Helper()
	return WriteFile(tb, dir, name, Tar(tb, samples...))
}

// WriteFile writes a file, with its directories, and is its path.
func WriteFile(tb testing.TB, dir, name string, data []byte) string {
	tb.Helper()
	path := filepath.Join(dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		tb.Fatal(err)
	}
	return path
}

// Samples are n samples of three members. They differ in key, size and bytes, which depend on nothing
// but the number of the sample: "bin" has 1 to 3,000 bytes, "cls" is the number modulo 10, "txt" names the sample.
func Samples(n int) []Sample {
	out := make([]Sample, n)
	for i := range out {
		bin := make([]byte, 1+i*977%3000)
		state := uint64(i) + 1
		for j := 0; j < len(bin); j += 8 {
			// Xorshift: bytes that do not repeat, so that a read at a wrong place is noticed.
			state ^= state << 13
			state ^= state >> 7
			state ^= state << 17
			copy(bin[j:], binary.LittleEndian.AppendUint64(nil, state))
		}
		key := fmt.Sprintf("%06d", i)
		out[i] = Sample{Key: key, Members: []Member{{"bin", bin}, {"cls", []byte(strconv.Itoa(i % 10))}, {"txt", []byte("sample " + key)}}}
	}
	return out
}

// Set is a dataset in memory.
type Set struct {
	// Store holds the shards, under the keys "train-000000.tar" and so on.
	Store *memstore.Store
	// Resolver finds them as mem://data/…, and files.
	Resolver *store.Resolver
	// Source is the source's pattern.
	Source []string
	// Samples are all samples, in the order of the manifest.
	Samples []Sample
}

// Synthetic is a set of n [Samples] in tar shards of perShard samples each.
func Synthetic(tb testing.TB, n, perShard int) *Set {
	tb.Helper()
	s := &Set{Store: memstore.New(), Samples: Samples(n)}
	shards := 0
	for at := 0; at < n; at += perShard {
		s.Store.Put(fmt.Sprintf("train-%06d.tar", shards), Tar(tb, s.Samples[at:min(n, at+perShard)]...))
		shards++
	}
	s.Source = []string{fmt.Sprintf("mem://data/train-{000000..%06d}.tar", shards-1)}
	s.Resolver = Resolver(tb, map[string]*memstore.Store{"data": s.Store})
	return s
}

// Resolver finds files, and stores in memory by name. It is closed when the test ends.
func Resolver(tb testing.TB, stores map[string]*memstore.Store) *store.Resolver {
	tb.Helper()
	r := store.NewResolver(map[string]store.OpenFunc{"file": filestore.Open, "mem": memstore.Opener(stores)})
	tb.Cleanup(func() {
		if err := r.Close(); err != nil {
			tb.Errorf("closing the resolver: %v", err)
		}
	})
	return r
}

// Build makes the set's manifest.
func (s *Set) Build(tb testing.TB) *dataset.Manifest {
	tb.Helper()
	m, err := dataset.Build(tb.Context(), s.Resolver, s.Source, nil, dataset.BuildOptions{})
	if err != nil {
		tb.Fatalf("building the synthetic set: %v", err)
	}
	return m
}

// Open builds the set's manifest and opens it. The dataset is closed when the test ends.
func (s *Set) Open(tb testing.TB) *dataset.Dataset {
	tb.Helper()
	return Open(tb, s.Build(tb), s.Resolver, nil, dataset.OpenOptions{})
}

// Open opens a dataset that is closed when the test ends.
func Open(tb testing.TB, m *dataset.Manifest, r *store.Resolver, cache *dataset.Cache, o dataset.OpenOptions) *dataset.Dataset {
	tb.Helper()
	d, err := dataset.Open(m, r, cache, o)
	if err != nil {
		tb.Fatalf("opening the dataset: %v", err)
	}
	tb.Cleanup(func() {
		if err := d.Close(); err != nil {
			tb.Errorf("closing the dataset: %v", err)
		}
	})
	return d
}

// Check compares samples that were read with those that were written, want[i] for ordinal i: every
// field with its bytes, in order, and nothing else.
func Check(tb testing.TB, got []dataset.Sample, ordinals []int64, want []Sample) {
	tb.Helper()
	if len(got) != len(ordinals) {
		tb.Fatalf("%d samples were read, %d asked for", len(got), len(ordinals))
	}
	for i, s := range got {
		w := want[ordinals[i]]
		if s.Ordinal != ordinals[i] || len(s.Fields) != len(w.Members) {
			tb.Fatalf("sample %d at place %d: ordinal %d with %d fields, want %d fields", ordinals[i], i, s.Ordinal, len(s.Fields), len(w.Members))
		}
		for j, f := range s.Fields {
			if f.Name != w.Members[j].Ext || !bytes.Equal(f.Data, w.Members[j].Data) || f.Length != int64(len(f.Data)) {
				tb.Fatalf("sample %s field %d: %q with %d bytes (length %d), want %q with %d bytes, or the bytes differ",
					s.Key, j, f.Name, len(f.Data), f.Length, w.Members[j].Ext, len(w.Members[j].Data))
			}
		}
	}
}
