package transport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"

	"github.com/apache/arrow-go/v18/arrow"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/millrace/millrace/feed"
	"github.com/millrace/millrace/feed/feedtest"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/preprocess/partition"
)

const (
	// virtualAddress is where the virtual workers are: in the sidecar's own process, as with `millrace local`.
	virtualAddress = "local:virtual"
	// feedBudget is the memory of a sidecar that is measured.
	feedBudget = 4 << 30
	// endlessSteps is the batches of an epoch that no window comes to the end of.
	endlessSteps = 1 << 24
	// sealedAhead is how many batches are placed and sealed beyond those consumed.
	sealedAhead = 64
)

// virtualData is a data set of images whose partitions are ready: quarters of a batch, so that one is put together of several.
func virtualData(rows, steps int) feedtest.Data {
	return feedtest.Data{
		NumRows: int64(rows) * int64(steps), PartitionRows: int64(max(1, rows/4)), TensorBytes: imageBytes, Plain: true,
	}
}

// virtualWorkers have every partition ready, all with the same rows.
type virtualWorkers struct{ rec arrow.RecordBatch }

// Fetch hands the rows out by reference.
func (w virtualWorkers) Fetch(ctx context.Context, t partition.Ticket, fn func(i int, rec arrow.RecordBatch) error) error {
	for i, s := range t.Slices {
		if err := ctx.Err(); err != nil {
			return err
		}
		rec := w.rec.NewSlice(s.First, s.First+s.Rows)
		err := fn(i, rec)
		rec.Release()
		if err != nil {
			return err
		}
	}
	return nil
}

// feed is a sidecar with virtual workers beside it.
func (s Side) feed(ctx context.Context, _ *counters) (string, func() error, error) {
	conn, err := grpc.NewClient("unix://"+filepath.Join(s.Dir, "dispatcher.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return "", nil, fmt.Errorf("connecting to the dispatcher: %w", err)
	}
	if err := partition.RegisterTensorType(); err != nil {
		return "", nil, err
	}
	rec, err := virtualData(s.Rows, 1).Record(0, 0)
	if err != nil {
		return "", nil, err
	}
	address := "unix://" + filepath.Join(s.Dir, "feed.sock")
	l, err := service.Listen(ctx, address)
	if err != nil {
		return "", nil, err
	}
	sidecar, err := feed.New(feed.Config{
		Name: "bench", Dispatcher: conn, Listeners: []net.Listener{l}, BudgetBytes: feedBudget,
		Local: map[string]partition.Fetcher{virtualAddress: virtualWorkers{rec}}, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return "", nil, errors.Join(err, l.Close())
	}
	done := make(chan error, 1)
	go func() { done <- sidecar.Run(ctx) }()
	return address, func() error {
		err := <-done
		rec.Release()
		return errors.Join(err, conn.Close())
	}, nil
}
