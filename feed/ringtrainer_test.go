package feed_test

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/feed/feedtest"
	"github.com/millrace/millrace/feed/ring"
)

// mapped is an arena that was passed on.
type mapped struct {
	id        uint64
	slotBytes int
	mem       []byte
}

// trainer is the other end of the ring protocol.
type trainer struct {
	t      *testing.T
	data   feedtest.Data
	conn   *net.UnixConn
	schema *arrow.Schema
	room   int // of heads
	arena  mapped
	lent   []ring.Request
	inline int
	sums   int
	fds    []int // that came with what was read
}

func (r *rig) trainer(session string, hello ring.Hello) *trainer {
	r.t.Helper()
	conn, err := (&net.Dialer{}).DialContext(r.t.Context(), "unix", r.socket+".ring")
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = conn.Close() })
	hello.Session = session
	if _, err := conn.Write(hello.Append(nil)); err != nil {
		r.t.Fatal(err)
	}
	return &trainer{t: r.t, data: r.dispatcher.Data, conn: as[*net.UnixConn](conn)}
}

// welcome reads the answer to the greeting.
func (c *trainer) welcome() {
	c.t.Helper()
	m := c.message()
	if m[0] != 16 {
		c.t.Fatalf("answer to the greeting: %x", m)
	}
	schema := c.read(int(binary.LittleEndian.Uint32(m[4:])))
	c.room = int(binary.LittleEndian.Uint32(m[8:]))
	r, err := ipc.NewReader(strings.NewReader(string(schema) + "\xff\xff\xff\xff\x00\x00\x00\x00"))
	if err != nil {
		c.t.Fatal(err)
	}
	defer r.Release()
	c.schema = r.Schema()
}

// read reads n bytes and keeps the descriptors that come with them.
func (c *trainer) read(n int) []byte {
	c.t.Helper()
	b, err := c.tryRead(n)
	if err != nil {
		c.t.Fatal(err)
	}
	return b
}

func (c *trainer) tryRead(n int) ([]byte, error) {
	b, oob := make([]byte, n), make([]byte, unix.CmsgSpace(4))
	if err := c.conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return nil, err
	}
	for at := 0; at < n; {
		got, gotOOB, _, _, err := c.conn.ReadMsgUnix(b[at:], oob)
		if err != nil {
			return nil, err
		}
		if got == 0 {
			return nil, io.EOF
		}
		if gotOOB > 0 {
			messages, err := unix.ParseSocketControlMessage(oob[:gotOOB])
			if err != nil {
				return nil, err
			}
			fds, err := unix.ParseUnixRights(&messages[0])
			if err != nil {
				return nil, err
			}
			c.fds = append(c.fds, fds...)
		}
		at += got
	}
	return b, nil
}

func (c *trainer) message() []byte {
	c.t.Helper()
	return c.read(ring.ReplyBytes)
}

func (c *trainer) send(r ring.Request) {
	c.t.Helper()
	if _, err := c.conn.Write(r.Append(nil)); err != nil {
		c.t.Fatal(err)
	}
}

// share maps an arena.
func (c *trainer) share(m []byte) {
	c.t.Helper()
	le := binary.LittleEndian
	c.arena = mapped{id: le.Uint64(m[16:]), slotBytes: int(le.Uint64(m[8:]))}
	if len(c.fds) != 1 {
		c.t.Fatalf("%d descriptors came with an arena", len(c.fds))
	}
	fd := c.fds[0]
	c.fds = nil
	defer func() { _ = unix.Close(fd) }()
	prot := unix.PROT_READ
	if m[2]&1 == 0 {
		prot |= unix.PROT_WRITE
	} else if _, err := unix.Mmap(fd, 0, 4096, prot|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
		c.t.Error("memory that is said to be read-only can be mapped for writing")
	}
	if err := unix.Ftruncate(fd, 0); err == nil {
		c.t.Error("the memory can be made smaller")
	}
	mem, err := unix.Mmap(fd, 0, int(le.Uint32(m[4:]))*c.arena.slotBytes, prot, unix.MAP_SHARED)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = unix.Munmap(mem) })
	c.arena.mem = mem
}

// next is the next batch of a stream; its error is what ended the stream.
func (c *trainer) next(stream uint32) (got, error) {
	c.t.Helper()
	le := binary.LittleEndian
	for {
		m, err := c.tryRead(ring.ReplyBytes)
		if err != nil {
			return got{}, err
		}
		switch m[0] {
		case 17:
			c.share(m)
		case 18:
			image := c.image(m)
			if le.Uint32(m[8:]) == stream {
				return c.parse(image, m), nil
			}
		case 19:
			text := string(c.read(int(le.Uint32(m[4:]))))
			switch {
			case le.Uint32(m[8:]) != stream && le.Uint32(m[8:]) != 0:
			case text == "":
				return got{}, io.EOF
			default:
				return got{}, errors.New(text)
			}
		default:
			c.t.Fatalf("message %x", m)
		}
	}
}

// image is the memory of a batch.
func (c *trainer) image(m []byte) []byte {
	c.t.Helper()
	le := binary.LittleEndian
	slot, size := le.Uint32(m[4:]), int(le.Uint64(m[40:]))
	if slot == ring.Inline {
		c.inline++
		return c.read(size)
	}
	c.lent = append(c.lent, ring.Request{Kind: ring.Release, Slot: slot, Generation: le.Uint64(m[16:]), Arena: c.arena.id})
	return c.arena.mem[int(slot)*c.arena.slotBytes:][:size]
}

// parse reads the image of a batch.
func (c *trainer) parse(image, m []byte) got {
	c.t.Helper()
	le := binary.LittleEndian
	head := image[:le.Uint64(m[32:])]
	if sum := crc32.Update(crc32.ChecksumIEEE(head[:60]), crc32.IEEETable, head[64:]); sum != le.Uint32(head[60:]) {
		c.t.Fatal("checksum of the head")
	}
	if m[2]&2 != 0 {
		c.sums++
		if sum := crc32.Checksum(image[c.room:], crc32.MakeTable(crc32.Castagnoli)); sum != le.Uint32(m[12:]) {
			c.t.Fatal("checksum of the columns")
		}
	}
	if le.Uint64(head[16:]) != le.Uint64(m[16:]) || le.Uint64(head[24:]) != le.Uint64(m[24:]) || le.Uint64(head[40:]) != uint64(len(image)) {
		c.t.Fatalf("head %x of message %x", head, m)
	}
	meta := int(le.Uint32(head[32:]))
	table := head[64+(meta+7)/8*8:]
	if len(table) != int(le.Uint32(head[36:])) {
		c.t.Fatalf("table of %d bytes", len(table))
	}
	columns := make([]arrow.Array, c.schema.NumFields())
	for i, f := range c.schema.Fields() {
		var data arrow.ArrayData
		data, table = column(f.Type, table, image)
		columns[i] = array.MakeFromData(data)
	}
	rec := array.NewRecordBatch(c.schema, columns, int64(columns[0].Len()))
	return parse(c.t, append([]byte(nil), head[64:64+meta]...), rec, c.data)
}

// column is the column at the beginning of a table.
func column(t arrow.DataType, table, image []byte) (arrow.ArrayData, []byte) {
	pair := func() (uint64, uint64) {
		a, b := binary.LittleEndian.Uint64(table), binary.LittleEndian.Uint64(table[8:])
		table = table[16:]
		return a, b
	}
	storage := t
	if e, ok := t.(arrow.ExtensionType); ok {
		storage = e.StorageType()
	}
	length, nulls := pair()
	count := map[arrow.Type]int{arrow.FIXED_SIZE_LIST: 1, arrow.STRING: 3}[storage.ID()]
	if count == 0 {
		count = 2
	}
	var buffers []*memory.Buffer
	for i := range count {
		offset, size := pair()
		if size == 0 && i == 0 {
			buffers = append(buffers, nil)
			continue
		}
		buffers = append(buffers, memory.NewBufferBytes(image[offset:][:size]))
	}
	var children []arrow.ArrayData
	if l, ok := storage.(*arrow.FixedSizeListType); ok {
		var child arrow.ArrayData
		child, table = column(l.Elem(), table, image)
		children = append(children, child)
	}
	return array.NewData(t, int(length), buffers, children, int(nulls), 0), table
}

// all reads a stream to its end; each batch is given back when the next one is there.
func (c *trainer) all(stream uint32) []got {
	c.t.Helper()
	var out []got
	for {
		g, err := c.next(stream)
		if errors.Is(err, io.EOF) {
			c.giveBack(0)
			return out
		}
		if err != nil {
			c.t.Fatal(err)
		}
		out = append(out, g)
		c.giveBack(1)
		c.send(ring.Request{Kind: ring.Commit, Stream: stream, Count: uint64(len(out))})
	}
}

// giveBack gives all slots back but the last few.
func (c *trainer) giveBack(keep int) {
	c.t.Helper()
	for len(c.lent) > keep {
		c.send(c.lent[0])
		c.lent = c.lent[1:]
	}
}
