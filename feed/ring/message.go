package ring

import (
	"bytes"
	"encoding/binary"

	"github.com/millrace/millrace/internal/errkind"
)

// Version of the protocol.
const Version = 1

// Sizes of messages, bytes.
const (
	// HelloBytes is the first message of a trainer, RequestBytes each one that follows.
	HelloBytes   = 64
	RequestBytes = 32
	// ReplyBytes is each message of a sidecar, without what follows it.
	ReplyBytes = 64
)

// MaxText bounds the text of an End, and the schema of a Welcome, bytes.
const MaxText = 1 << 20

const (
	helloMagic   = "MILLRING"
	maxSession   = 32
	flagReadOnly = 1
	flagChecksum = 2
)

// Hello is the first message of a trainer.
type Hello struct {
	// Session is the name that the open action gave.
	Session string
	// ReadOnly asks for a map that nobody but the sidecar can write to.
	ReadOnly bool
	// Checksum asks for the CRC-32C of every batch.
	Checksum bool
}

// Append appends the message.
func (h Hello) Append(dst []byte) []byte {
	var b [HelloBytes]byte
	copy(b[:], helloMagic)
	binary.LittleEndian.PutUint16(b[8:], Version)
	binary.LittleEndian.PutUint16(b[10:], flags(h.ReadOnly, flagReadOnly)|flags(h.Checksum, flagChecksum))
	copy(b[16:16+maxSession], h.Session)
	return append(dst, b[:]...)
}

func flags(set bool, flag uint16) uint16 {
	if set {
		return flag
	}
	return 0
}

// ParseHello reads the first message of a trainer. Errors have kind Invalid.
func ParseHello(b []byte) (Hello, error) {
	if len(b) != HelloBytes || string(b[:8]) != helloMagic {
		return Hello{}, errkind.Errorf(errkind.Invalid, "the first message is no greeting of the ring protocol")
	}
	if v := binary.LittleEndian.Uint16(b[8:]); v != Version {
		return Hello{}, errkind.Errorf(errkind.Invalid, "the client speaks version %d of the ring protocol and this sidecar version %d", v, Version)
	}
	f := binary.LittleEndian.Uint16(b[10:])
	name := bytes.TrimRight(b[16:16+maxSession], "\x00")
	if f&^(flagReadOnly|flagChecksum) != 0 || !zero(b[12:16]) || !zero(b[16+maxSession:]) || len(name) == 0 || bytes.IndexByte(name, 0) >= 0 {
		return Hello{}, errkind.Errorf(errkind.Invalid, "the greeting of a client says what version %d does not know", Version)
	}
	return Hello{Session: string(name), ReadOnly: f&flagReadOnly != 0, Checksum: f&flagChecksum != 0}, nil
}

func zero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// Kind of a message of a trainer.
type Kind uint8

// What a trainer says after its greeting.
const (
	// Begin asks for the rest of an epoch: Stream names it from now on, Epoch, Step and Row are its position.
	Begin Kind = iota + 1
	// Release gives Slot of Arena back, in its Generation.
	Release
	// Commit says that the first Count batches of Stream are consumed.
	Commit
)

// Request is a message of a trainer after its greeting.
type Request struct {
	Kind             Kind
	Stream           uint32 // of Begin and Commit
	Slot             uint32 // of Release
	Epoch, Step, Row uint64 // of Begin
	Generation       uint64 // of Release
	Arena            uint64 // of Release
	Count            uint64 // of Commit
}

// Append appends the message.
func (r Request) Append(dst []byte) []byte {
	var b [RequestBytes]byte
	le := binary.LittleEndian
	b[0] = byte(r.Kind)
	switch r.Kind {
	case Begin:
		le.PutUint32(b[4:], r.Stream)
		le.PutUint64(b[8:], r.Epoch)
		le.PutUint64(b[16:], r.Step)
		le.PutUint64(b[24:], r.Row)
	case Release:
		le.PutUint32(b[4:], r.Slot)
		le.PutUint64(b[8:], r.Generation)
		le.PutUint64(b[16:], r.Arena)
	case Commit:
		le.PutUint32(b[4:], r.Stream)
		le.PutUint64(b[8:], r.Count)
	}
	return append(dst, b[:]...)
}

// ParseRequest reads a message of a trainer. Errors have kind Invalid.
func ParseRequest(b []byte) (Request, error) {
	if len(b) != RequestBytes || !zero(b[1:4]) {
		return Request{}, errkind.Errorf(errkind.Invalid, "a message of the ring protocol cannot be read")
	}
	le := binary.LittleEndian
	r, rest := Request{Kind: Kind(b[0])}, b[16:]
	switch r.Kind {
	case Begin:
		r.Stream, r.Epoch, r.Step, r.Row = le.Uint32(b[4:]), le.Uint64(b[8:]), le.Uint64(b[16:]), le.Uint64(b[24:])
		rest = nil
	case Release:
		r.Slot, r.Generation, r.Arena = le.Uint32(b[4:]), le.Uint64(b[8:]), le.Uint64(b[16:])
		rest = b[24:]
	case Commit:
		r.Stream, r.Count = le.Uint32(b[4:]), le.Uint64(b[8:])
	default:
		return Request{}, errkind.Errorf(errkind.Invalid, "a message of the ring protocol has the unknown kind %d", b[0])
	}
	if !zero(rest) {
		return Request{}, errkind.Errorf(errkind.Invalid, "a message of the ring protocol says what version %d does not know", Version)
	}
	return r, nil
}

// Kinds of messages of a sidecar.
const (
	kindWelcome = 16 + iota
	kindShare
	kindReady
	kindEnd
)

// Welcome answers a greeting; the schema of batches, as an Arrow IPC message, follows it.
type Welcome struct {
	SchemaBytes uint32
	// HeadBytes is the room in each slot for what precedes the columns.
	HeadBytes uint32
}

// Append appends the message.
func (w Welcome) Append(dst []byte) []byte {
	var b [ReplyBytes]byte
	le := binary.LittleEndian
	b[0] = kindWelcome
	le.PutUint32(b[4:], w.SchemaBytes)
	le.PutUint32(b[8:], w.HeadBytes)
	le.PutUint32(b[12:], Version)
	return append(dst, b[:]...)
}

// Share gives an arena, whose descriptor comes with the message. Batches that follow lie in it.
type Share struct {
	Arena     uint64
	Slots     uint32
	SlotBytes uint64
	ReadOnly  bool
}

// Append appends the message.
func (s Share) Append(dst []byte) []byte {
	var b [ReplyBytes]byte
	le := binary.LittleEndian
	b[0] = kindShare
	le.PutUint16(b[2:], flags(s.ReadOnly, flagReadOnly))
	le.PutUint32(b[4:], s.Slots)
	le.PutUint64(b[8:], s.SlotBytes)
	le.PutUint64(b[16:], s.Arena)
	return append(dst, b[:]...)
}

// Inline is the slot of a batch that lies in none: its image follows the message.
const Inline = 1<<32 - 1

// Ready hands a batch over.
type Ready struct {
	Slot, Stream         uint32
	Generation, Sequence uint64
	// HeadBytes of Bytes are what precedes the columns.
	HeadBytes, Bytes uint64
	// Before is how many batches the sequence number in a slot that is shared counts beyond Sequence: streams of peers may
	// begin at different ones.
	Before uint64
	// Checksum is the CRC-32C of the image without the room of its head, where it was asked for.
	Checksum    uint32
	HasChecksum bool
}

// Append appends the message.
func (r Ready) Append(dst []byte) []byte {
	var b [ReplyBytes]byte
	le := binary.LittleEndian
	b[0] = kindReady
	le.PutUint16(b[2:], flags(r.HasChecksum, flagChecksum))
	le.PutUint32(b[4:], r.Slot)
	le.PutUint32(b[8:], r.Stream)
	le.PutUint32(b[12:], r.Checksum)
	le.PutUint64(b[16:], r.Generation)
	le.PutUint64(b[24:], r.Sequence)
	le.PutUint64(b[32:], r.HeadBytes)
	le.PutUint64(b[40:], r.Bytes)
	le.PutUint64(b[48:], r.Before)
	return append(dst, b[:]...)
}

// End is the end of a stream: of its epoch where Text is empty, else an error, whose text follows the message. Stream is
// 0 where it is the end of all, and of the connection.
type End struct {
	Stream uint32
	Text   string
}

// Append appends the message and what follows it.
func (e End) Append(dst []byte) []byte {
	var b [ReplyBytes]byte
	text := e.Text[:min(len(e.Text), MaxText)]
	b[0] = kindEnd
	binary.LittleEndian.PutUint32(b[8:], e.Stream)
	binary.LittleEndian.PutUint32(b[4:], uint32(len(text))) //nolint:gosec // Bounded above.
	return append(append(dst, b[:]...), text...)
}
