package partition

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/lineage"
)

func drawID(t *rapid.T) lineage.ID {
	id := lineage.SourceID(rapid.Uint64().Draw(t, "epoch"), rapid.Uint64().Draw(t, "source"))
	for range rapid.IntRange(0, lineage.MaxDepth).Draw(t, "depth") {
		id.Path[id.Depth] = rapid.Uint32().Draw(t, "k")
		id.Depth++
	}
	return id
}

func TestTicketsTravelUnchanged(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := Ticket{Job: rapid.StringMatching(`[a-z]{1,20}`).Draw(t, "job")}
		for range rapid.IntRange(1, 20).Draw(t, "slices") {
			want.Slices = append(want.Slices, Slice{
				ID: drawID(t), Attempt: rapid.Uint32().Draw(t, "attempt"),
				First: rapid.Int64Range(0, 1<<40).Draw(t, "first"), Rows: rapid.Int64Range(1, 1<<40).Draw(t, "rows"),
			})
		}
		b, err := want.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseTicket(b)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestTicketsOutsideTheLimitsAreRefused(t *testing.T) {
	one := Slice{ID: lineage.SourceID(0, 0), Rows: 1}
	for name, ticket := range map[string]Ticket{
		"no job":       {Slices: []Slice{one}},
		"long job":     {Job: strings.Repeat("x", MaxJobName+1), Slices: []Slice{one}},
		"no slices":    {Job: "job"},
		"many slices":  {Job: "job", Slices: make([]Slice, MaxSlices+1)},
		"no rows":      {Job: "job", Slices: []Slice{{}}},
		"negative row": {Job: "job", Slices: []Slice{{First: -1, Rows: 1}}},
		"overflow":     {Job: "job", Slices: []Slice{{First: 1<<63 - 1, Rows: 1}}},
	} {
		if _, err := ticket.Marshal(); errkind.Of(err) != errkind.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := ParseTicket(make([]byte, MaxTicketBytes+1)); errkind.Of(err) != errkind.Invalid {
		t.Errorf("too long: %v", err)
	}
}

func FuzzParseTicket(f *testing.F) {
	good, err := Ticket{Job: "job", Slices: []Slice{{ID: lineage.SourceID(1, 2), Attempt: 3, First: 4, Rows: 5}}}.Marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:len(good)-2])
	f.Add([]byte{0x12, 0x00})
	f.Add([]byte{0x0a, 0x01, 'j', 0x12, 0x04, 0x0a, 0x02, 0x1a, 0x00})
	f.Fuzz(func(t *testing.T, b []byte) {
		ticket, err := ParseTicket(b)
		if err != nil {
			if errkind.Of(err) != errkind.Invalid {
				t.Fatalf("an error of kind %v: %v", errkind.Of(err), err)
			}
			return
		}
		again, err := ticket.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if back, err := ParseTicket(again); err != nil || !cmp.Equal(ticket, back) {
			t.Fatalf("%+v is read again as %+v: %v", ticket, back, err)
		}
	})
}

func TestAppMetadataTravelsUnchanged(t *testing.T) {
	want := AppMetadata{Slice: 7, CRC32C: 0xdeadbeef}
	if got, err := ParseAppMetadata(want.Append(nil)); err != nil || got != want {
		t.Errorf("%+v came back as %+v: %v", want, got, err)
	}
	if _, err := ParseAppMetadata([]byte{1, 2, 3}); errkind.Of(err) != errkind.BadData {
		t.Errorf("short metadata: %v", err)
	}
}
