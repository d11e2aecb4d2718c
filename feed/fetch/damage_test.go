package fetch

import (
	"io"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/preprocess/partition"
	"github.com/millrace/millrace/preprocess/partition/flightdata"
)

// wire is a stream of messages as they come over the network.
type wire [][]byte

func (w *wire) RecvMsg(m any) error {
	if len(*w) == 0 {
		return io.EOF
	}
	raw := (*w)[0]
	*w = (*w)[1:]
	return flightdata.Codec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(raw)}, m)
}

// rawMessages is what a worker sends for 50 rows.
func rawMessages(tb testing.TB) [][]byte {
	tb.Helper()
	rec := record(tb, 50)
	defer rec.Release()
	var raw [][]byte
	for _, m := range messagesOf(tb, rec) {
		b, err := proto.Marshal(m)
		if err != nil {
			tb.Fatal(err)
		}
		raw = append(raw, b)
	}
	return raw
}

// readRows is the number of rows read from raw messages. No buffer may be left.
func readRows(tb testing.TB, raw ...[]byte) (rows int64, err error) {
	tb.Helper()
	pool := partition.NewPool(0)
	w := wire(raw)
	err = readStream(&w, pool, func(_ int, rec arrow.RecordBatch) error {
		rows += rec.NumRows()
		return nil
	})
	if closeErr := pool.Close(); closeErr != nil {
		tb.Error(closeErr)
	}
	return rows, err
}

// A byte that changed anywhere in a stream, or a message that was cut anywhere, is an error: never a fault, and never
// rows that are fewer or others.
func TestEveryDamagedByteIsAnError(t *testing.T) {
	messages := rawMessages(t)
	if rows, err := readRows(t, messages...); rows != 50 || err != nil {
		t.Fatalf("the undamaged stream: %d rows, %v", rows, err)
	}
	for i, whole := range messages {
		damaged := [][]byte{messages[0], messages[1]}
		for at := range whole {
			for _, change := range []byte{1, 0x10, 0x80, 0xff} {
				raw := append([]byte(nil), whole...)
				raw[at] ^= change
				damaged[i] = raw
				if rows, err := readRows(t, damaged...); err == nil {
					t.Errorf("message %d, byte %d of %d changed by %02x: %d rows and no error", i, at, len(whole), change, rows)
				}
			}
			damaged[i] = whole[:at]
			if rows, err := readRows(t, damaged...); err == nil {
				t.Errorf("message %d cut after %d of %d bytes: %d rows and no error", i, at, len(whole), rows)
			}
		}
	}
}

// Whatever comes in place of a record batch, it is read or an error.
func FuzzStream(f *testing.F) {
	messages := rawMessages(f)
	f.Add(messages[1])
	f.Add(messages[0])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, raw []byte) {
		if rows, err := readRows(t, messages[0], raw); err == nil && rows != 50 {
			t.Errorf("%d rows", rows)
		}
	})
}
