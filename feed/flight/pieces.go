package flight

import (
	"github.com/apache/arrow-go/v18/arrow"
	"google.golang.org/grpc"

	"github.com/millrace/millrace/feed/session"
	"github.com/millrace/millrace/preprocess/partition"
	"github.com/millrace/millrace/preprocess/partition/flightdata"
)

// DefaultBatchBytes is the most that a record batch has in a stream whose ticket came from GetFlightInfo and whose
// descriptor said nothing else: many clients accept messages of 4 MiB at most.
const DefaultBatchBytes = 2 << 20

// maxBatchBytes is the most that can be asked for.
const maxBatchBytes = 256 << 20

// sendBatch sends b, in pieces of the size that the reading wants, and gives it up.
func sendBatch(stream grpc.ServerStream, r *reading, b *session.Batch) error {
	defer b.Record.Release()
	b.Sequence += r.first
	if r.batchBytes == 0 {
		header, err := b.AppendHeader(nil)
		if err != nil {
			return err
		}
		return sendRecord(stream, b.Record, func(*flightdata.Outgoing) []byte { return header })
	}
	for first := int64(0); ; {
		n := rowsWithin(b.Record, first, r.batchBytes)
		more := first+n < b.NumRows
		if err := sendPiece(stream, b, first, n, more); err != nil || !more {
			return err
		}
		first += n
	}
}

// sendPiece sends n rows of b from first on.
func sendPiece(stream grpc.ServerStream, b *session.Batch, first, n int64, more bool) error {
	rows := b.Record.NewSlice(first, first+n)
	defer rows.Release()
	header, err := pieceHeader(b, first, more)
	if err != nil {
		return err
	}
	return sendRecord(stream, rows, func(m *flightdata.Outgoing) []byte { return setChecksum(header, m.Checksum()) })
}

// rowsWithin is how many rows of rec from first on take at most limit bytes; one at least, of those there are.
func rowsWithin(rec arrow.RecordBatch, first, limit int64) int64 {
	left := rec.NumRows() - first
	if left <= 1 {
		return left
	}
	n := left
	for n > 1 {
		rows := rec.NewSlice(first, first+n)
		bytes := partition.DataBytes(rows)
		rows.Release()
		if bytes <= limit {
			break
		}
		n = max(1, min(n-1, n*limit/bytes))
	}
	return n
}

// sendRecord sends a record batch with metadata that may depend on its message.
func sendRecord(stream grpc.ServerStream, rec arrow.RecordBatch, metadata func(*flightdata.Outgoing) []byte) error {
	m, err := flightdata.NewRecord(rec, func() {})
	if err != nil {
		return err
	}
	m.AppMetadata = metadata(m)
	return send(stream, m)
}

// send sends a message. gRPC's own errors stay as they are.
func send(stream grpc.ServerStream, m *flightdata.Outgoing) error { return stream.SendMsg(m) }
