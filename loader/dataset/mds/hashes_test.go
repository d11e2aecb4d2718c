package mds_test

import (
	"bytes"
	"crypto/sha1" //nolint:gosec // what Streaming's writers offer
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/klauspost/compress/zstd"
	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/loader/dataset/datasettest"
)

// sums are hashes of data as Streaming lists them; one of them is not known here.
func sums(data []byte) map[string]string {
	one, two, wide := sha1.Sum(data), sha256.Sum256(data), xxh3.Hash128(data).Bytes() //nolint:gosec // no secret
	return map[string]string{
		"sha1": hex.EncodeToString(one[:]), "sha256": hex.EncodeToString(two[:]), "xxh64": fmt.Sprintf("%016x", xxhash.Sum64(data)),
		"xxh3_64": fmt.Sprintf("%016x", xxh3.Hash(data)), "xxh128": hex.EncodeToString(wide[:]), "blake2b": "not looked at",
	}
}

// The hashes that index.json has of a shard's content are compared, one and all, also for compressed shards; others are not missed.
func TestHashesInTheListOfShardsAreVerified(t *testing.T) {
	data := shard(t, []column{{"n", "int", 8}}, [][]byte{le(int64(1))}, [][]byte{le(int64(2))})
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	zipped := z.EncodeAll(data, nil)
	damaged := bytes.Clone(data)
	damaged[len(damaged)-1] ^= 1 // in a value: nothing else would show it
	r := datasettest.Resolver(t, nil)
	for _, c := range []struct {
		name     string
		stored   []byte
		hash     string // the one that is wrong in the list
		tolerant bool
		want     string
	}{
		{"a.mds", data, "", false, ""},
		{"a.mds.zstd", zipped, "", false, ""},
		{"a.mds", damaged, "", false, "its sha1 is"},
		{"a.mds.zstd", z.EncodeAll(damaged, nil), "", false, "its sha1 is"},
		{"a.mds", damaged, "", true, ""},
		{"a.mds", data, "sha256", false, "its sha256 is"},
		{"a.mds", data, "xxh64", false, "its xxh64 is"},
		{"a.mds", data, "xxh3_64", false, "its xxh3_64 is"},
		{"a.mds", data, "xxh128", false, "its xxh128 is"},
	} {
		hashes := sums(data)
		if c.hash != "" {
			hashes[c.hash] = strings.Repeat("0", len(hashes[c.hash]))
		}
		raw := map[string]any{"basename": "a.mds", "bytes": len(data), "hashes": hashes}
		entry := map[string]any{"raw_data": raw, "zip_data": nil}
		if c.name != "a.mds" {
			entry["zip_data"] = map[string]any{"basename": c.name, "bytes": len(c.stored), "hashes": map[string]string{}}
		}
		list, err := json.Marshal(map[string]any{"version": 2, "shards": []any{entry}})
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		datasettest.WriteFile(t, dir, "index.json", list)
		path := datasettest.WriteFile(t, dir, c.name, c.stored)
		m, err := dataset.Build(t.Context(), r, []string{path}, nil, dataset.BuildOptions{TolerateDamaged: c.tolerant})
		switch {
		case c.want == "" && (err != nil || m.NumSamples() != 2 || c.tolerant != (len(m.Damaged) > 0)):
			t.Errorf("%+v: %v", c, err)
		case c.want != "" && (errkind.Of(err) != errkind.BadData || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path)):
			t.Errorf("%s with %s wrong: %v", c.name, c.hash, err)
		}
	}
}

func TestAListOfShardsThatCannotBeReadIsAnError(t *testing.T) {
	dir := t.TempDir()
	datasettest.WriteFile(t, dir, "index.json", []byte("{"))
	path := datasettest.WriteFile(t, dir, "a.mds", shard(t, []column{{"n", "int", 8}}, [][]byte{le(int64(1))}))
	_, err := dataset.Build(t.Context(), datasettest.Resolver(t, nil), []string{path}, nil, dataset.BuildOptions{})
	if errkind.Of(err) != errkind.BadData || !strings.Contains(err.Error(), "index.json beside it can't be read") {
		t.Errorf("%v", err)
	}
}
