package reshard_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/reshard"
	"github.com/millrace/millrace/loader/store"
	"github.com/millrace/millrace/loader/store/filestore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type member struct {
	Name, Data string
	Type       byte
	Format     tar.Format
}

// doubled changes members that begin with "x": it writes their data twice.
func doubled() reshard.Change {
	return reshard.Change{
		Wants:    func(begin []byte) bool { return bytes.HasPrefix(begin, []byte("x")) },
		Make:     func(_ string, data []byte) ([]byte, error) { return append(bytes.Clone(data), data...), nil },
		MaxBytes: 1000,
	}
}

func archive(t interface{ Fatal(...any) }, members []member) []byte {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, m := range members {
		h := &tar.Header{Name: m.Name, Typeflag: m.Type, Size: int64(len(m.Data)), Mode: 0o640, ModTime: time.Unix(1e9, 0), Uname: "someone", Format: m.Format}
		if m.Type == tar.TypeSymlink {
			h.Linkname = "elsewhere"
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, m.Data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func read(t interface{ Fatal(...any) }, data []byte) []member {
	var members []member
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return members
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if !h.ModTime.Equal(time.Unix(1e9, 0)) || h.Mode != 0o640 || h.Uname != "someone" {
			t.Fatal("other attributes: ", h)
		}
		members = append(members, member{h.Name, string(text), h.Typeflag, tar.FormatUnknown})
	}
}

// All members come out in their order, with names, kinds and attributes; data change only where they are to.
func TestMembersKeepAllButWhatIsChanged(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var in, want []member
		for i := range rapid.IntRange(0, 8).Draw(t, "members") {
			m := member{
				Name:   fmt.Sprintf("%s%d", strings.Repeat("long/", rapid.SampledFrom([]int{0, 1, 60}).Draw(t, "long")), i),
				Data:   rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, "first") + strings.Repeat("z", rapid.SampledFrom([]int{0, 5, 600, 2000}).Draw(t, "size")),
				Type:   rapid.SampledFrom([]byte{tar.TypeReg, tar.TypeReg, tar.TypeDir, tar.TypeSymlink}).Draw(t, "type"),
				Format: rapid.SampledFrom([]tar.Format{tar.FormatPAX, tar.FormatGNU}).Draw(t, "format"),
			}
			if m.Type != tar.TypeReg {
				m.Data = ""
			}
			if m.Type == tar.TypeDir {
				m.Name += "/"
			}
			in = append(in, m)
			m.Format = tar.FormatUnknown // Short names need neither, and read back as USTAR.
			if strings.HasPrefix(m.Data, "x") && len(m.Data) <= 1000 {
				m.Data += m.Data
			}
			want = append(want, m)
		}
		var out bytes.Buffer
		if err := reshard.Copy(context.Background(), bytes.NewReader(archive(t, in)), &out, doubled()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, read(t, out.Bytes())); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestDamageIsBadData(t *testing.T) {
	whole := archive(t, []member{{"a.jpg", "x" + strings.Repeat("a", 900), tar.TypeReg, tar.FormatUnknown}, {"b.cls", "7", tar.TypeReg, tar.FormatUnknown}})
	for _, n := range []int{100, 700, 1540, 2048} {
		if err := reshard.Copy(t.Context(), bytes.NewReader(whole[:n]), io.Discard, doubled()); errkind.Of(err) != errkind.BadData {
			t.Errorf("cut off after %d bytes: %v", n, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := reshard.Copy(ctx, bytes.NewReader(whole), io.Discard, doubled()); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

func resolver(t *testing.T) *store.Resolver {
	t.Helper()
	r := store.NewResolver(map[string]store.OpenFunc{"file": filestore.Open})
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// shards writes the same archive plain and compressed.
func shards(t *testing.T, data []byte) (dir string, uris []string) {
	t.Helper()
	dir = t.TempDir()
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	encoder, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = encoder.Close() }()
	for name, text := range map[string][]byte{"a.tar": data, "b.tar.gz": zipped.Bytes(), "c.tgz": zipped.Bytes(), "d.tar.zst": encoder.EncodeAll(data, nil)} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		uris = append(uris, "file://"+path)
	}
	return dir, uris
}

func TestShardsOfEveryKindAreWrittenWhole(t *testing.T) {
	members := []member{{"a.jpg", "xy", tar.TypeReg, tar.FormatUnknown}, {"a.cls", "7", tar.TypeReg, tar.FormatUnknown}}
	dir, uris := shards(t, archive(t, members))
	to := filepath.Join(dir, "new")
	o := reshard.Options{Shards: uris, Dir: to, Change: doubled(), Concurrency: 2}
	if err := reshard.Run(t.Context(), resolver(t), o); err != nil {
		t.Fatal(err)
	}
	members[0].Data = "xyxy"
	for _, name := range []string{"a.tar", "b.tar", "c.tar", "d.tar"} {
		data, err := os.ReadFile(filepath.Join(to, name))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(members, read(t, data)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if err := reshard.Run(t.Context(), resolver(t), o); errkind.Of(err) != errkind.Conflict {
		t.Errorf("over what is there: %v", err)
	}
}

func TestFailuresLeaveNoShard(t *testing.T) {
	dir, uris := shards(t, archive(t, []member{{"a.jpg", "xy", tar.TypeReg, tar.FormatUnknown}}))
	to := filepath.Join(dir, "new")
	failing := doubled()
	failing.Make = func(string, []byte) ([]byte, error) { return nil, errkind.Errorf(errkind.Exhausted, "no room") }
	err := reshard.Run(t.Context(), resolver(t), reshard.Options{Shards: uris, Dir: to, Change: failing})
	if errkind.Of(err) != errkind.Exhausted || !strings.Contains(err.Error(), "member a.jpg: no room") {
		t.Errorf("err = %v", err)
	}
	if left, err := os.ReadDir(to); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	twice := reshard.Options{Shards: []string{"file:///a/x.tar", "file:///b/x.tar.gz"}, Dir: to}
	if err := reshard.Run(t.Context(), resolver(t), twice); errkind.Of(err) != errkind.Invalid {
		t.Errorf("two shards of one name: %v", err)
	}
}
