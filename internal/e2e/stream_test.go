package e2e

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"google.golang.org/grpc"

	"github.com/millrace/millrace/feed/client"
	"github.com/millrace/millrace/internal/service"
)

// dial connects to a role.
func dial(t *testing.T, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := service.Dial(address, nil, client.DialOptions()...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// ask is a request to join a job for a rank, as the drain command makes it.
func ask(t *testing.T, recipe, job string, rank, world int, batch int64) client.OpenRequest {
	t.Helper()
	return client.OpenRequest{
		Job: job, Recipe: readFile(t, recipe), Rank: rank, WorldSize: world,
		Settings: client.Settings{Seed: 7, Shuffle: "block", GlobalBatch: batch, Accumulation: 1, Tail: "pad", OnError: "raise", Prefetch: 2},
	}
}

func open(t *testing.T, conn grpc.ClientConnInterface, req client.OpenRequest) *client.Session {
	t.Helper()
	s, err := client.Open(t.Context(), conn, req)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// row is one row that a rank got: the sample and a hash of its columns.
type row struct {
	Sample int64
	Key    string
	Bytes  [sha256.Size]byte
	Valid  bool
}

// rowsOf reads the rows of a batch.
func rowsOf(t *testing.T, rec arrow.RecordBatch) []row {
	t.Helper()
	column := func(name string) arrow.Array {
		at := rec.Schema().FieldIndices(name)
		if len(at) != 1 {
			t.Errorf("a batch has %d columns %s", len(at), name)
			return nil
		}
		return rec.Column(at[0])
	}
	// A client that does not know the tensor type sees its storage.
	var images *array.FixedSizeList
	pictures := rec.Schema().HasField("image") // A set of numbers has none.
	if pictures {
		images, _ = column("image").(*array.FixedSizeList)
	}
	labels, _ := column("label").(*array.Int64)
	keys, _ := column("__key__").(*array.String)
	samples, _ := column("__sample__").(*array.Int64)
	valid, _ := column("__valid__").(*array.Boolean)
	if pictures && images == nil || labels == nil || keys == nil || samples == nil || valid == nil {
		t.Errorf("a column has another type in %s", rec.Schema())
		return nil
	}
	out := make([]row, rec.NumRows())
	for i := range out {
		h := sha256.New()
		if pictures {
			from, to := images.ValueOffsets(i)
			values, _ := images.ListValues().(*array.Uint8)
			_, _ = h.Write(values.Uint8Values()[from:to])
		}
		_, _ = fmt.Fprint(h, labels.Value(i))
		out[i] = row{Sample: samples.Value(i), Key: keys.Value(i), Valid: valid.Value(i)}
		h.Sum(out[i].Bytes[:0])
	}
	return out
}

// read reads an epoch of a session: the rows of each batch.
func read(t *testing.T, s *client.Session, epoch uint64) [][]row {
	t.Helper()
	return readWith(t, s, epoch, func(int) {})
}

// readWith calls taken with the number of each batch while it is not yet consumed.
func readWith(t *testing.T, s *client.Session, epoch uint64, taken func(int)) [][]row {
	t.Helper()
	var out [][]row
	at := s.Info.Start
	if epoch > at.Epoch {
		at = client.Position{Epoch: epoch}
	}
	err := s.Read(t.Context(), at, func(b client.Batch) error {
		if b.Meta.Epoch != epoch || b.Meta.Step != uint64(len(out)) {
			return fmt.Errorf("step %d of epoch %d came in place of step %d of epoch %d", b.Meta.Step, b.Meta.Epoch, len(out), epoch)
		}
		taken(len(out))
		out = append(out, rowsOf(t, b.Record))
		return nil
	})
	if err != nil {
		t.Errorf("epoch %d of session %s: %v", epoch, s.Info.Session, err)
	}
	return out
}

// stock is what a Flight client that knows nothing of Millrace reads from a stream of record batches.
func stock(t *testing.T, reader array.RecordReader) (out [][]row) {
	t.Helper()
	defer reader.Release()
	for reader.Next() {
		out = append(out, rowsOf(t, reader.RecordBatch()))
	}
	if err := reader.Err(); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	return out
}

// everySampleOnce checks an epoch as ranks saw it: ranks hold the same number of batches, and their valid rows are every
// sample once.
func everySampleOnce(t *testing.T, ranks [][][]row, samples int) {
	t.Helper()
	seen := map[int64]int{}
	for rank, batches := range ranks {
		if len(batches) != len(ranks[0]) {
			t.Errorf("rank %d got %d batches, rank 0 %d", rank, len(batches), len(ranks[0]))
		}
		for _, b := range batches {
			for _, r := range b {
				if r.Valid {
					seen[r.Sample]++
				}
			}
		}
	}
	for n := range int64(samples) {
		if seen[n] != 1 {
			t.Errorf("sample %d came %d times", n, seen[n])
		}
	}
	if len(seen) != samples {
		t.Errorf("%d different samples came, there are %d", len(seen), samples)
	}
}

// global is the global batches that ranks got together.
func global(ranks [][][]row) [][]row {
	var out [][]row
	for step := range ranks[0] {
		var batch []row
		for _, batches := range ranks {
			if step < len(batches) {
				batch = append(batch, batches[step]...)
			}
		}
		out = append(out, batch)
	}
	return out
}
