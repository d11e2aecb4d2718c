package flightdata

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/millrace/millrace/internal/errkind"
)

// sink is a connection that keeps what is written to it.
type sink struct {
	net.Conn
	bytes.Buffer
}

func (s *sink) Write(b []byte) (int, error)      { return s.Buffer.Write(b) }
func (s *sink) Read(b []byte) (int, error)       { return s.Buffer.Read(b) }
func (*sink) SetWriteDeadline(_ time.Time) error { return nil }

// framed is a record batch of rows in a frame, then the end.
func framed(tb testing.TB, rows int) []byte {
	tb.Helper()
	rec := record(tb, memory.DefaultAllocator, rows)
	defer rec.Release()
	out, done := &sink{}, false
	m, err := NewRecord(rec, func() { done = true })
	if err != nil {
		tb.Fatal(err)
	}
	w := NewFrameWriter(out)
	if err := errors.Join(w.Message(3, m), w.End()); err != nil || !done {
		tb.Fatalf("written: %v, released: %t", err, done)
	}
	return out.Bytes()
}

// readFrames reads messages until the first error; each must have its checksum.
func readFrames(tb testing.TB, raw []byte, maxBody int) (messages int, err error) {
	tb.Helper()
	s := newSlab(tb)
	r := NewFrameReader(bytes.NewReader(raw), maxBody)
	for {
		in := NewIncoming(s)
		slice, sum, err := r.Next(in)
		if err == nil && (sum != in.Checksum() || slice != 3) {
			err = errkind.Errorf(errkind.BadData, "slice %d, checksum %08x, not %08x", slice, in.Checksum(), sum)
		}
		in.Drop()
		if len(s.live) != 0 {
			tb.Error("a buffer was kept")
		}
		if err != nil {
			return messages, err
		}
		messages++
	}
}

// What is written in frames is what Flight would send, and is received whole.
func TestFramesCarryMessages(t *testing.T) {
	for _, rows := range []int{0, 1, 5_000, 100_000} {
		rec := record(t, memory.DefaultAllocator, rows)
		stock := stockMessage(t, rec)
		rec.Release()
		s := newSlab(t)
		r := NewFrameReader(bytes.NewReader(framed(t, rows)), 64<<20)
		in := NewIncoming(s)
		slice, sum, err := r.Next(in)
		if err != nil || slice != 3 || sum != in.Checksum() {
			t.Fatalf("%d rows: slice %d, %v", rows, slice, err)
		}
		if !bytes.Equal(in.header, stock.GetDataHeader()) || !bytes.Equal(in.body, stock.GetDataBody()) {
			t.Errorf("%d rows came otherwise", rows)
		}
		in.Drop()
		if _, _, err := r.Next(NewIncoming(s)); !errors.Is(err, io.EOF) {
			t.Errorf("after the last message: %v", err)
		}
	}
}

// Errors come as they were said, and one may follow messages.
func TestFramesCarryErrors(t *testing.T) {
	out := &sink{}
	if err := NewFrameWriter(out).Error("it broke"); err != nil {
		t.Fatal(err)
	}
	_, err := readFrames(t, out.Bytes(), 0)
	if remote, ok := errors.AsType[*RemoteError](err); !ok || remote.Text != "it broke" {
		t.Errorf("%v", err)
	}
}

// A byte that changed anywhere, or an end anywhere, is an error that says so: nothing is taken for the end.
func TestDamagedFramesAreErrors(t *testing.T) {
	whole := framed(t, 20)
	if n, err := readFrames(t, whole, 1<<20); n != 1 || !errors.Is(err, io.EOF) {
		t.Fatalf("the undamaged frames: %d, %v", n, err)
	}
	for at := range whole {
		for _, change := range []byte{1, 0x10, 0x80, 0xff} {
			raw := bytes.Clone(whole)
			raw[at] ^= change
			if _, err := readFrames(t, raw, 1<<20); errors.Is(err, io.EOF) || errkind.Of(err) == errkind.Unknown {
				t.Errorf("byte %d changed by %02x: %v", at, change, err)
			}
		}
		if _, err := readFrames(t, whole[:at], 1<<20); errkind.Of(err) != errkind.Unavailable {
			t.Errorf("cut after %d bytes: %v", at, err)
		}
	}
}

// Whatever comes, reading frames ends, and makes room for no more than was allowed.
func FuzzFrames(f *testing.F) {
	f.Add(framed(f, 20))
	f.Add(framed(f, 0)[:30])
	f.Add(frameHead(frameMessage, 10, 1<<40, 0))
	f.Add(frameHead(frameMessage, MaxHeaderBytes, 3, 0))
	f.Add(frameHead(9, 0, 0, 0))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if _, err := readFrames(t, raw, len(raw)); err == nil {
			t.Error("it does not end")
		}
	})
}
