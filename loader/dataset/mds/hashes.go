package mds

import (
	"context"
	"crypto/md5"  //nolint:gosec // what the writer chose; against accidents
	"crypto/sha1" //nolint:gosec // what the writer chose; against accidents
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"encoding/json"
	"hash"
	"io"
	"maps"
	"path"
	"slices"

	"github.com/cespare/xxhash/v2"
	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset/format"
)

// indexName is the file in which a writer of MDS lists its shards.
const indexName = "index.json"

// hashesOf has the hashes of a shard's content by their names.
type hashesOf map[string]string

// listedFile is a file as the list has it.
type listedFile struct {
	Basename string   `json:"basename"`
	Hashes   hashesOf `json:"hashes"`
}

// parseList is the hashes of the content of each shard, by the names of its files.
func parseList(text []byte) (any, error) {
	var list struct {
		Shards []struct {
			Raw listedFile  `json:"raw_data"`
			Zip *listedFile `json:"zip_data"`
		} `json:"shards"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, format.Damaged("%s beside it can't be read: %w", indexName, err)
	}
	out := map[string]hashesOf{}
	for _, s := range list.Shards {
		out[s.Raw.Basename] = s.Raw.Hashes
		if s.Zip != nil {
			out[s.Zip.Basename] = s.Raw.Hashes
		}
	}
	return out, nil
}

// checked reads a shard's content and compares it with the hashes that the list beside it has.
type checked struct {
	io.Reader
	want   hashesOf
	hashes map[string]hash.Hash
}

// checkedBy is r with the hashes of o that are listed, if there are any.
func checkedBy(ctx context.Context, o format.Object, r io.Reader) (*checked, error) {
	c := &checked{Reader: r, hashes: map[string]hash.Hash{}}
	n, ok := o.(format.Neighbour)
	if !ok {
		return c, nil
	}
	list, err := n.Neighbour(ctx, indexName, parseList)
	if kind := errkind.Of(err); kind == errkind.NotFound || kind == errkind.Invalid { // S3 denies access to what is not there, where listing is denied.
		return c, nil
	}
	if err != nil {
		return nil, err
	}
	byName, _ := list.(map[string]hashesOf)
	c.want = byName[path.Base(o.Name())]
	for name := range c.want {
		if h := newHash(name); h != nil {
			c.hashes[name] = h
			c.Reader = io.TeeReader(c.Reader, h)
		}
	}
	return c, nil
}

// newHash is a hash by the name that Python's hashlib and xxhash know it by; nil: it is none of those that can be checked.
func newHash(name string) hash.Hash {
	switch name {
	case "md5":
		return md5.New() //nolint:gosec // as above
	case "sha1":
		return sha1.New() //nolint:gosec // as above
	case "sha224":
		return sha256.New224()
	case "sha256":
		return sha256.New()
	case "sha384":
		return sha512.New384()
	case "sha512":
		return sha512.New()
	case "xxh64":
		return xxhash.New()
	case "xxh3_64":
		return xxh3.New()
	case "xxh128", "xxh3_128":
		return wide{xxh3.New()}
	}
	return nil
}

// wide is XXH3 with 128 bits.
type wide struct{ *xxh3.Hasher }

func (w wide) Size() int { return 16 }

func (w wide) Sum(b []byte) []byte {
	sum := w.Sum128().Bytes()
	return append(b, sum[:]...)
}

// verify reads what is left and compares the hashes.
func (c *checked) verify() error {
	if len(c.hashes) == 0 {
		return nil
	}
	if _, err := io.Copy(io.Discard, c.Reader); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(c.hashes)) {
		if got := hex.EncodeToString(c.hashes[name].Sum(nil)); got != c.want[name] {
			return format.Damaged("its %s is %s, %s beside it has %s: the shard, or that file, is damaged or of another version", name, got, indexName, c.want[name])
		}
	}
	return nil
}
