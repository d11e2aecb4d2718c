package local_test

import (
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/feed/client"
	"github.com/millrace/millrace/internal/sleep"
	"github.com/millrace/millrace/loader/dataset/datasettest"
	"github.com/millrace/millrace/loader/order"
)

type clientConn = grpc.ClientConn

// want is what rank gets of epochs [0, epochs), from the order alone: the reference that no run has touched.
func (j job) want(tb testing.TB, rank int, epochs uint64) []batch {
	tb.Helper()
	shuffle, err := order.ParseShuffle(j.shuffle)
	if err != nil {
		tb.Fatal(err)
	}
	tail, err := order.ParseTail(j.tail)
	if err != nil {
		tb.Fatal(err)
	}
	layout, err := order.Plan(order.Sizing{
		Shuffle: shuffle, NumSamples: int64(j.samples), TotalBytes: 1, PartitionSamples: j.partition,
		BlockSamples: j.block, WindowBlocks: j.window, Lanes: j.lanes,
	})
	if err != nil {
		tb.Fatal(err)
	}
	all := datasettest.Samples(j.samples)
	dealt := order.Batching{GlobalBatch: j.batch, Tail: tail}
	var out []batch
	for e := range epochs {
		epoch := layout.Epoch(j.seed, e)
		steps := dealt.NumSteps(int64(j.samples))
		for step := range steps {
			// A part of a global batch is dealt like a rank: all ranks of part 0, then all of part 1.
			for part := range j.accumulation {
				b := batch{Epoch: e, Step: uint64(step), Part: uint32(part), Last: step == steps-1 && part == j.accumulation-1}
				for _, s := range dealt.RankRows(int64(j.samples), step, part*j.world+rank, j.world*j.accumulation) {
					for i := range s.NumRows {
						ordinal := epoch.Sample(s.First + i)
						b.Rows = append(b.Rows, wantRow(j, all, ordinal, s.Valid))
					}
				}
				out = append(out, b)
			}
		}
	}
	return out
}

func wantRow(j job, all []datasettest.Sample, ordinal int64, valid bool) row {
	s := all[ordinal]
	h := fnv.New64a()
	_, _ = h.Write(s.Members[0].Data)
	_, _ = h.Write([]byte(strconv.FormatInt(ordinal%10, 10)))
	_, _ = h.Write(s.Members[2].Data)
	key := fmt.Sprintf("train-%06d.tar!%s", ordinal/int64(j.perShard), s.Key)
	return row{Sample: ordinal, Key: key, Bytes: h.Sum64(), Valid: valid}
}

// drawJob draws a job of which all sizes go together.
func drawJob(t *rapid.T) job {
	j := job{
		samples:   rapid.IntRange(1, 90).Draw(t, "samples"),
		perShard:  rapid.IntRange(1, 40).Draw(t, "per shard"),
		partition: rapid.Int64Range(1, 6).Draw(t, "partition"),
		window:    rapid.Int64Range(2, 4).Draw(t, "window"),
		shuffle:   rapid.SampledFrom([]string{"none", "block", "full"}).Draw(t, "shuffle"),
		tail:      rapid.SampledFrom([]string{"pad", "drop", "short"}).Draw(t, "tail"),
		seed:      rapid.Uint64().Draw(t, "seed"),
		barrier:   rapid.Bool().Draw(t, "barrier"),
	}
	j.block = j.partition * rapid.Int64Range(1, 2).Draw(t, "partitions a block")
	j.lanes = 1
	if full := int64(j.samples) / (j.block * j.window); j.shuffle == "block" && full > 1 {
		j.lanes = rapid.Int64Range(1, min(4, full)).Draw(t, "lanes")
	}
	j.drawRest(t)
	j.batch = int64(j.world*j.accumulation) * rapid.Int64Range(1, 4).Draw(t, "rows a batch")
	if j.tail == "drop" && j.batch > int64(j.samples) {
		j.tail = "pad"
	}
	return j
}

// drawRest draws all that must not matter.
func (j *job) drawRest(t *rapid.T) {
	j.world = rapid.IntRange(1, 8).Draw(t, "world")
	j.accumulation = rapid.IntRange(1, 3).Draw(t, "accumulation")
	j.workers = rapid.IntRange(1, 5).Draw(t, "workers")
	j.prefetch = rapid.Int64Range(1, 4).Draw(t, "prefetch")
	j.delays = rapid.SampledFrom([]uint64{0, 1, 2, 3}).Draw(t, "delays")
	j.budget = rapid.SampledFrom([]int64{64 << 10, 32 << 20}).Draw(t, "budget")
}

// redealt is j with another world size and accumulation of the same batch, and all else that must not matter new.
func (j job) redealt(t *rapid.T) job {
	n := j
	n.drawRest(t)
	var worlds []int
	for w := 1; w <= 8; w++ {
		if j.batch%int64(w) == 0 {
			worlds = append(worlds, w)
		}
	}
	n.world, n.accumulation = rapid.SampledFrom(worlds).Draw(t, "new world"), 1
	return n
}

func TestEveryRankGetsItsRowsOfEveryStep(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		j := drawJob(rt)
		src := newSource(t, j.samples, j.perShard)
		synctest.Test(t, func(t *testing.T) {
			r := start(t, src, j)
			defer r.stop()
			seen, _ := r.read("", 2, 0)
			for rank := range j.world {
				if diff := cmp.Diff(j.want(t, rank, 2), seen[rank]); diff != "" {
					t.Fatalf("rank %d of %+v (-want +got):\n%s", rank, j, diff)
				}
			}
		})
		if t.Failed() {
			rt.FailNow()
		}
	})
}

// flatten joins what ranks saw into the stream of valid rows, in order, by step.
func flatten(seen [][]batch) map[[2]uint64][]row {
	steps := map[[2]uint64][]row{}
	parts := 0
	for _, b := range seen[0] {
		parts = max(parts, int(b.Part)+1)
	}
	for part := range parts {
		for _, rank := range seen {
			for _, b := range rank {
				if int(b.Part) != part {
					continue
				}
				key := [2]uint64{b.Epoch, b.Step}
				for _, x := range b.Rows {
					if x.Valid {
						steps[key] = append(steps[key], x)
					}
				}
			}
		}
	}
	return steps
}

func TestStoppingAtAnyStepAndResumingElsewhereContinuesTheStream(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		j := drawJob(rt)
		src := newSource(t, j.samples, j.perShard)
		const epochs = 3
		whole := map[[2]uint64][]row{}
		steps := 0
		for rank := range j.world {
			for key, rows := range flatten([][]batch{j.want(t, rank, epochs)}) {
				_ = rows
				whole[key] = nil
			}
		}
		steps = len(whole)
		all := make([][]batch, j.world)
		for rank := range j.world {
			all[rank] = j.want(t, rank, epochs)
		}
		whole = flatten(all)
		var legs []job
		var limits []int
		for left := steps; left > 0; {
			leg, limit := j, 0
			if len(legs) > 0 {
				leg = j.redealt(rt)
			}
			if len(legs) < 4 {
				limit = rapid.IntRange(1, left).Draw(rt, "stop after")
				left -= limit
			} else {
				left = 0
			}
			legs, limits = append(legs, leg), append(limits, limit)
		}
		synctest.Test(t, func(t *testing.T) {
			got, state := map[[2]uint64][]row{}, ""
			for i, leg := range legs {
				r := start(t, src, leg)
				seen, next := r.read(state, epochs, limits[i])
				r.stop()
				for key, rows := range flatten(seen) {
					got[key] = append(got[key], rows...)
				}
				state = next
			}
			if diff := cmp.Diff(whole, got); diff != "" {
				t.Fatalf("legs %+v, stops %v (-want +got):\n%s", legs, limits, diff)
			}
		})
		if t.Failed() {
			rt.FailNow()
		}
	})
}

// Stop at every single step of a small job, and go on in a new pipeline with another world size.
func TestStoppingAtEveryStepOfThreeEpochs(t *testing.T) {
	j := job{
		samples: 14, perShard: 5, partition: 2, block: 2, window: 2, lanes: 1, shuffle: "block", tail: "pad", seed: 7, batch: 4,
		world: 2, accumulation: 1, workers: 2, prefetch: 2, budget: 32 << 20,
	}
	src := newSource(t, j.samples, j.perShard)
	const epochs = 3
	whole := flatten([][]batch{j.want(t, 0, epochs), j.want(t, 1, epochs)})
	for stop := 1; stop <= len(whole); stop++ {
		synctest.Test(t, func(t *testing.T) {
			first := start(t, src, j)
			before, state := first.read("", epochs, stop)
			first.stop()
			other := j
			other.world, other.workers, other.prefetch = 4, 1, 1
			second := start(t, src, other)
			after, _ := second.read(state, epochs, 0)
			second.stop()
			got := flatten(before)
			for key, rows := range flatten(after) {
				if _, twice := got[key]; twice {
					t.Fatalf("stopped after %d steps: step %v was seen twice", stop, key)
				}
				got[key] = rows
			}
			if diff := cmp.Diff(whole, got); diff != "" {
				t.Fatalf("stopped after %d steps (-want +got):\n%s", stop, diff)
			}
		})
	}
}

// Jobs that once stood still, or were dealt wrongly.
func TestJobsThatOnceFailed(t *testing.T) {
	for name, j := range map[string]job{
		"global batch larger than a worker's budget": {
			samples: 63, perShard: 40, partition: 3, block: 6, window: 2, lanes: 3, shuffle: "block", tail: "pad", seed: 3, batch: 72,
			world: 3, accumulation: 1, workers: 1, prefetch: 3, delays: 3, budget: 64 << 10,
		},
		"rows that the tail drops": {
			samples: 65, perShard: 40, partition: 3, block: 6, window: 2, lanes: 1, shuffle: "block", tail: "drop", seed: 3, batch: 24,
			world: 3, accumulation: 1, workers: 1, prefetch: 3, delays: 3, budget: 64 << 10,
		},
	} {
		t.Run(name, func(t *testing.T) {
			src := newSource(t, j.samples, j.perShard)
			synctest.Test(t, func(t *testing.T) {
				r := start(t, src, j)
				defer r.stop()
				seen, _ := r.read("", 3, 0)
				for rank := range j.world {
					if diff := cmp.Diff(j.want(t, rank, 3), seen[rank]); diff != "" {
						t.Fatalf("rank %d (-want +got):\n%s", rank, diff)
					}
				}
			})
		})
	}
}

// Ranks that take nothing must not make workers hold more than their budgets, but for what the next batch needs.
func TestASlowTrainerDoesNotFillMemory(t *testing.T) {
	j := job{
		samples: 90, perShard: 40, partition: 3, block: 3, window: 2, lanes: 1, shuffle: "block", tail: "pad", seed: 3, batch: 6,
		world: 1, accumulation: 1, workers: 1, prefetch: 2, budget: 32 << 10,
	}
	src := newSource(t, j.samples, j.perShard)
	synctest.Test(t, func(t *testing.T) {
		r := start(t, src, j)
		defer r.stop()
		s, err := r.open(0, "")
		if err != nil {
			t.Fatal(err)
		}
		batches := 0
		err = s.Read(r.ctx, s.Info.Start, func(client.Batch) error {
			_ = sleep.For(r.ctx, 20*time.Second)
			held := r.l.Dispatcher().Status().GetWorkers()[0].GetHeldBytes()
			if largest := j.budget + 2*6*3100; held > largest || held == 0 {
				t.Errorf("after batch %d the worker holds %d bytes; at most %d are allowed", batches, held, largest)
			}
			if batches++; batches == 10 {
				return errEnough
			}
			return nil
		})
		if !errors.Is(err, errEnough) {
			t.Fatal(err)
		}
		if err := s.Close(r.ctx); err != nil {
			t.Error(err)
		}
	})
}
