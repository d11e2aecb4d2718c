package order

import (
	"encoding/base64"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/errkind"
)

func drawDigest(t *rapid.T, name string) Digest {
	return Digest(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, name))
}

func drawCursor(t *rapid.T) Cursor {
	return Cursor{
		Job:   string(rapid.SliceOfN(rapid.Byte(), 0, MaxJobBytes).Draw(t, "job")),
		Order: drawDigest(t, "order"), Pixels: drawDigest(t, "pixels"),
		Epoch: rapid.Uint64().Draw(t, "epoch"), Step: rapid.Uint64().Draw(t, "step"), Rows: rapid.Uint64().Draw(t, "rows"),
		Partition: rapid.Uint64().Draw(t, "partition"), RowInPartition: rapid.Uint64().Draw(t, "row in partition"),
		LogPosition: rapid.Uint64().Draw(t, "log position"), LogHash: drawDigest(t, "log hash"),
	}
}

func TestCursorComesBackFromItsText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawCursor(t)
		text := c.String()
		got, err := ParseCursor(text)
		if err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		if diff := cmp.Diff(c, got); diff != "" {
			t.Fatalf("cursor changed (-want +got):\n%s", diff)
		}
		if len(text) > MaxCursorBytes {
			t.Fatalf("%d characters, want %d at most", len(text), MaxCursorBytes)
		}
	})
	largest := Cursor{
		Job: strings.Repeat("j", MaxJobBytes), Epoch: math.MaxUint64, Step: math.MaxUint64, Rows: math.MaxUint64,
		Partition: math.MaxUint64, RowInPartition: math.MaxUint64, LogPosition: math.MaxUint64,
	}
	if n := len(largest.String()); n > MaxCursorBytes {
		t.Errorf("the largest cursor has %d characters, want %d at most", n, MaxCursorBytes)
	}
}

func exampleCursor() Cursor {
	return Cursor{
		Job: "imagenet-rn50", Order: Digest{1, 2, 3}, Pixels: Digest{4, 5, 6}, Epoch: 3, Step: 812, Rows: 812 * 256,
		Partition: 11548, RowInPartition: 8, LogPosition: 2, LogHash: Digest{7, 8, 9},
	}
}

// Checkpoints outlive releases: this text must be read, and written, for ever.
func TestCursorTextNeverChanges(t *testing.T) {
	const want = "mr1.SA1pbWFnZW5ldC1ybjUwAQIDAAAAAAAAAAAAAAAAAAQFBgAAAAAAAAAAAAAAAAADrAaA2AycWggCBwgJAAAAAAAAAAAAAAAAAN4DHBM"
	if got := exampleCursor().String(); got != want {
		t.Errorf("cursor is written as\n%s, want\n%s", got, want)
	}
}

// Every cursor that was cut off says so, wherever it was cut.
func TestCursorThatIsCutOffSaysSo(t *testing.T) {
	text := exampleCursor().String()
	for n := 1; n < len(text); n++ {
		_, err := ParseCursor(text[:n])
		if err == nil || !strings.Contains(err.Error(), "cut off") || errkind.Of(err) != errkind.Invalid {
			t.Errorf("after %d of %d characters: error is %v of kind %v", n, len(text), err, errkind.Of(err))
		}
	}
}

// No single changed, added, left out or swapped character goes unseen.
func TestCursorThatIsDamagedIsRefused(t *testing.T) {
	text := exampleCursor().String()
	rapid.Check(t, func(t *rapid.T) {
		at := rapid.IntRange(0, len(text)-1).Draw(t, "at")
		b := []byte(text)
		switch rapid.IntRange(0, 3).Draw(t, "damage") {
		case 0:
			b[at] = rapid.Byte().Draw(t, "byte")
		case 1:
			b = append(b[:at:at], b[at+1:]...)
		case 2:
			b = append(b[:at:at], append([]byte{rapid.Byte().Draw(t, "byte")}, text[at:]...)...)
		case 3:
			other := rapid.IntRange(0, len(text)-1).Draw(t, "other")
			b[at], b[other] = b[other], b[at]
		}
		if string(b) == text {
			return
		}
		if c, err := ParseCursor(string(b)); err == nil {
			t.Fatalf("%q was read as %+v", b, c)
		} else if errkind.Of(err) != errkind.Invalid {
			t.Fatalf("%q: %v is of kind %v", b, err, errkind.Of(err))
		}
	})
}

func TestCursorErrorsSayWhich(t *testing.T) {
	text := exampleCursor().String()
	flip := []byte(text)
	flip[60] = 'B'
	for in, want := range map[string]string{
		"":                              "is empty",
		"latest":                        "is not a cursor",
		"mrx." + text[4:]:               "is not a cursor",
		"mr2." + text[4:]:               "version 2, and this release reads version 1",
		"mr10":                          "version 10",
		string(flip):                    "checksum",
		text[:40] + "+" + text[41:]:     `character 40 is "+"`,
		text + "\n":                     `"\n"`,
		text + "AAAA":                   "follow its end",
		"mr1." + strings.Repeat("_", 8): "length is impossible",
		strings.Repeat("m", 1e6):        "is not a cursor",
	} {
		_, err := ParseCursor(in)
		if err == nil || !strings.Contains(err.Error(), want) || errkind.Of(err) != errkind.Invalid || len(err.Error()) > 200 {
			t.Errorf("%.60q: error is %v of kind %v, want %q, Invalid", in, err, errkind.Of(err), want)
		}
	}
}

func TestDigestComesBackFromItsText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawDigest(t, "digest")
		if got, err := ParseDigest(d.String()); got != d || err != nil {
			t.Fatalf("ParseDigest(%v) = %v, %v", d, got, err)
		}
	})
	for in, want := range map[string]string{
		"":                       "has 0 characters, not 32",
		strings.Repeat("g", 32):  "is not hexadecimal",
		strings.Repeat("A", 32):  "not in lower case",
		strings.Repeat("a", 1e6): "characters, not 32",
	} {
		if _, err := ParseDigest(in); err == nil || !strings.Contains(err.Error(), want) || errkind.Of(err) != errkind.Invalid {
			t.Errorf("%.40q: error is %v, want %q", in, err, want)
		}
	}
}

// What is read is written the same again: a cursor has one text only.
func FuzzParseCursor(f *testing.F) {
	text := exampleCursor().String()
	f.Add(text)
	f.Add(text[:len(text)-5])
	f.Add(Cursor{}.String())
	f.Add("mr2.AAAA")
	f.Add("mr1." + base64.RawURLEncoding.EncodeToString([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}))
	f.Fuzz(func(t *testing.T, s string) {
		c, err := ParseCursor(s)
		if err != nil {
			if errkind.Of(err) != errkind.Invalid {
				t.Fatalf("%q: %v is of kind %v", s, err, errkind.Of(err))
			}
			return
		}
		if c.String() != s {
			t.Fatalf("%q was read, and is written as %q", s, c)
		}
	})
}
