package tarscan_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset/tarscan"
)

// counter is an archive in memory that counts what is read of it.
type counter struct {
	data            []byte
	requests, bytes int
}

func (c *counter) read(_ context.Context, off int64, dst []byte) error {
	c.requests++
	c.bytes += len(dst)
	if copy(dst, c.data[off:]) < len(dst) {
		return fmt.Errorf("read beyond the end at %d", off)
	}
	return nil
}

func ranged(data []byte) tarscan.Source {
	c := &counter{data: data}
	return tarscan.Ranged(int64(len(data)), c.read)
}

func distant(data []byte) tarscan.Source {
	c := &counter{data: data}
	return tarscan.Far(int64(len(data)), c.read)
}

func scan(src tarscan.Source) ([]tarscan.Member, error) {
	s := tarscan.New(src)
	var out []tarscan.Member
	for {
		m, err := s.Next(context.Background())
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		out = append(out, m)
	}
}

// entry is what archive/tar and this package must agree on.
type entry struct {
	Name string
	Data string
}

func viaStandardLibrary(t interface{ Fatal(args ...any) }, data []byte) []entry {
	var out []entry
	r := tar.NewReader(bytes.NewReader(data))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag != tar.TypeReg && h.Typeflag != '7' {
			continue
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, entry{h.Name, string(b)})
	}
}

func regular(data []byte, members []tarscan.Member) []entry {
	var out []entry
	for _, m := range members {
		if m.Regular {
			out = append(out, entry{m.Name, string(data[m.Offset : m.Offset+m.Size])})
		}
	}
	return out
}

func write(t interface{ Fatal(args ...any) }, headers []tar.Header) []byte {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for i, h := range headers {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := w.Write(bytes.Repeat([]byte{byte(i + 1)}, int(h.Size))); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func drawHeader(t *rapid.T) tar.Header {
	h := tar.Header{
		Format:   rapid.SampledFrom([]tar.Format{tar.FormatUSTAR, tar.FormatPAX, tar.FormatGNU}).Draw(t, "format"),
		Typeflag: rapid.SampledFrom([]byte{tar.TypeReg, tar.TypeReg, tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeLink, tar.TypeFifo, tar.TypeXGlobalHeader}).Draw(t, "type"),
		Mode:     0o644,
	}
	if h.Typeflag == tar.TypeXGlobalHeader {
		return tar.Header{Typeflag: h.Typeflag, Format: tar.FormatPAX, PAXRecords: map[string]string{"comment": rapid.StringMatching(`[a-z]{1,600}`).Draw(t, "comment")}}
	}
	parts := rapid.SliceOfN(rapid.StringMatching(`[a-z.]{1,40}`), 1, 3).Draw(t, "name")
	if h.Format != tar.FormatUSTAR {
		parts = rapid.SliceOfN(rapid.StringMatching(`[a-zü .]{1,90}`), 1, 8).Draw(t, "long name")
	}
	h.Name = strings.Join(parts, "/")
	switch h.Typeflag {
	case tar.TypeReg:
		h.Size = int64(rapid.IntRange(0, 3000).Draw(t, "size"))
	case tar.TypeDir:
		h.Name += "/"
	case tar.TypeSymlink, tar.TypeLink:
		h.Linkname = "target"
		if h.Format != tar.FormatUSTAR {
			h.Linkname = strings.Repeat("long/", 40) + "target"
		}
	}
	if h.Format == tar.FormatPAX {
		h.PAXRecords = map[string]string{"MILLRACE.note": "x"}
	}
	return h
}

func TestItFindsWhatArchiveTarFinds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		data := write(t, rapid.SliceOfN(rapid.Custom(drawHeader), 0, 20).Draw(t, "headers"))
		want := viaStandardLibrary(t, data)
		for name, src := range map[string]tarscan.Source{
			"ranged": ranged(data),
			"stream": tarscan.Stream(iotest.HalfReader(bytes.NewReader(data))),
		} {
			members, err := scan(src)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if diff := cmp.Diff(want, regular(data, members)); diff != "" {
				t.Errorf("%s (-archive/tar +tarscan):\n%s", name, diff)
			}
		}
	})
}

// block makes a header block by hand, for dialects that archive/tar does not write.
func block(name string, size int64, kind byte, edit func(b []byte)) []byte {
	b := make([]byte, 512)
	copy(b, name)
	copy(b[100:], "0000644\x00")
	copy(b[124:], fmt.Sprintf("%011o\x00", size))
	b[156] = kind
	if edit != nil {
		edit(b)
	}
	mend(b)
	return b
}

// mend writes the checksum of a header block.
func mend(b []byte) {
	copy(b[148:], "        ")
	var sum int
	for _, c := range b {
		sum += int(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
}

func padded(parts ...[]byte) []byte {
	var out []byte
	for _, p := range parts {
		out = append(out, p...)
		out = append(out, make([]byte, (512-len(p)%512)%512)...)
	}
	return out
}

var end = make([]byte, 1024)

func TestOldAndRareDialects(t *testing.T) {
	pax := func(records string) []byte {
		return padded(block("pax", int64(len(records)), 'x', nil), []byte(records))
	}
	base256 := func(b []byte) {
		copy(b[124:], make([]byte, 12))
		b[124] = 0x80
		binary.BigEndian.PutUint64(b[128:], 3)
	}
	for _, c := range []struct {
		name string
		data []byte
		want []entry
	}{
		{"V7", padded(block("v7.txt", 3, 0, nil), []byte("abc"), end), []entry{{"v7.txt", "abc"}}},
		{"V7 directory", padded(block("dir/", 0, 0, nil), block("f.txt", 1, '0', nil), []byte("x"), end), []entry{{"f.txt", "x"}}},
		{"contiguous", padded(block("c.txt", 3, '7', nil), []byte("abc"), end), []entry{{"c.txt", "abc"}}},
		{"GNU base-256 size", padded(block("b.txt", 0, '0', base256), []byte("abc"), end), []entry{{"b.txt", "abc"}}},
		{"star prefix", padded(block("s.txt", 1, '0', func(b []byte) {
			copy(b[257:], "ustar\x0000")
			copy(b[345:], "some/dir")
			copy(b[476:], "12345670123\x00")
			copy(b[508:], "tar\x00")
		}), []byte("x"), end), []entry{{"some/dir/s.txt", "x"}}},
		{"unknown type with data", padded(block("odd", 600, 'V', nil), make([]byte, 600), block("f.txt", 1, '0', nil), []byte("x"), end), []entry{{"f.txt", "x"}}},
		{"link that states a size", padded(block("l", 600, '2', nil), block("f.txt", 1, '0', nil), []byte("x"), end), []entry{{"f.txt", "x"}}},
		{"PAX size over the header's", append(pax("10 size=3\n"), padded(block("p.txt", 0, '0', nil), []byte("abc"), end)...), []entry{{"p.txt", "abc"}}},
		{"no end blocks", padded(block("f.txt", 3, '0', nil), []byte("abc")), []entry{{"f.txt", "abc"}}},
		{"one end block", padded(block("f.txt", 3, '0', nil), []byte("abc"), end[:512]), []entry{{"f.txt", "abc"}}},
		{"junk behind the end", append(padded(block("f.txt", 3, '0', nil), []byte("abc"), end), "junk"...), []entry{{"f.txt", "abc"}}},
		{"no members", make([]byte, 10_240), nil},
	} {
		for kind, src := range map[string]tarscan.Source{"ranged": ranged(c.data), "stream": tarscan.Stream(bytes.NewReader(c.data))} {
			members, err := scan(src)
			if err != nil {
				t.Errorf("%s, %s: %v", c.name, kind, err)
				continue
			}
			if diff := cmp.Diff(c.want, regular(c.data, members)); diff != "" {
				t.Errorf("%s, %s (-want +got):\n%s", c.name, kind, diff)
			}
		}
	}
}

func TestDamageSaysWhatAndWhere(t *testing.T) {
	two := padded(block("a.txt", 3, '0', nil), []byte("abc"), block("b.txt", 700, '0', nil), make([]byte, 700), end)
	flipped := bytes.Clone(two)
	flipped[1024] ^= 1
	sparse := "22 GNU.sparse.major=1\n"
	for _, c := range []struct {
		name    string
		data    []byte
		reason  string
		offset  int64
		members int
	}{
		{"empty file", nil, "the file is empty", 0, 0},
		{"cut in the first header", two[:100], "cut in a header", 0, 0},
		{"cut in a header", two[:1024+100], "cut in a header", 1024, 1},
		{"cut in data", two[:1536+300], `cut in the data of "b.txt": 300 of 700 bytes`, 1836, 1},
		{"cut in padding", two[:1536+710], `cut in the padding behind "b.txt"`, 2246, 1},
		{"flipped header", flipped, "checksum", 1024, 1},
		{"lone zero block", padded(block("a.txt", 0, '0', nil), end[:512], block("b.txt", 0, '0', nil), end), "single block of zeros", 512, 1},
		{"old sparse file", padded(block("s", 3, 'S', nil), []byte("abc"), end), "sparse", 0, 0},
		{"new sparse file", padded(block("pax", int64(len(sparse)), 'x', nil), []byte(sparse), block("s", 0, '0', nil), end), "sparse", 1024, 0},
		{"bad record", padded(block("pax", 5, 'x', nil), []byte("9 a=b"), end), "PAX record", 0, 0},
		{"huge record", padded(block("pax", 2<<20, 'x', nil)), "extended header of 2097152 bytes", 0, 0},
		{"long name without a member", padded(block("long", 3, 'L', nil), []byte("abc"), end), "without the member", 0, 0},
		{"negative size", padded(block("n", 0, '0', func(b []byte) { copy(b[124:], bytes.Repeat([]byte{0xff}, 12)) }), end), "no number", 0, 0},
		{"gzip", append([]byte("\x1f\x8b\x08"), make([]byte, 600)...), "name it .tar.gz", 0, 0},
		{"error page", []byte("<html>" + strings.Repeat("sorry ", 200)), "error page", 0, 0},
	} {
		for kind, src := range map[string]tarscan.Source{"ranged": ranged(c.data), "stream": tarscan.Stream(bytes.NewReader(c.data))} {
			members, err := scan(src)
			damage, ok := errors.AsType[*tarscan.Error](err)
			if !ok || errkind.Of(err) != errkind.BadData {
				t.Errorf("%s, %s: %v, want damage of kind BadData", c.name, kind, err)
				continue
			}
			if damage.Offset != c.offset || !strings.Contains(damage.Reason, c.reason) || len(members) != c.members {
				t.Errorf("%s, %s: %v after %d members, want %q at %d after %d", c.name, kind, err, len(members), c.reason, c.offset, c.members)
			}
		}
	}
}

// Every cut of an archive gives the members before the cut and no others, or is seen as the end at a boundary.
func TestEveryCutKeepsTheMembersBeforeIt(t *testing.T) {
	data := padded(block("a.txt", 3, '0', nil), []byte("abc"), block("b.txt", 600, '0', nil), make([]byte, 600), block("c.txt", 0, '0', nil), end)
	all, err := scan(ranged(data))
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; n < len(data); n++ {
		var want []tarscan.Member
		boundary := n >= len(data)-512 // The second block of the end may be missing.
		for _, m := range all {
			next := (m.Offset + m.Size + 511) / 512 * 512
			if next <= int64(n) {
				want = append(want, m)
			}
			boundary = boundary || next == int64(n)
		}
		for kind, src := range map[string]tarscan.Source{"ranged": ranged(data[:n]), "far": distant(data[:n]), "stream": tarscan.Stream(bytes.NewReader(data[:n]))} {
			got, err := scan(src)
			if diff := cmp.Diff(want, got); diff != "" || (err == nil) != boundary {
				t.Fatalf("cut at %d, %s: error %v (-want +got):\n%s", n, kind, err, diff)
			}
		}
	}
}

func TestPayloadIsNotRead(t *testing.T) {
	var headers []tar.Header
	for i := range 200 {
		headers = append(headers, tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("%04d.jpg", i), Size: 100_000, Mode: 0o644},
			tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("%04d.cls", i), Size: 3, Mode: 0o644})
	}
	c := &counter{data: write(t, headers)}
	members, err := scan(tarscan.Ranged(int64(len(c.data)), c.read))
	if err != nil || len(members) != 400 {
		t.Fatalf("%d members, %v", len(members), err)
	}
	if c.bytes > len(c.data)/15 || c.requests > 402 {
		t.Errorf("read %d of %d bytes in %d requests: more than the headers and what lies close to them", c.bytes, len(c.data), c.requests)
	}
}

func TestSmallMembersShareRequests(t *testing.T) {
	var headers []tar.Header
	for i := range 4000 {
		headers = append(headers, tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("%05d.cls", i), Size: 3, Mode: 0o644})
	}
	c := &counter{data: write(t, headers)}
	if members, err := scan(tarscan.Ranged(int64(len(c.data)), c.read)); err != nil || len(members) != 4000 {
		t.Fatalf("%d members, %v", len(members), err)
	}
	if c.requests > 40 {
		t.Errorf("%d requests for 4 MB of small members, want at most 40", c.requests)
	}
}

// Far away, what lies between headers is read along unless there is much of it.
func TestFarArchivesTakeFewRequests(t *testing.T) {
	for _, c := range []struct {
		size, most int64
		requests   int
	}{
		{10 << 10, 1 << 40, 32}, // 52 MB in ranges of 2 MiB
		{3 << 20, 256<<10 + 20*20<<10, 22},
	} {
		var headers []tar.Header
		for i := range int64(50<<20) / c.size {
			headers = append(headers, tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("%05d.bin", i), Size: c.size, Mode: 0o644})
		}
		from := &counter{data: write(t, headers)}
		members, err := scan(tarscan.Far(int64(len(from.data)), from.read))
		if err != nil || len(members) != len(headers) {
			t.Fatalf("%d members, %v", len(members), err)
		}
		if from.requests > c.requests || int64(from.bytes) > c.most {
			t.Errorf("members of %d bytes: %d bytes in %d requests", c.size, from.bytes, from.requests)
		}
	}
}

func TestErrorsOfTheStoreAreNotDamage(t *testing.T) {
	away := errkind.Errorf(errkind.Unavailable, "503 SlowDown")
	for name, src := range map[string]tarscan.Source{
		"ranged": tarscan.Ranged(1<<20, func(context.Context, int64, []byte) error { return away }),
		"stream": tarscan.Stream(iotest.ErrReader(away)),
	} {
		if _, err := scan(src); !errors.Is(err, away) || errkind.Of(err) != errkind.Unavailable {
			t.Errorf("%s: %v, want the store's own error", name, err)
		}
	}
}

// FuzzScan mends the checksums of the blocks in mask, or hardly any change to a header would get past them.
func FuzzScan(f *testing.F) {
	f.Add(padded(block("a.txt", 3, '0', nil), []byte("abc"), end), uint32(0))
	f.Add(padded(block("long", 5, 'L', nil), []byte("abcde"), block("a", 1, '0', nil), []byte("x"), end), uint32(0b101))
	f.Add(padded(block("pax", 10, 'x', nil), []byte("10 size=3\n"), block("p", 0, '0', nil), []byte("abc"), end), uint32(0b101))
	f.Add(make([]byte, 1024), uint32(0))
	f.Fuzz(func(t *testing.T, data []byte, mask uint32) {
		data = bytes.Clone(data)
		for i := 0; i < 32 && (i+1)*512 <= len(data); i++ {
			if mask>>i&1 == 1 {
				mend(data[i*512 : (i+1)*512])
			}
		}
		fromRanges, err1 := scan(ranged(data))
		fromStream, err2 := scan(tarscan.Stream(bytes.NewReader(data)))
		if diff := cmp.Diff(fromRanges, fromStream); diff != "" || (err1 == nil) != (err2 == nil) {
			t.Errorf("ranges: %v, stream: %v (-ranges +stream):\n%s", err1, err2, diff)
		}
		if err1 != nil && errkind.Of(err1) != errkind.BadData {
			t.Errorf("%v is not BadData", err1)
		}
		for _, m := range fromRanges {
			if m.Offset < 512 || m.Size < 0 || m.Offset+m.Size > int64(len(data)) {
				t.Errorf("member %+v lies outside %d bytes", m, len(data))
			}
		}
	})
}
