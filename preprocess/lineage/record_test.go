package lineage

import (
	"bytes"
	"encoding/hex"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/order"
)

func drawRecord(t *rapid.T) Record {
	digest := func(name string) order.Digest {
		return order.Digest(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, name))
	}
	r := Record{
		Manifest: digest("manifest"), Plan: digest("plan"), Seed: rapid.Uint64().Draw(t, "seed"), ID: drawID(t, "id"),
		NumSamples: rapid.Int64Min(1).Draw(t, "samples"), Stage: rapid.IntRange(0, maxStage).Draw(t, "stage"),
		Attempt: rapid.Uint32().Draw(t, "attempt"),
	}
	r.FirstPosition = rapid.Int64Range(0, math.MaxInt64-r.NumSamples).Draw(t, "first position")
	return r
}

func exampleRecord() Record {
	return Record{
		Manifest: order.Digest{0xaa, 1, 2}, Plan: order.Digest{0xbb, 3}, Seed: 9176,
		ID:            ID{Epoch: 3, Source: 1041, Path: [MaxDepth]uint32{300}, Depth: 1},
		FirstPosition: 33312, NumSamples: 32, Stage: 1, Attempt: 2,
	}
}

func encode(t interface{ Fatal(...any) }, r Record) []byte {
	b, err := r.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestRecordComesBackFromItsBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := drawRecord(t)
		b := encode(t, r)
		got, err := ParseRecord(b)
		if err != nil {
			t.Fatalf("%+v: %v", r, err)
		}
		if diff := cmp.Diff(r, got); diff != "" {
			t.Fatalf("record changed (-want +got):\n%s", diff)
		}
		// Appending leaves alone what is there.
		if more, err := r.AppendBinary([]byte("ab")); err != nil || !bytes.Equal(more, append([]byte("ab"), b...)) {
			t.Fatalf("appended to ab: %q, %v", more, err)
		}
	})
}

// Other releases read these bytes.
func TestRecordBytesNeverChange(t *testing.T) {
	const want = "01aa010200000000000000000000000000bb030000000000000000000000000000d82300000000000003910801ac02a08402200102"
	if got := hex.EncodeToString(encode(t, exampleRecord())); got != want {
		t.Errorf("record is written as\n%s, want\n%s", got, want)
	}
}

func TestRecordIsReadableForPeople(t *testing.T) {
	const want = "partition 3/1041/300 of manifest aa010200000000000000000000000000: positions 33312 to 33343, seed 9176, " +
		"plan bb030000000000000000000000000000, stage 1, attempt 2"
	if got := exampleRecord().String(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestRecordThatIsCutOffSaysWhere(t *testing.T) {
	b := encode(t, exampleRecord())
	for n := range b {
		_, err := ParseRecord(b[:n])
		if err == nil || !strings.Contains(err.Error(), "cut off in its ") || errkind.Of(err) != errkind.Invalid {
			t.Errorf("after %d of %d bytes: error is %v of kind %v", n, len(b), err, errkind.Of(err))
		}
	}
}

func TestParseRecordSaysWhatIsWrong(t *testing.T) {
	b := encode(t, exampleRecord())
	depthAt := 1 + 16 + 16 + 8 + 1 + 2
	with := func(at int, v ...byte) []byte {
		return append(append(bytes.Clone(b[:at]), v...), b[at+1:]...)
	}
	for want, in := range map[string][]byte{
		"of version 2, and this release reads version 1": with(0, 2),
		"1 bytes after its end":                          append(bytes.Clone(b), 0),
		"9 generations":                                  with(depthAt, 9),
		"epoch is not in its shortest form":              with(41, 0x83, 0),
		"source partition is out of range":               with(42, bytes.Repeat([]byte{0xff}, 12)...),
		"id is out of range":                             with(depthAt+1, 0xff, 0xff, 0xff, 0xff, 0xff),
		"0 samples from position":                        with(len(b)-3, 0),
	} {
		_, err := ParseRecord(in)
		if err == nil || !strings.Contains(err.Error(), want) || errkind.Of(err) != errkind.Invalid {
			t.Errorf("%x: error is %v of kind %v, want %q, Invalid", in, err, errkind.Of(err), want)
		}
	}
}

// A record that would not come back is not written.
func TestInvalidRecordIsNotWritten(t *testing.T) {
	for want, change := range map[string]func(*Record){
		"a path of 9 generations":     func(r *Record) { r.ID.Depth = 9 },
		"numbers past its depth":      func(r *Record) { r.ID.Path[3] = 1 },
		"-1 samples":                  func(r *Record) { r.NumSamples = -1 },
		"from position -1":            func(r *Record) { r.FirstPosition = -1 },
		"is not a run of positions":   func(r *Record) { r.FirstPosition = math.MaxInt64 },
		"stage -1 is not within 0 to": func(r *Record) { r.Stage = -1 },
	} {
		r := exampleRecord()
		change(&r)
		b, err := r.AppendBinary([]byte("ab"))
		if err == nil || !strings.Contains(err.Error(), want) || errkind.Of(err) != errkind.Invalid || string(b) != "ab" {
			t.Errorf("%+v: got %q, error %v of kind %v, want %q, Invalid", r, b, err, errkind.Of(err), want)
		}
	}
}

// What is read is written the same again: a record has one form only.
func FuzzParseRecord(f *testing.F) {
	b := encode(f, exampleRecord())
	f.Add(b)
	f.Add(b[:len(b)-1])
	f.Add(bytes.Repeat([]byte{1}, 60))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ParseRecord(b)
		if err != nil {
			if errkind.Of(err) != errkind.Invalid {
				t.Fatalf("%x: %v is of kind %v", b, err, errkind.Of(err))
			}
			return
		}
		if again := encode(t, r); !bytes.Equal(again, b) {
			t.Fatalf("%x was read, and is written as %x", b, again)
		}
	})
}
