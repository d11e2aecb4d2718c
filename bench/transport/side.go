package transport

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/errkind"
)

// Kinds and roles of a side's processes.
const (
	KindOurs   = "ours"
	KindStock  = "stock"
	KindFeed   = "feed"
	RoleServer = "server"
	RoleClient = "client"
)

// imageBytes is a row's image: 3x224x224.
const imageBytes = 3 * 224 * 224

// Side is one process of a side.
type Side struct {
	Kind, Role string
	// Network is tcp or unix, Dir where sockets lie, Address where the server is, for a client.
	Network, Dir, Address string
	// Rows of a batch.
	Rows int
	// TLS encrypts the connection, with a certificate in Dir.
	TLS bool
	// Flight keeps to Flight on our side, where workers and sidecars have a channel without HTTP/2.
	Flight bool
	// Hash says that our client takes the content hash of what arrives.
	Hash bool
}

// sideReady is the first line of a process.
type sideReady struct {
	Address string `json:"address"`
}

// counters are what a client has received.
type counters struct{ bytes, batches atomic.Int64 }

func (c *counters) add(rec arrow.RecordBatch) {
	c.batches.Add(1)
	c.bytes.Add(rec.NumRows() * (imageBytes + 8))
}

// Run runs the process until in ends.
func (s Side) Run(ctx context.Context, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var c counters
	run, ok := map[[2]string]func(context.Context, *counters) (string, func() error, error){
		{KindOurs, RoleServer}: s.serveOurs, {KindStock, RoleServer}: s.serveStock,
		{KindOurs, RoleClient}: s.readOurs, {KindStock, RoleClient}: s.readStock, {KindFeed, RoleServer}: s.feed,
	}[[2]string{s.Kind, s.Role}]
	if !ok || s.Rows < 1 {
		return errkind.Errorf(errkind.Invalid, "%s %s is no side of this benchmark", s.Kind, s.Role)
	}
	address, wait, err := run(ctx, &c)
	if err != nil {
		return err
	}
	w := json.NewEncoder(out)
	if err := w.Encode(sideReady{Address: address}); err != nil {
		return fmt.Errorf("saying where the side is: %w", err)
	}
	began := time.Now()
	for lines := bufio.NewScanner(in); lines.Scan(); {
		u, err := usedNow()
		if err != nil {
			return err
		}
		u.Time, u.Bytes, u.Batches = time.Since(began), c.bytes.Load(), c.batches.Load()
		if err := w.Encode(u); err != nil {
			return fmt.Errorf("saying what was used: %w", err)
		}
	}
	cancel()
	return wait()
}

func usedNow() (used, error) {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		return used{}, fmt.Errorf("reading this process's own time: %w", os.NewSyscallError("getrusage", err))
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return used{CPU: time.Duration(r.Utime.Nano() + r.Stime.Nano()), Alloc: m.TotalAlloc}, nil
}

// newBatch makes a batch of rows images with labels. Images are one run of bytes each, the type for which the stock
// writer is at its best.
func newBatch(alloc memory.Allocator, rows int) arrow.RecordBatch {
	schema := arrow.NewSchema([]arrow.Field{
		{Name: "image", Type: &arrow.FixedSizeBinaryType{ByteWidth: imageBytes}}, {Name: "label", Type: arrow.PrimitiveTypes.Int64},
	}, nil)
	images := memory.NewResizableBuffer(alloc)
	defer images.Release()
	images.Resize(rows * imageBytes)
	for i := range images.Bytes() {
		images.Bytes()[i] = byte(i * 31 & 0xff)
	}
	labels := array.NewInt64Builder(alloc)
	defer labels.Release()
	for i := range rows {
		labels.Append(int64(i))
	}
	label := labels.NewArray()
	defer label.Release()
	data := array.NewData(schema.Field(0).Type, rows, []*memory.Buffer{nil, images}, nil, 0, 0)
	defer data.Release()
	image := array.MakeFromData(data)
	defer image.Release()
	return array.NewRecordBatch(schema, []arrow.Array{image, label}, int64(rows))
}
