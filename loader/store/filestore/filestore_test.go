package filestore_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/store"
	"github.com/millrace/millrace/loader/store/filestore"
	"github.com/millrace/millrace/loader/store/storetest"
)

func TestFilesKeepTheLawsOfBuckets(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Subject {
		t.Helper()
		root := t.TempDir()
		b := open(t, root)
		return storetest.Subject{
			Bucket: b,
			Put: func(t *testing.T, key string, data []byte) {
				t.Helper()
				put(t, root, key, data)
			},
			Delete: func(t *testing.T, key string) {
				t.Helper()
				if err := os.Remove(filepath.Join(root, key)); err != nil {
					t.Fatal(err)
				}
			},
		}
	})
}

func open(t *testing.T, root string) *filestore.Bucket {
	t.Helper()
	b, err := filestore.New(root)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// put replaces a file by rename, as careful writers do.
func put(t *testing.T, root, key string, data []byte) {
	t.Helper()
	path := filepath.Join(root, key)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func TestKeysCannotLeaveTheRoot(t *testing.T) {
	top := t.TempDir()
	put(t, top, "secret", []byte("x"))
	put(t, top, "root/inside", []byte("x"))
	b := open(t, filepath.Join(top, "root"))
	for _, key := range []string{"../secret", "a/../../secret", "/secret", "inside/../inside", "./inside", "", ".", "a//b", "inside\x00"} {
		if err := b.ReadRange(t.Context(), key, 0, make([]byte, 1)); errkind.Of(err) != errkind.Invalid {
			t.Errorf("ReadRange of %q: %v, want an Invalid key", key, err)
		}
	}
	if err := b.List(t.Context(), "../", func(a store.Attributes) error { t.Errorf("listed %s", a.Key); return nil }); errkind.Of(err) != errkind.Invalid {
		t.Errorf("List of ../: %v, want an Invalid key", err)
	}
}

func TestSymbolicLinksAreFollowed(t *testing.T) {
	elsewhere, root := t.TempDir(), t.TempDir()
	put(t, elsewhere, "shards/a.tar", []byte("far"))
	put(t, root, "own.tar", []byte("near"))
	link(t, filepath.Join(elsewhere, "shards"), filepath.Join(root, "linked"))
	link(t, "own.tar", filepath.Join(root, "alias.tar"))
	b := open(t, root)
	var keys []string
	if err := b.List(t.Context(), "", func(a store.Attributes) error { keys = append(keys, a.Key); return nil }); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"alias.tar", "linked/a.tar", "own.tar"}, keys); diff != "" {
		t.Errorf("List (-want +got):\n%s", diff)
	}
	dst := make([]byte, 3)
	if err := b.ReadRange(t.Context(), "linked/a.tar", 0, dst); err != nil || string(dst) != "far" {
		t.Errorf("ReadRange through a link: %q, %v", dst, err)
	}
}

func link(t *testing.T, target, path string) {
	t.Helper()
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}

func TestLinksThatCannotBeListedAreErrorsNotGaps(t *testing.T) {
	for _, c := range []struct{ name, target, want string }{
		{"dangling", "nowhere", "leads to nothing"},
		{"loop", ".", "leads back into a directory above it"},
	} {
		root := t.TempDir()
		put(t, root, "sub/a.tar", []byte("x"))
		link(t, c.target, filepath.Join(root, "sub", c.name))
		err := open(t, root).List(t.Context(), "sub/", func(store.Attributes) error { return nil })
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.name) {
			t.Errorf("%s link: %v, want %q and the name of the link", c.name, err, c.want)
		}
	}
}

func TestPipesAndDirectoriesAreRefusedWithoutReadingThem(t *testing.T) {
	root := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(root, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	b := open(t, root)
	if err := b.ReadRange(t.Context(), "pipe", 0, make([]byte, 1)); errkind.Of(err) != errkind.Invalid {
		t.Errorf("ReadRange of a pipe: %v, want Invalid", err)
	}
	if _, err := filestore.New(filepath.Join(root, "pipe")); errkind.Of(err) != errkind.Invalid {
		t.Errorf("New on a pipe: %v, want Invalid", err)
	}
	if _, err := filestore.New(filepath.Join(root, "nothing")); errkind.Of(err) != errkind.NotFound {
		t.Errorf("New on nothing: %v, want NotFound", err)
	}
}
