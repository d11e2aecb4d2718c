package scenario

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/loader/store"
	"github.com/millrace/millrace/loader/store/filestore"
)

// folder is a directory with the given files.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func open(t *testing.T, source ...string) *dataset.Dataset {
	t.Helper()
	cache, err := dataset.NewCache(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	resolver := store.NewResolver(map[string]store.OpenFunc{"file": filestore.Open})
	t.Cleanup(func() { _ = resolver.Close() })
	m, err := dataset.Build(t.Context(), resolver, source, cache, dataset.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	d, err := dataset.Open(m, resolver, cache, dataset.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func TestTheSourceIsTheTrainingShardsIfThereAreSome(t *testing.T) {
	dir := folder(t, map[string]string{"train-000001.tar": "", "train-000000.tar": "", "val-000000.tar": ""})
	got, err := Source(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{filepath.Join(dir, "train-000000.tar"), filepath.Join(dir, "train-000001.tar")}, got); diff != "" {
		t.Error(diff)
	}
	other := folder(t, map[string]string{"a/1.jpg": "x"})
	if got, err := Source(other); err != nil || cmp.Diff([]string{other}, got) != "" {
		t.Errorf("Source(%s) = %v, %v; want the folder itself", other, got, err)
	}
	if got, err := Source("file:///d/{0..3}.tar"); err != nil || cmp.Diff([]string{"file:///d/{0..3}.tar"}, got) != "" {
		t.Errorf("a URI became %v, %v", got, err)
	}
	if _, err := Source(filepath.Join(dir, "gone")); err == nil || !strings.Contains(err.Error(), "make demo-data") {
		t.Errorf("err = %v, want what to do", err)
	}
}

func TestPlacesHoldTheBytesOfEveryImage(t *testing.T) {
	images := map[string]string{"cat/1.jpg": "meow", "cat/2.jpeg": "purr…", "dog/1.JPG": "woof"}
	dir := folder(t, images)
	data, err := Places(t.Context(), open(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, s := range data.Samples {
		text, err := os.ReadFile(data.Files[s[0]])
		if err != nil {
			t.Fatal(err)
		}
		rel, err := filepath.Rel(dir, data.Files[s[0]])
		if err != nil {
			t.Fatal(err)
		}
		got[rel] = string(text[s[1] : s[1]+s[2]])
		if want := map[string]int64{"cat": 0, "dog": 1}[filepath.Dir(rel)]; s[3] != want {
			t.Errorf("label of %s = %d, want %d", rel, s[3], want)
		}
	}
	if diff := cmp.Diff(images, got); diff != "" {
		t.Error(diff)
	}
}

func TestPlacesInTarShardsAreThoseOfTheMembers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "train-000000.tar")
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, m := range []struct{ name, text string }{{"a.jpg", "first"}, {"a.cls", "7"}, {"b.cls", "3"}, {"b.jpg", "second"}} {
		if err := w.WriteHeader(&tar.Header{Name: m.name, Size: int64(len(m.text)), Mode: 0o600}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, m.text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	data, err := Places(t.Context(), open(t, path))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int64{}
	for _, s := range data.Samples {
		got[string(b.Bytes()[s[1]:s[1]+s[2]])] = s[3]
	}
	if diff := cmp.Diff(map[string]int64{"first": 7, "second": 3}, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{path}, data.Files); diff != "" {
		t.Error(diff)
	}
	if data.Summary.Samples != 2 || data.Summary.MeanBytes != 5 {
		t.Errorf("summary = %+v, want 2 samples of 5 bytes", data.Summary)
	}
}

func TestThePeerTakesJPEGsAlone(t *testing.T) {
	_, err := Places(t.Context(), open(t, folder(t, map[string]string{"cat/1.png": "x"})))
	if err == nil || !strings.Contains(err.Error(), "has no JPEG") {
		t.Errorf("err = %v, want that there is no JPEG", err)
	}
}
