package local_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/millrace/millrace/cmd/millrace/local"
	"github.com/millrace/millrace/feed/client"
	"github.com/millrace/millrace/internal/rng"
	"github.com/millrace/millrace/internal/sleep"
	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/loader/dataset/datasettest"
	"github.com/millrace/millrace/loader/store"
	"github.com/millrace/millrace/loader/store/faultstore"
	"github.com/millrace/millrace/loader/store/memstore"
	"github.com/millrace/millrace/preprocess/dispatch"
)

// job is one way to feed a stream; what ranks see of it must not depend on the second part.
type job struct {
	// What decides the stream.
	samples, perShard               int
	partition, block, window, lanes int64
	shuffle, tail                   string
	seed                            uint64
	batch                           int64
	barrier                         bool

	// What must not.
	world, accumulation, workers int
	prefetch                     int64
	delays                       uint64 // seed of random delays in store, workers, sidecar and trainers; 0: none
	budget                       int64
}

// row is one row that a rank got.
type row struct {
	Sample int64
	Key    string
	Bytes  uint64 // hash of its columns
	Valid  bool
}

// batch is one batch of one rank.
type batch struct {
	Epoch, Step uint64
	Part        uint32
	Last        bool
	Rows        []row
}

// source is a dataset in memory that every run of a test reads.
type source struct {
	store   *memstore.Store
	cache   *dataset.Cache
	samples int
}

func newSource(t *testing.T, samples, perShard int) *source {
	t.Helper()
	s := &source{store: memstore.New(), samples: samples}
	all := datasettest.Samples(samples)
	for i, at := 0, 0; at < samples; i, at = i+1, at+perShard {
		s.store.Put(fmt.Sprintf("train-%06d.tar", i), datasettest.Tar(t, all[at:min(samples, at+perShard)]...))
	}
	var err error
	if s.cache, err = dataset.NewCache(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	return s
}

// recipe reads every field of a sample, so that a mixed-up byte shows.
func (j job) recipe() string {
	last := (j.samples + j.perShard - 1) / j.perShard
	barrier := ""
	if j.barrier {
		barrier = ", barrier: true"
	}
	return fmt.Sprintf(`
source: mem://data/train-{000000..%06d}.tar
fields: {image: bin, label: cls, text: txt}
operators:
  - label: {field: label}
  - rename: {from: text, to: caption%s}
output: {image: {}, label: {dtype: int64}, caption: {}}
partition: {samples: %d, block_samples: %d, window_blocks: %d, lanes: %d, target_bytes: 4096}
`, last-1, barrier, j.partition, j.block, j.window, j.lanes)
}

// run is a running pipeline.
type run struct {
	t    testing.TB
	ctx  context.Context //nolint:containedctx // The patience of one run.
	job  job
	l    *local.Local
	stop func()
	conn *clientConn
}

// start runs dispatcher, workers and sidecar over the source.
func start(tb testing.TB, src *source, j job) *run {
	tb.Helper()
	ctx, cancel := context.WithCancel(tb.Context())
	var opened sync.Mutex
	resolver := store.NewResolver(map[string]store.OpenFunc{"mem": func(context.Context, string) (store.Bucket, error) {
		opened.Lock()
		defer opened.Unlock()
		if j.delays == 0 {
			return src.store, nil
		}
		return faultstore.New(src.store, j.delays, sleep.For,
			faultstore.Rule{Op: faultstore.ReadRange, Probability: 0.3, Effect: faultstore.Effect{Delay: 70 * time.Millisecond}},
			faultstore.Rule{Op: faultstore.ReadRange, Probability: 0.5, Effect: faultstore.Effect{Delay: 3 * time.Millisecond}},
		), nil
	}})
	slow := slowness{seed: j.delays}
	l, err := local.New(local.Config{
		Control: slow.control(), Way: slow.way,
		Name: "test", Workers: j.workers, Slots: map[string]int{"cpu": 2}, WorkerBytes: j.budget, FeedBytes: 64 << 20, Streams: 2,
		Dispatch: dispatch.Config{Version: "test", Resolver: resolver, Cache: src.cache, Logger: slog.New(slog.DiscardHandler)},
	})
	if err != nil {
		tb.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	conn, err := l.Dial(client.DialOptions()...)
	if err != nil {
		tb.Fatal(err)
	}
	patience, hurry := context.WithTimeout(ctx, 10*time.Minute) // of a clock that only moves while all wait
	return &run{t: tb, ctx: patience, job: j, l: l, conn: conn, stop: func() {
		hurry()
		_ = conn.Close()
		cancel()
		if err := <-done; err != nil {
			tb.Errorf("pipeline ended with %v", err)
		}
		if err := resolver.Close(); err != nil {
			tb.Errorf("closing the store: %v", err)
		}
	}}
}

// open opens the job for a rank.
func (r *run) open(rank int, cursor string) (*client.Session, error) {
	j := r.job
	return client.Open(r.ctx, r.conn, client.OpenRequest{
		Job: "train", Recipe: j.recipe(), Rank: rank, WorldSize: j.world, Cursor: cursor,
		Settings: client.Settings{
			Seed: j.seed, Shuffle: j.shuffle, GlobalBatch: j.batch, Accumulation: int64(j.accumulation), Tail: j.tail, OnError: "raise", Prefetch: j.prefetch,
		},
	})
}

// read has all ranks read from a cursor on until `epochs` is reached, or `limit` global batches are taken (0: no limit).
// It gives what each rank saw, and the cursor after the last whole global batch.
func (r *run) read(cursor string, epochs uint64, limit int) (seen [][]batch, state string) {
	r.t.Helper()
	seen, states := make([][]batch, r.job.world), make([]string, r.job.world)
	var ranks sync.WaitGroup
	for rank := range r.job.world {
		ranks.Go(func() {
			var err error
			seen[rank], states[rank], err = r.readRank(rank, cursor, epochs, limit)
			if err != nil {
				r.t.Errorf("rank %d: %v\n%v", rank, err, r.l.Dispatcher().Status())
			}
		})
	}
	ranks.Wait()
	for rank, s := range states {
		if s != states[0] {
			r.t.Errorf("state of rank %d is %s, that of rank 0 is %s", rank, s, states[0])
		}
	}
	return seen, states[0]
}

// errEnough stops a stream when a rank has what it wants.
var errEnough = errors.New("enough")

func (r *run) readRank(rank int, cursor string, epochs uint64, limit int) (seen []batch, state string, err error) {
	s, err := r.open(rank, cursor)
	if err != nil {
		return nil, "", err
	}
	defer func() {
		if closeErr := s.Close(context.WithoutCancel(r.t.Context())); err == nil {
			err = closeErr
		}
	}()
	at, state, steps := s.Info.Start, cursor, 0
	for at.Epoch < epochs {
		err := s.Read(r.ctx, at, func(b client.Batch) error {
			r.dawdle(rank, b.Meta)
			seen = append(seen, readBatch(r.t, b))
			if !b.Meta.LastPart {
				return nil
			}
			at, state = b.Meta.Next(), b.Meta.Cursor
			if steps++; steps == limit {
				return errEnough
			}
			return nil
		})
		if errors.Is(err, errEnough) {
			return seen, state, nil
		}
		if err != nil {
			return seen, state, err
		}
	}
	return seen, state, nil
}

// dawdle makes ranks slow at random, if delays are asked for.
func (r *run) dawdle(rank int, m client.Meta) {
	if r.job.delays == 0 {
		return
	}
	draw := rng.Key{Seed: r.job.delays, Epoch: m.Epoch, Sample: m.Step, Op: uint32(rank)}.Source()
	if draw.Bool(0.3) {
		_ = sleep.For(r.t.Context(), time.Duration(draw.IntN(50))*time.Millisecond)
	}
}

func readBatch(tb testing.TB, b client.Batch) batch {
	tb.Helper()
	out := batch{Epoch: b.Meta.Epoch, Step: b.Meta.Step, Part: b.Meta.Part, Last: b.Meta.Last}
	schema, rec := b.Record.Schema(), b.Record
	column := func(name string) any {
		i := schema.FieldIndices(name)
		if len(i) != 1 {
			tb.Fatalf("batch has %d columns %s", len(i), name)
		}
		return rec.Column(i[0])
	}
	images, _ := column("image").(*array.Binary)
	labels, _ := column("label").(*array.Int64)
	captions, _ := column("caption").(*array.Binary)
	keys, _ := column("__key__").(*array.String)
	samples, _ := column("__sample__").(*array.Int64)
	valid, _ := column("__valid__").(*array.Boolean)
	if images == nil || labels == nil || captions == nil || keys == nil || samples == nil || valid == nil {
		tb.Fatalf("a column has another type in %s", schema)
	}
	for i := range int(rec.NumRows()) {
		h := fnv.New64a()
		_, _ = h.Write(images.Value(i))
		_, _ = h.Write([]byte(strconv.FormatInt(labels.Value(i), 10)))
		_, _ = h.Write(captions.Value(i))
		out.Rows = append(out.Rows, row{Sample: samples.Value(i), Key: keys.Value(i), Bytes: h.Sum64(), Valid: valid.Value(i)})
	}
	return out
}
