package ring_test

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/feed/ring"
	"github.com/millrace/millrace/internal/errkind"
)

// What is written is read back, and any other byte in a place that means nothing is refused.
func TestMessagesAreReadBack(t *testing.T) {
	for _, h := range []ring.Hello{{Session: "s-0123"}, {Session: "a", ReadOnly: true}, {Session: "b", Checksum: true}} {
		raw := h.Append(nil)
		got, err := ring.ParseHello(raw)
		if err != nil || got != h || len(raw) != ring.HelloBytes {
			t.Errorf("%+v came back as %+v, %v", h, got, err)
		}
		raw[len(raw)-1] = 1
		if _, err := ring.ParseHello(raw); errkind.Of(err) != errkind.Invalid {
			t.Errorf("a greeting with a byte too many: %v", err)
		}
	}
	for _, r := range []ring.Request{
		{Kind: ring.Begin, Stream: 1, Epoch: 2, Step: 3, Row: 4},
		{Kind: ring.Release, Slot: 1, Generation: 2, Arena: 3},
		{Kind: ring.Commit, Stream: 1, Count: 2},
	} {
		raw := r.Append(nil)
		got, err := ring.ParseRequest(raw)
		if err != nil || len(raw) != ring.RequestBytes {
			t.Fatal(err)
		}
		if d := cmp.Diff(r, got); d != "" {
			t.Error(d)
		}
	}
	for _, raw := range [][]byte{nil, make([]byte, ring.RequestBytes), bytes.Repeat([]byte{1}, ring.RequestBytes)} {
		if _, err := ring.ParseRequest(raw); errkind.Of(err) != errkind.Invalid {
			t.Errorf("%x: %v", raw, err)
		}
	}
}

// The replies have the layout of docs/formats/ring.md.
func TestReplies(t *testing.T) {
	pad := func(b []byte) []byte { return append(b, make([]byte, ring.ReplyBytes-len(b))...) }
	for name, c := range map[string]struct{ got, want []byte }{
		"welcome": {ring.Welcome{SchemaBytes: 5, HeadBytes: 6}.Append(nil), pad([]byte{16, 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0, 1})},
		"share": {
			ring.Share{Arena: 7, Slots: 2, SlotBytes: 3, ReadOnly: true}.Append(nil),
			pad([]byte{17, 0, 1, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 7}),
		},
		"ready": {
			ring.Ready{Slot: 1, Stream: 2, Checksum: 3, HasChecksum: true, Generation: 4, Sequence: 5, HeadBytes: 6, Bytes: 7}.Append(nil),
			pad([]byte{
				18, 0, 2, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0,
				6, 0, 0, 0, 0, 0, 0, 0, 7,
			}),
		},
		"end": {ring.End{Stream: 3, Text: "no"}.Append(nil), append(pad([]byte{19, 0, 0, 0, 2, 0, 0, 0, 3}), "no"...)},
	} {
		if d := cmp.Diff(c.want, c.got); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}

// Whatever a trainer sends is a message or an error of kind Invalid; a message is written as it was read.
func FuzzParse(f *testing.F) {
	f.Add(ring.Hello{Session: "s-0123456789abcdef", Checksum: true}.Append(nil))
	f.Add(ring.Request{Kind: ring.Begin, Stream: 1, Epoch: 1 << 63}.Append(nil))
	f.Add(ring.Request{Kind: ring.Release, Slot: 1 << 31, Generation: 1, Arena: 1}.Append(nil))
	f.Add(ring.Request{Kind: ring.Commit, Stream: 1, Count: 1}.Append(nil))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if h, err := ring.ParseHello(raw); err == nil {
			if !bytes.Equal(h.Append(nil), raw) {
				t.Errorf("%x was read as %+v", raw, h)
			}
		} else if errkind.Of(err) != errkind.Invalid {
			t.Error(err)
		}
		if r, err := ring.ParseRequest(raw); err == nil {
			if !bytes.Equal(r.Append(nil), raw) {
				t.Errorf("%x was read as %+v", raw, r)
			}
		} else if errkind.Of(err) != errkind.Invalid {
			t.Error(err)
		}
	})
}
