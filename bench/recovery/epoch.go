package recovery

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/millrace/millrace/feed/client"
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/sleep"
	statusv1 "github.com/millrace/millrace/proto/millrace/status/v1"
)

// settle is how long after an epoch the workers' counts are read: they come with heartbeats.
const settle = 2500 * time.Millisecond

// row is a row that a rank got: its sample and a hash of its bytes.
type row struct {
	sample int64
	hash   uint64
}

// outcome is what the ranks saw in one epoch.
type outcome struct {
	rows    [world][]row
	longest time.Duration // wait for a batch, from the fault on; without a fault from the second batch on
	total   float64       // from the first batch to the last
	made    int64         // samples, by all workers
	failed  string
}

func rounded(v float64) float64 { return math.Round(v*1000) / 1000 }

// runEpoch starts everything, reads an epoch of so many samples and stops everything. pace is the rate of the consumer,
// samples a second of both ranks together; 0: as fast as they come.
func runEpoch(ctx context.Context, samples int64, pace float64, s scenario, o Options) (*outcome, error) {
	dir, err := os.MkdirTemp("", "millrace-bench-")
	if err != nil {
		return nil, fmt.Errorf("making a directory for sockets: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	source := filepath.Join(dir, "samples.tar")
	if err := writeSamples(source, samples); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration((10*o.Seconds+60)*float64(time.Second)))
	defer cancel()
	c, err := startCluster(ctx, dir, o)
	defer c.stop()
	if err != nil {
		return nil, err
	}
	count := newCounter(c)
	stopCount := count.begin(ctx)
	defer stopCount()
	e := &epoch{cluster: c, scenario: s, samples: samples, pace: pace, recipe: recipeOf(source), mend: func() {}}
	out, err := e.read(ctx)
	e.mend()
	if err != nil {
		return nil, err
	}
	if err := sleep.For(ctx, settle); err != nil {
		return nil, err
	}
	out.made = count.total()
	return out, nil
}

func recipeOf(source string) string {
	return fmt.Sprintf("source: %s\nfields: {data: bin}\npartition: {samples: %d}\noperators:\n  - virtual_sleep: {seconds: %v}\n  - virtual_emit: {field: frame, rows: 1, bytes: %d}\n",
		source, partitionSamples, sampleSeconds, rowBytes)
}

// epoch is an epoch that is being read.
type epoch struct {
	cluster  *cluster
	scenario scenario
	samples  int64
	pace     float64
	recipe   string

	taken  atomic.Int64 // rows of all ranks
	struck atomic.Int64 // time of the fault, nanoseconds since 1970; 0: not yet
	once   sync.Once
	mend   func()
	failed error // of the fault
}

func (e *epoch) read(ctx context.Context) (*outcome, error) {
	out := &outcome{}
	var ranks sync.WaitGroup
	var waits [world]time.Duration
	var first, last [world]time.Time
	var errs [world]error
	seed := fixedSeed()
	for rank := range world {
		ranks.Go(func() {
			errs[rank] = e.rank(ctx, rank, func(b client.Batch, wait time.Duration) {
				now := time.Now()
				if first[rank].IsZero() {
					first[rank] = now
				} else if at := e.struck.Load(); e.scenario.fault == nil || at != 0 && now.UnixNano() >= at {
					waits[rank] = max(waits[rank], wait)
				}
				last[rank] = now
				out.rows[rank] = appendRows(out.rows[rank], b, seed)
			})
		})
	}
	ranks.Wait()
	if err := errors.Join(e.failed, ctx.Err()); err != nil {
		return nil, err
	}
	begin, end := first[0], last[0]
	for rank := range world {
		if errs[rank] != nil {
			out.failed = errs[rank].Error()
		}
		out.longest = max(out.longest, waits[rank])
		if first[rank].Before(begin) {
			begin = first[rank]
		}
		if last[rank].After(end) {
			end = last[rank]
		}
	}
	out.total = end.Sub(begin).Seconds()
	return out, nil
}

// rank reads the batches of one rank. took hears of each, with the time for which the rank waited for it.
func (e *epoch) rank(ctx context.Context, rank int, took func(client.Batch, time.Duration)) error {
	conn, err := service.Dial(e.cluster.sidecarAddress, nil, client.DialOptions()...)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	s, err := client.Open(ctx, conn, client.OpenRequest{
		Job: "recovery", Recipe: e.recipe, Rank: rank, WorldSize: world,
		Settings: client.Settings{Seed: 1, Shuffle: "block", GlobalBatch: batchRows, Accumulation: 1, Tail: "pad", OnError: "raise", Prefetch: 2, Epochs: 1},
	})
	if err != nil {
		return fmt.Errorf("opening the job: %w", err)
	}
	asked := time.Now()
	due := time.Time{} // of the next batch, at the pace of the consumer
	err = s.Read(ctx, s.Info.Start, func(b client.Batch) error {
		took(b, time.Since(asked))
		if e.taken.Add(int64(b.Meta.ValidRows)) >= int64(faultAt*float64(e.samples)) {
			e.once.Do(func() { e.strike(ctx) })
		}
		if e.pace > 0 {
			if due.IsZero() {
				due = time.Now()
			}
			due = due.Add(time.Duration(float64(b.Meta.Rows) * world / e.pace * float64(time.Second)))
			if err := sleep.For(ctx, time.Until(due)); err != nil {
				return err
			}
		}
		asked = time.Now()
		return nil
	})
	return err
}

func (e *epoch) strike(ctx context.Context) {
	if e.scenario.fault == nil {
		return
	}
	e.struck.Store(time.Now().UnixNano())
	mend, err := e.scenario.fault(ctx, e.cluster)
	if err != nil {
		e.failed = err
		return
	}
	e.mend = mend
}

// fixedSeed is one seed for all epochs of the process, so that hashes can be compared.
var fixedSeed = sync.OnceValue(maphash.MakeSeed)

// appendRows adds the rows of a batch that are not padding.
func appendRows(rows []row, b client.Batch, seed maphash.Seed) []row {
	samples, frames := columnOf[*array.Int64](b.Record, "__sample__"), columnOf[*array.FixedSizeList](b.Record, "frame")
	valid := columnOf[*array.Boolean](b.Record, "__valid__")
	if samples == nil || frames == nil || valid == nil {
		return rows
	}
	values, _ := frames.ListValues().(*array.Uint8)
	for i := range int(b.Record.NumRows()) {
		if !valid.Value(i) || values == nil {
			continue
		}
		from, to := frames.ValueOffsets(i)
		rows = append(rows, row{sample: samples.Value(i), hash: maphash.Bytes(seed, values.Uint8Values()[from:to])})
	}
	return rows
}

func columnOf[T arrow.Array](rec arrow.RecordBatch, name string) (column T) {
	if at := rec.Schema().FieldIndices(name); len(at) == 1 {
		column, _ = rec.Column(at[0]).(T)
	}
	return column
}

// counter follows how many samples each worker has made, also of those that die.
type counter struct {
	address string
	mu      sync.Mutex
	made    map[string]int64
}

func newCounter(c *cluster) *counter {
	return &counter{address: c.dispatcherAddress, made: map[string]int64{}}
}

// begin asks the dispatcher again and again, until the function that it returns is called.
func (c *counter) begin(ctx context.Context) func() {
	ctx, cancel := context.WithCancel(ctx)
	var asking sync.WaitGroup
	asking.Go(func() {
		conn, err := service.Dial(c.address, nil)
		if err != nil {
			return // the ranks tell
		}
		defer func() { _ = conn.Close() }()
		status := statusv1.NewStatusServiceClient(conn)
		for {
			if s, err := status.GetStatus(ctx, &statusv1.GetStatusRequest{}); err == nil {
				c.mu.Lock()
				for _, w := range s.GetWorkers() {
					c.made[w.GetName()] = max(c.made[w.GetName()], w.GetSamples())
				}
				c.mu.Unlock()
			}
			if sleep.For(ctx, 200*time.Millisecond) != nil {
				return
			}
		}
	})
	return func() { cancel(); asking.Wait() }
}

func (c *counter) total() (n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, made := range c.made {
		n += made
	}
	return n
}

// writeSamples writes an archive of samples of one byte.
func writeSamples(path string, n int64) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("making samples: %w", err)
	}
	defer func() { _ = f.Close() }()
	t := tar.NewWriter(f)
	for i := range n {
		err = errors.Join(err, t.WriteHeader(&tar.Header{Name: fmt.Sprintf("%06d.bin", i), Size: 1, Mode: 0o600, Format: tar.FormatUSTAR}))
		_, e := t.Write([]byte{byte(i)})
		err = errors.Join(err, e)
	}
	if err = errors.Join(err, t.Close(), f.Close()); err != nil {
		return errkind.With(errkind.Unavailable, fmt.Errorf("making samples: %w", err))
	}
	return nil
}
