package serve

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/feed/ring"
	"github.com/millrace/millrace/feed/session"
	"github.com/millrace/millrace/feed/session/deal"
	"github.com/millrace/millrace/internal/errkind"
)

// greetingTimeout bounds the wait for a trainer's first message.
const greetingTimeout = 10 * time.Second

// maxArenas bounds the arenas of which a trainer may hold slots.
const maxArenas = 64

// trainer is one connection.
type trainer struct {
	server   *Server
	conn     *net.UnixConn
	ring     *session.Ring
	checksum bool

	pumping sync.WaitGroup

	writing sync.Mutex // held while a message is written
	scratch []byte

	mu     sync.Mutex
	arenas []*ring.Arena // of which slots were handed over, the present one last
	stream *session.Stream
	number uint32 // of the stream
}

// run reads what the trainer says until it leaves. What it says wrongly ends the connection and is told it.
func (t *trainer) run(ctx context.Context) error {
	if err := t.greet(); err != nil {
		t.farewell(err)
		return err
	}
	stop := func() {}
	defer func() { stop() }()
	in := bufio.NewReaderSize(t.conn, 64*ring.RequestBytes) // one is rarely alone: a batch goes back when the next is asked for
	buf := make([]byte, ring.RequestBytes)
	for {
		if _, err := io.ReadFull(in, buf); err != nil {
			return nil //nolint:nilerr // It has left, or the sidecar stops.
		}
		req, err := ring.ParseRequest(buf)
		if err == nil && req.Kind == ring.Begin {
			stop()
			stop, err = t.begin(ctx, req)
		} else if err == nil {
			err = t.handle(req)
		}
		if err != nil {
			t.farewell(err)
			return err
		}
	}
}

// greet answers the trainer's first message.
func (t *trainer) greet() error {
	if err := t.conn.SetReadDeadline(time.Now().Add(greetingTimeout)); err != nil {
		return fmt.Errorf("waiting for a greeting: %w", err)
	}
	if err := checkPeer(t.conn); err != nil {
		return err
	}
	buf := make([]byte, ring.HelloBytes)
	if _, err := io.ReadFull(t.conn, buf); err != nil {
		return errkind.With(errkind.Invalid, fmt.Errorf("reading a greeting: %w", err))
	}
	hello, err := ring.ParseHello(buf)
	if err != nil {
		return err
	}
	if err := t.conn.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("waiting for messages: %w", err)
	}
	if t.ring, err = t.server.table.OpenRing(hello.Session, hello.ReadOnly); err != nil {
		return err
	}
	t.checksum = hello.Checksum
	payload := ipc.GetSchemaPayload(t.ring.Job().Description().Schema, memory.DefaultAllocator)
	defer payload.Release()
	meta := payload.Meta()
	defer meta.Release()
	schema := encapsulated(meta.Bytes())
	message := ring.Welcome{SchemaBytes: uint32(len(schema)), HeadBytes: uint32(t.ring.Format().HeadBytes())}.Append(nil) //nolint:gosec // Small.
	return t.write(append(message, schema...))
}

// encapsulated is an IPC message without a body, as a stream begins with it.
func encapsulated(meta []byte) []byte {
	padded := (len(meta) + 7) / 8 * 8
	out := binary.LittleEndian.AppendUint32([]byte("\xff\xff\xff\xff"), uint32(padded)) //nolint:gosec // Small.
	return append(append(out, meta...), make([]byte, padded-len(meta))...)
}

// begin begins a stream; stop ends it.
func (t *trainer) begin(ctx context.Context, req ring.Request) (stop func(), err error) {
	if req.Stream == 0 {
		return func() {}, errkind.Errorf(errkind.Invalid, "streams of a ring are numbered from 1")
	}
	ctx, cancel := context.WithCancel(ctx)
	stream, refused := t.ring.Stream(deal.Position{Epoch: req.Epoch, Step: int64(req.Step), Row: int64(req.Row)}) //nolint:gosec // Checked by Stream.
	t.mu.Lock()
	t.stream, t.number = stream, req.Stream
	t.mu.Unlock()
	ended := make(chan struct{})
	t.pumping.Go(func() {
		defer close(ended)
		err := refused
		if err == nil {
			err = t.pump(ctx, stream, req.Stream)
		}
		if ctx.Err() != nil {
			return
		}
		end := ring.End{Stream: req.Stream}
		if !errors.Is(err, io.EOF) {
			end.Text = text(err)
		}
		_ = t.write(end.Append(nil)) // that the trainer has left is seen where it is read
	})
	return func() {
		cancel()
		<-ended
	}, nil
}

// handle takes a message in that is no Begin.
func (t *trainer) handle(req ring.Request) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if req.Kind == ring.Commit {
		if t.stream != nil && req.Stream == t.number {
			t.stream.Consumed(req.Count)
		}
		return nil
	}
	for _, a := range t.arenas {
		if a.ID() == req.Arena {
			return a.Return(req.Slot, req.Generation, t.ring.Peer())
		}
	}
	return errkind.Errorf(errkind.Invalid, "a slot of an arena was given back that is not known")
}

// pump hands batches over until the stream ends, which is io.EOF at the end of its epoch.
func (t *trainer) pump(ctx context.Context, stream *session.Stream, number uint32) error {
	for {
		b, err := stream.Next(ctx, stream.Prefetch())
		if err != nil {
			return err
		}
		err = t.handOver(b, number)
		b.Record.Release()
		if err != nil {
			return err
		}
	}
}

func (t *trainer) handOver(b *session.Batch, number uint32) error {
	ready := ring.Ready{Slot: ring.Inline, Stream: number, Sequence: b.Sequence}
	if b.Place != nil {
		total, head, err := t.complete(b, &ready)
		if err == nil {
			return t.lend(b.Place, ready, head, total)
		}
		if errkind.Of(err) != errkind.Exhausted {
			return err
		}
		ready.Before = 0
	}
	meta, err := b.AppendHeader(nil)
	if err != nil {
		return err
	}
	pieces, total, head, err := t.ring.Format().Pieces(b.Sequence, meta, b.Record)
	if err != nil {
		return err
	}
	ready.HeadBytes, ready.Bytes = uint64(head), uint64(total) //nolint:gosec // Never negative.
	t.ring.CountInline()
	return t.write(append([][]byte{ready.Append(nil)}, pieces...)...)
}

// complete completes the image of a batch in its slot.
func (t *trainer) complete(b *session.Batch, ready *ring.Ready) (total, head int, err error) {
	image := *b
	if b.Place.Arena().Shared() {
		image.Sequence, ready.Before = b.Number, b.Number-b.Sequence
	}
	meta, err := image.AppendHeader(nil)
	if err != nil {
		return 0, 0, err
	}
	return b.Place.Write(t.ring.Format(), image.Sequence, meta, b.Record)
}

// lend hands the batch in a slot over, and its arena first where the trainer does not have that.
func (t *trainer) lend(s *ring.Slot, ready ring.Ready, head, total int) error {
	arena := s.Arena()
	t.mu.Lock()
	known := len(t.arenas) > 0 && t.arenas[len(t.arenas)-1] == arena
	if !known {
		t.arenas = append(t.arenas[max(0, len(t.arenas)-maxArenas+1):], arena)
	}
	arena.Lend(s, t.ring.Peer())
	t.mu.Unlock()
	if !known {
		if err := t.share(arena); err != nil {
			return err
		}
	}
	ready.Slot, ready.Generation = uint32(s.Index()), s.Generation() //nolint:gosec // Slots are few.
	ready.HeadBytes, ready.Bytes = uint64(head), uint64(total)       //nolint:gosec // Never negative.
	if t.checksum {
		ready.Checksum, ready.HasChecksum = s.Checksum(t.ring.Format()), true
	}
	t.writing.Lock()
	defer t.writing.Unlock()
	t.scratch = ready.Append(t.scratch[:0])
	_, err := t.conn.Write(t.scratch)
	return err
}

// share passes the descriptor of an arena on.
func (t *trainer) share(a *ring.Arena) error {
	message := ring.Share{Arena: a.ID(), Slots: uint32(a.NumSlots()), SlotBytes: uint64(a.SlotBytes()), ReadOnly: a.ReadOnly()}.Append(nil) //nolint:gosec // Never negative.
	raw, err := a.File().SyscallConn()
	if err != nil {
		return fmt.Errorf("passing shared memory on: %w", err)
	}
	t.writing.Lock()
	defer t.writing.Unlock()
	var sendErr error
	if err := raw.Control(func(fd uintptr) {
		_, _, sendErr = t.conn.WriteMsgUnix(message, unix.UnixRights(int(fd)), nil)
	}); err != nil {
		return fmt.Errorf("passing shared memory on: %w", err)
	}
	return sendErr
}

// text is an error as the session protocol writes it.
func text(err error) string { return err.Error() + " [kind=" + errkind.Of(err).String() + "]" }

// farewell tells the trainer why the connection ends.
func (t *trainer) farewell(err error) {
	_ = t.conn.SetWriteDeadline(time.Now().Add(time.Second)) // one who does not read is not waited for
	_ = t.write(ring.End{Text: text(err)}.Append(nil))
}

func (t *trainer) write(pieces ...[]byte) error {
	t.writing.Lock()
	defer t.writing.Unlock()
	buffers := net.Buffers(pieces)
	_, err := buffers.WriteTo(t.conn)
	return err
}
