package keep_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/store"
	"github.com/millrace/millrace/loader/store/filestore"
	"github.com/millrace/millrace/loader/store/memstore"
	"github.com/millrace/millrace/preprocess/dispatch/journal"
	"github.com/millrace/millrace/preprocess/dispatch/journal/keep"
)

// where are the stores that a log is tested in.
func where(t *testing.T) map[string]func() *keep.Log {
	t.Helper()
	memory := memstore.New()
	resolver := store.NewResolver(map[string]store.OpenFunc{
		"file": filestore.Open, "mem": memstore.Opener(map[string]*memstore.Store{"m": memory}),
	})
	t.Cleanup(func() { _ = resolver.Close() })
	at := func(uri string) func() *keep.Log {
		return func() *keep.Log {
			t.Helper()
			l, err := keep.Open(t.Context(), resolver, uri, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
	}
	return map[string]func() *keep.Log{"directory": at(filepath.Join(t.TempDir(), "log")), "object store": at("mem://m/deep/log")}
}

func ended(name string) journal.Record { return journal.Record{Ended: name} }

func opened(name string) journal.Record {
	return journal.Record{Job: &journal.Named{Name: name, Job: &journal.Job{Open: []byte(name)}}}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A log that is opened again at any time says what was written, and holds few entries however long it grows.
func TestALogIsReadAsItWasWritten(t *testing.T) {
	for name, open := range where(t) {
		t.Run(name, func(t *testing.T) {
			l := open()
			must(t, l.Lead(t.Context(), "a"))
			for i := range 140 {
				must(t, l.Append(t.Context(), opened(fmt.Sprintf("j%d", i)), ended(fmt.Sprintf("j%d", i-3))))
				if i%23 != 0 {
					continue
				}
				if diff := cmp.Diff(l.State(), open().State()); diff != "" {
					t.Fatalf("after %d entries (-written +read):\n%s", i, diff)
				}
			}
			if n := open().Number(); n != 141 {
				t.Errorf("the last entry is %d, want 141", n)
			}
		})
	}
}

func TestOldEntriesAreRemoved(t *testing.T) {
	dir := t.TempDir()
	resolver := store.NewResolver(map[string]store.OpenFunc{"file": filestore.Open})
	defer func() { _ = resolver.Close() }()
	l, err := keep.Open(t.Context(), resolver, dir, slog.New(slog.DiscardHandler))
	must(t, err)
	must(t, l.Lead(t.Context(), "a"))
	for range 200 {
		must(t, l.Append(t.Context()))
	}
	files, err := os.ReadDir(filepath.Join(dir, "entries"))
	must(t, err)
	if len(files) > 140 {
		t.Errorf("%d entries are stored after 200", len(files))
	}
}

// Whoever takes over shuts out the one before, at once and for good; of two who try, one does.
func TestOnlyOneLeads(t *testing.T) {
	for name, open := range where(t) {
		t.Run(name, func(t *testing.T) {
			old := open()
			must(t, old.Lead(t.Context(), "old"))
			must(t, old.Append(t.Context(), opened("x")))
			second, third := open(), open()
			must(t, second.Lead(t.Context(), "second"))
			for who, err := range map[string]error{
				"the one before":    old.Append(t.Context(), ended("x")),
				"and once more":     old.Append(t.Context()),
				"who came too late": third.Lead(t.Context(), "third"),
			} {
				if errkind.Of(err) != errkind.Conflict {
					t.Errorf("%s: error %v, want a conflict", who, err)
				}
			}
			advanced, err := third.Follow(t.Context())
			must(t, err)
			if s := third.State(); !advanced || s.Term != 2 || s.Leader != "second" || s.Jobs["x"] == nil {
				t.Errorf("the log says %+v", s)
			}
			if advanced, err := third.Follow(t.Context()); advanced || err != nil {
				t.Errorf("nothing was written, but Follow says %t, %v", advanced, err)
			}
			must(t, third.Lead(t.Context(), "third"))
			if s := open().State(); s.Term != 3 {
				t.Errorf("term %d after three leaders", s.Term)
			}
		})
	}
}

// The last entry may be damaged or cut off; the log goes on without it. Damage before is told.
func TestATornTailIsPassedOver(t *testing.T) {
	for cut := range 3 {
		dir := t.TempDir()
		resolver := store.NewResolver(map[string]store.OpenFunc{"file": filestore.Open})
		open := func() (*keep.Log, error) {
			return keep.Open(t.Context(), resolver, dir, slog.New(slog.DiscardHandler))
		}
		l, err := open()
		must(t, err)
		must(t, l.Lead(t.Context(), "a"))
		must(t, l.Append(t.Context(), opened("x")))
		must(t, l.Append(t.Context(), opened("y")))
		path := filepath.Join(dir, "entries", fmt.Sprintf("%020d", 3))
		data, err := os.ReadFile(path)
		must(t, err)
		must(t, os.WriteFile(path, data[:cut*len(data)/3], 0o600))
		l, err = open()
		must(t, err)
		if s := l.State(); len(s.Jobs) != 1 || s.Jobs["x"] == nil {
			t.Errorf("the log says %+v", s)
		}
		must(t, l.Lead(t.Context(), "b"))
		must(t, l.Append(t.Context(), opened("z")))
		l, err = open()
		must(t, err)
		if s := l.State(); len(s.Jobs) != 2 || s.Term != 2 || l.Number() != 5 {
			t.Errorf("entry %d, the log says %+v", l.Number(), s)
		}
		must(t, os.WriteFile(filepath.Join(dir, "entries", fmt.Sprintf("%020d", 4)), nil, 0o600))
		if _, err := open(); errkind.Of(err) != errkind.BadData {
			t.Errorf("damage in the middle: error %v", err)
		}
		must(t, resolver.Close())
	}
}

// lossy is a store that writes but answers that it could not.
type lossy struct {
	*memstore.Store
	fail bool
}

func (l *lossy) Create(ctx context.Context, key string, data []byte) error {
	err := l.Store.Create(ctx, key, data)
	if l.fail && err == nil {
		l.fail = false
		return errkind.Errorf(errkind.Unavailable, "the answer was lost")
	}
	return err
}

func TestAnEntryWhoseAnswerWasLostIsFoundAgain(t *testing.T) {
	s := &lossy{Store: memstore.New()}
	resolver := store.NewResolver(map[string]store.OpenFunc{"mem": func(context.Context, string) (store.Bucket, error) { return s, nil }})
	defer func() { _ = resolver.Close() }()
	l, err := keep.Open(t.Context(), resolver, "mem://m/log", slog.New(slog.DiscardHandler))
	must(t, err)
	must(t, l.Lead(t.Context(), "a"))
	s.fail = true
	if err := l.Append(t.Context(), opened("x")); errkind.Of(err) != errkind.Unavailable {
		t.Fatalf("error %v", err)
	}
	must(t, l.Append(t.Context(), opened("x")))
	if l.Number() != 2 {
		t.Errorf("the last entry is %d, want 2", l.Number())
	}
}

func TestAManifestIsKept(t *testing.T) {
	for name, open := range where(t) {
		l := open()
		for range 2 {
			must(t, l.PutManifest(t.Context(), "00ff", []byte("manifest")))
		}
		data, err := open().Manifest(t.Context(), "00ff")
		if err != nil || string(data) != "manifest" {
			t.Errorf("%s: %q, %v", name, data, err)
		}
		if _, err := l.Manifest(t.Context(), "none"); errkind.Of(err) != errkind.NotFound {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestAStoreThatOnlyReadsIsRefused(t *testing.T) {
	resolver := store.NewResolver(map[string]store.OpenFunc{"ro": func(context.Context, string) (store.Bucket, error) {
		return struct{ store.Bucket }{memstore.New()}, nil
	}})
	defer func() { _ = resolver.Close() }()
	if _, err := keep.Open(t.Context(), resolver, "ro://m/log", slog.Default()); errkind.Of(err) != errkind.Invalid {
		t.Errorf("error %v, want one of kind Invalid", err)
	}
}
