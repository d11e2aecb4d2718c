package journal_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/dispatch/journal"
)

func leads(term uint64) journal.Record {
	return journal.Record{Leads: &journal.Leads{Term: term, Leader: "d"}}
}

func job(name string, generation uint64) journal.Record {
	return journal.Record{Job: &journal.Named{Name: name, Job: &journal.Job{
		Open: []byte("request"), Manifest: "00ff", Generation: generation, Start: journal.Position{Epoch: 1, Step: 2, Row: 3},
		Ranks: []journal.Rank{{Joined: true, Attempt: 4}, {}},
	}}}
}

func mark(name string, step int64) journal.Record {
	return journal.Record{Mark: &journal.Mark{Job: name, At: journal.Position{Epoch: 1, Step: step, Row: 8 * step}}}
}

// history is a log of two terms with everything that can be said in it.
func history() []*journal.Entry {
	return []*journal.Entry{
		{Number: 1, Term: 1, Writer: "a", Records: []journal.Record{leads(1)}},
		{Number: 2, Term: 1, Writer: "a", Records: []journal.Record{job("x", 1), job("y", 0), {Workers: &journal.Workers{Names: []string{"w0", "w1"}}}}},
		{Number: 3, Term: 1, Writer: "a"},
		{Number: 4, Term: 1, Writer: "a", Records: []journal.Record{mark("x", 5), {Ended: "y"}}},
		{Number: 5, Term: 2, Writer: "b", Records: []journal.Record{leads(2)}},
		{Number: 6, Term: 2, Writer: "b", Records: []journal.Record{job("x", 2), mark("gone", 1)}},
	}
}

func replay(t *testing.T, entries ...*journal.Entry) journal.Replayed {
	t.Helper()
	var r journal.Replayed
	for _, e := range entries {
		data, err := e.Encode()
		if err != nil {
			t.Fatal(err)
		}
		decoded, err := journal.Decode(data)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(e, decoded); diff != "" {
			t.Fatalf("an entry comes back changed (-want +got):\n%s", diff)
		}
		if err := r.Take(decoded); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// Reading a log from any snapshot on gives what reading all of it gives.
func TestASnapshotStandsForAllBeforeIt(t *testing.T) {
	all := history()
	want := replay(t, all...)
	if want.State.Term != 2 || len(want.State.Jobs) != 1 || want.State.Jobs["x"].Generation != 2 || len(want.State.Workers) != 2 {
		t.Fatalf("the log says %+v", want.State)
	}
	for i := 1; i < len(all); i++ {
		before := replay(t, all[:i]...)
		from := *all[i]
		from.Snapshot = &before.State
		got := replay(t, append([]*journal.Entry{&from}, all[i+1:]...)...)
		got.Since = want.Since
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("from entry %d on (-want +got):\n%s", from.Number, diff)
		}
	}
}

func TestEntriesThatDoNotFollowAreRefused(t *testing.T) {
	for name, e := range map[string]*journal.Entry{
		"a gap":             {Number: 8, Term: 2},
		"a repetition":      {Number: 6, Term: 2},
		"an old term":       {Number: 7, Term: 1},
		"an unsaid term":    {Number: 7, Term: 3},
		"a term again":      {Number: 7, Term: 2, Records: []journal.Record{leads(2)}},
		"an empty record":   {Number: 7, Term: 2, Records: []journal.Record{{}}},
		"an old snapshot":   {Number: 6, Term: 2, Snapshot: &journal.State{Term: 2}},
		"a snapshot's term": {Number: 9, Term: 1, Snapshot: &journal.State{Term: 1}},
	} {
		r := replay(t, history()...)
		if err := r.Take(e); errkind.Of(err) != errkind.BadData {
			t.Errorf("%s: error %v, want one of kind BadData", name, err)
		}
		if diff := cmp.Diff(replay(t, history()...), r); diff != "" {
			t.Errorf("%s has changed the state:\n%s", name, diff)
		}
	}
}

// An entry that is cut anywhere, or has any byte changed, is never taken for one.
func TestDamageIsFound(t *testing.T) {
	data, err := history()[1].Encode()
	if err != nil {
		t.Fatal(err)
	}
	for n := range data {
		if _, err := journal.Decode(data[:n]); errkind.Of(err) != errkind.BadData {
			t.Fatalf("cut to %d bytes: error %v", n, err)
		}
		damaged := append([]byte(nil), data...)
		damaged[n] ^= 0x10
		if _, err := journal.Decode(damaged); errkind.Of(err) != errkind.BadData {
			t.Fatalf("byte %d changed: error %v", n, err)
		}
	}
	if _, err := journal.Decode(append(data, 0)); err == nil {
		t.Error("a byte more is taken")
	}
}

func FuzzDecode(f *testing.F) {
	for _, e := range history() {
		data, err := e.Encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
		f.Add(data[:len(data)/2])
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := journal.Decode(data)
		if err != nil {
			if errkind.Of(err) != errkind.BadData {
				t.Errorf("error of kind %v", errkind.Of(err))
			}
			return
		}
		var r journal.Replayed
		_ = r.Take(e) // whatever it says, it ends
	})
}
