package kernels

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/op"
)

// bench is a scenario made ready.
type bench struct {
	Scenario
	id            string
	with, without *chain
	// twin is with once more, for a second core.
	twin      *chain
	meanBytes int
}

// chain is operators on a batch, run again and again into one buffer; each pass has another epoch, and so other draws.
type chain struct {
	op     op.Operator
	batch  *op.Batch
	env    *op.Env
	passes int
	buffer []byte
	// last is the tensor that the last pass made.
	last []byte
	keep func(*op.Batch) error
}

const field = "image"

// newChain fuses steps and the layout of a batch into one operator.
func newChain(steps []step, batch *op.Batch, passes int) (*chain, error) {
	ops, err := build(append(steps, step{"to_tensor", map[string]any{"dtype": "uint8"}}))
	if err != nil {
		return nil, err
	}
	fused := op.Fuse(ops)
	if len(fused) != 1 {
		return nil, errkind.Errorf(errkind.Internal, "%d operators are left where one was to be", len(fused))
	}
	c := &chain{op: fused[0], batch: batch, passes: passes, buffer: make([]byte, batch.NumRows*3*size*size)}
	c.env = &op.Env{Alloc: func(n int) []byte { return c.buffer[:n] }}
	c.keep = func(b *op.Batch) error {
		c.last = b.Columns[0].Tensor
		return nil
	}
	return c, nil
}

func build(steps []step) ([]op.Operator, error) {
	ops := make([]op.Operator, len(steps))
	for i, s := range steps {
		params := map[string]any{"field": field}
		maps.Copy(params, s.Params)
		var err error
		if ops[i], err = op.Build(s.Name, i, params); err != nil {
			return nil, err
		}
	}
	return ops, nil
}

// pass runs the operators on all images.
func (c *chain) pass(ctx context.Context, epoch int) error {
	c.env.Epoch = uint64(epoch) //nolint:gosec // It is small and not negative.
	return c.op.Apply(ctx, c.env, c.batch, c.keep)
}

// all runs every pass.
func (c *chain) all(ctx context.Context) error {
	for epoch := range c.passes {
		if err := c.pass(ctx, epoch); err != nil {
			return err
		}
	}
	return nil
}

// images is how many images all makes.
func (c *chain) images() float64 { return float64(c.passes * c.batch.NumRows) }

// timed is the processor time of this process for an image, in µs, while one goroutine makes all on a core.
func (c *chain) timed(ctx context.Context, cpu int) (float64, error) {
	var spent time.Duration
	err := onCPU(cpu, func() error {
		began, err := processTime()
		if err != nil {
			return err
		}
		if err := c.all(ctx); err != nil {
			return err
		}
		ended, err := processTime()
		spent = ended - began
		return err
	})
	return micros(spent) / c.images(), err
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// spent is the time for an image, in µs: by the clock, and of the processor.
type spent struct{ wall, cpu float64 }

// spend has each chain run on a core of its own, at the same time.
func spend(ctx context.Context, cpus []int, chains []*chain) (spent, error) {
	errs := make([]error, len(chains))
	images := 0.0
	before, err := processTime()
	if err != nil {
		return spent{}, err
	}
	began := time.Now()
	var group sync.WaitGroup
	for i, c := range chains {
		images += c.images()
		group.Go(func() { errs[i] = onCPU(cpus[i], func() error { return c.all(ctx) }) })
	}
	group.Wait()
	wall := time.Since(began)
	after, err := processTime()
	if err := errors.Join(errors.Join(errs...), err); err != nil {
		return spent{}, err
	}
	return spent{micros(wall) / images, micros(after-before) / images}, nil
}

// allocations is how many objects one more image in a batch takes from the heap: what a batch takes whatever its size
// is left out.
func (c *chain) allocations(ctx context.Context) (float64, error) {
	all := c.batch
	defer func() { c.batch = all }()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	if all.NumRows < 2 {
		return 0, errkind.Errorf(errkind.Invalid, "counting what an image allocates needs 2 at least")
	}
	counts := [2]uint64{}
	for i, rows := range []int{all.NumRows, all.NumRows / 2} {
		c.batch = firstRows(all, rows)
		var err error
		if counts[i], err = c.mallocs(ctx); err != nil {
			return 0, err
		}
	}
	return rounded((float64(counts[0]) - float64(counts[1])) / float64(all.NumRows-all.NumRows/2)), nil
}

// mallocs is how many objects a pass allocates: the least of some, for the runtime allocates too, now and then.
func (c *chain) mallocs(ctx context.Context) (uint64, error) {
	least := uint64(math.MaxUint64)
	for range 4 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if err := c.pass(ctx, 0); err != nil {
			return 0, err
		}
		runtime.ReadMemStats(&after)
		least = min(least, after.Mallocs-before.Mallocs)
	}
	return least, nil
}

// firstRows is the beginning of a batch of one column.
func firstRows(b *op.Batch, n int) *op.Batch {
	c := b.Columns[0]
	if c.Kind == op.KindBytes {
		c.Bytes = c.Bytes[:n]
	} else {
		c.Tensor = c.Tensor[:n*c.RowBytes()]
	}
	return &op.Batch{NumRows: n, Samples: b.Samples[:n], Keys: b.Keys[:n], Columns: []op.Column{c}}
}

// drawn is what each pass draws for each image: parameters in torchvision's terms, in the order of the steps.
func (c *chain) drawn(ctx context.Context) ([][][]json.RawMessage, error) {
	draws := make([][][]json.RawMessage, c.passes)
	defer func() { c.env.Drawn = nil }()
	for epoch := range draws {
		rows := make([][]json.RawMessage, c.batch.NumRows)
		c.env.Drawn = func(row int, _, values string) { rows[row] = append(rows[row], json.RawMessage(values)) }
		if err := c.pass(ctx, epoch); err != nil {
			return nil, err
		}
		draws[epoch] = rows
	}
	return draws, nil
}

// prepare loads the files of a scenario and tells the peer about them.
func (r *Runner) prepare(ctx context.Context, s Scenario) (*bench, error) {
	files := r.files[s.set]
	files = files[:max(min(len(files), 2), len(files)/max(1, s.share))]
	b := &bench{Scenario: s, id: s.Name}
	batch := &op.Batch{NumRows: len(files), Columns: []op.Column{{Field: op.Field{Name: field, Kind: op.KindBytes}}}}
	for i, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("reading an image: %w", err)
		}
		b.meanBytes += len(data)
		batch.Columns[0].Bytes = append(batch.Columns[0].Bytes, data)
		batch.Samples, batch.Keys = append(batch.Samples, uint64(i)), append(batch.Keys, name)
	}
	b.meanBytes /= len(files)
	first := []step{{"decode_image", map[string]any{"exif": "ignore"}}}
	if s.decode != "" {
		first[0].Params["decode"] = s.decode
	}
	var err error
	if s.ready {
		// The files have that size already; the crop says so to the operators that follow.
		first = append(first, step{"center_crop", map[string]any{"size": size}})
		if batch, err = decoded(ctx, first, batch); err != nil {
			return nil, err
		}
		first = nil
		if b.without, err = newChain(nil, batch, r.o.Passes); err != nil {
			return nil, err
		}
	}
	for _, to := range []**chain{&b.with, &b.twin} {
		if *to, err = newChain(append(first, s.steps...), batch, r.o.Passes); err != nil {
			return nil, err
		}
	}
	draws, err := b.with.drawn(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range r.peers {
		if err := p.prepare(b.id, files, s, draws); err != nil {
			return nil, err
		}
	}
	// Nobody's first pass is timed.
	return b, b.twin.all(ctx)
}

// decoded is a batch of files as a batch of pixels.
func decoded(ctx context.Context, steps []step, batch *op.Batch) (*op.Batch, error) {
	ops, err := build(steps)
	if err != nil {
		return nil, err
	}
	var out *op.Batch
	err = op.Fuse(ops)[0].Apply(ctx, &op.Env{}, batch, func(b *op.Batch) error {
		out = b
		return nil
	})
	return out, err
}
