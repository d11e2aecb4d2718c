package run_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/exec"
	"github.com/millrace/millrace/preprocess/exec/run"
	"github.com/millrace/millrace/preprocess/lineage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a plan of stages whose outputs are a function of ids, a node that holds them and a listener.
type fake struct {
	stages  int
	fan     func(lineage.ID) int                         // outputs of an input
	took    func(stage int, id lineage.ID) time.Duration // for each output
	failing map[lineage.ID]error
	panics  map[lineage.ID]bool
	asks    bool // for room before each output is made

	mu      sync.Mutex
	held    map[lineage.ID]bool // between stages
	final   map[lineage.ID]int
	running int
	most    int
	done    map[lineage.ID]int
	failed  map[lineage.ID]error
	tell    chan struct{}
}

func newFake(stages int) *fake {
	return &fake{
		stages: stages,
		fan:    func(id lineage.ID) int { return 1 + int(id.Source+uint64(id.Depth))%3 },
		took:   func(int, lineage.ID) time.Duration { return time.Millisecond },
		held:   map[lineage.ID]bool{}, final: map[lineage.ID]int{}, done: map[lineage.ID]int{}, failed: map[lineage.ID]error{},
		tell: make(chan struct{}, 1),
	}
}

const outputBytes = 100

func (f *fake) config() exec.Config {
	var c exec.Config
	for s := range f.stages {
		c.Stages = append(c.Stages, exec.StageSpec{Name: fmt.Sprint("s", s), Resources: map[string]int{"cpu": 1}, MaxOutputBytes: outputBytes})
	}
	return c
}

func (f *fake) Run(ctx context.Context, t run.Task, emit func(run.Output) error) (int, error) {
	f.mu.Lock()
	f.running++
	f.most = max(f.most, f.running)
	if t.Stage > 0 && !f.held[t.Input] {
		f.mu.Unlock()
		return 0, fmt.Errorf("input %s is not held", t.Input)
	}
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.running--
		f.mu.Unlock()
	}()
	if f.panics[t.Input] {
		panic("no such luck")
	}
	n := f.fan(t.Input)
	for k := range n {
		if f.asks {
			if err := t.Room(ctx); err != nil {
				return 0, err
			}
		}
		select {
		case <-time.After(f.took(t.Stage, t.Input)):
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		if err := f.failing[t.Input]; err != nil && k == n-1 {
			return 0, err
		}
		id, err := t.Input.Child(uint32(k))
		if err != nil {
			return 0, err
		}
		if slices.Contains(t.Skip, id) {
			continue
		}
		o := run.Output{ID: id, Rows: 1, Bytes: outputBytes, Drop: func() {}, Keep: func() { f.keep(t.Stage, id) }}
		if err := emit(o); err != nil {
			return 0, err
		}
	}
	return n, nil
}

func (f *fake) keep(stage int, id lineage.ID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if stage < f.stages-1 {
		f.held[id] = true
		return
	}
	f.final[id]++
	f.changed()
}

func (f *fake) Free(id lineage.ID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.held, id)
}

func (*fake) InputDone(lineage.ID, run.Grant, int) {}

func (f *fake) SourceDone(id lineage.ID, _ run.Grant, outputs int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.done[id] = outputs
	f.changed()
}

func (f *fake) SourceFailed(id lineage.ID, _ run.Grant, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failed[id] = err
	f.changed()
}

func (f *fake) changed() {
	select {
	case f.tell <- struct{}{}:
	default:
	}
}

// want is the final outputs of a partition.
func (f *fake) want(id lineage.ID) []lineage.ID {
	if int(id.Depth) == f.stages {
		return []lineage.ID{id}
	}
	var out []lineage.ID
	for k := range f.fan(id) {
		child, err := id.Child(uint32(k))
		if err != nil {
			panic(err)
		}
		out = append(out, f.want(child)...)
	}
	return out
}

func (f *fake) start(t *testing.T, share *run.Share, slots int, budget int64) *run.Runner {
	t.Helper()
	r, err := run.New(t.Context(), run.Config{
		Core: f.config(), Slots: map[string]int{"cpu": slots}, BudgetBytes: budget, Share: share,
		Stages: f, Reports: f, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func offers(n int) []run.Offer {
	out := make([]run.Offer, n)
	for i := range out {
		out[i].ID = lineage.SourceID(0, uint64(i))
	}
	return out
}

// consume frees final outputs, the earliest first, until all n source partitions have ended.
func (f *fake) consume(r *run.Runner, n int) {
	freed := map[lineage.ID]bool{}
	for {
		f.mu.Lock()
		ended := len(f.done) + len(f.failed)
		var ready []lineage.ID
		for id := range f.final {
			if !freed[id] {
				ready = append(ready, id)
			}
		}
		f.mu.Unlock()
		slices.SortFunc(ready, lineage.ID.Compare)
		for _, id := range ready {
			freed[id] = true
			r.Taken(id)
			r.Freed(id)
		}
		if ended >= n {
			return
		}
		<-f.tell
	}
}

func TestEveryOutputIsMadeOnceWhateverSlotsBudgetAndTiming(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		slots := rapid.IntRange(1, 5).Draw(rt, "slots")
		budget := rapid.Int64Range(1, 3000).Draw(rt, "budget")
		stages := rapid.IntRange(1, 3).Draw(rt, "stages")
		steps := rapid.SliceOfN(rapid.IntRange(0, 20), 7, 7).Draw(rt, "steps")
		asks := rapid.Bool().Draw(rt, "asks")
		const sources = 12
		synctest.Test(t, func(t *testing.T) {
			f := newFake(stages)
			f.asks = asks
			f.took = func(stage int, id lineage.ID) time.Duration {
				return time.Duration(steps[(int(id.Source)*3+stage)%len(steps)]) * time.Millisecond
			}
			shares := run.NewShares(map[string]int{"cpu": slots}, budget)
			r := f.start(t, shares.Join(1), slots, budget)
			r.Offer(offers(sources)...)
			f.consume(r, sources)
			r.Close(t.Context())
			for _, o := range offers(sources) {
				want := f.want(o.ID)
				if f.done[o.ID] != len(want) {
					t.Errorf("source partition %s ended with %d outputs, want %d (%v)", o.ID, f.done[o.ID], len(want), f.failed[o.ID])
				}
				for _, id := range want {
					if f.final[id] != 1 {
						t.Errorf("output %s was kept %d times", id, f.final[id])
					}
				}
			}
			if f.most > slots {
				t.Errorf("%d tasks ran at the same time on %d slots", f.most, slots)
			}
			if len(f.held) > 0 {
				t.Errorf("%d partitions are left between stages", len(f.held))
			}
		})
	})
}

func TestSkippedOutputsCountButAreNotMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(1)
		f.fan = func(lineage.ID) int { return 3 }
		r := f.start(t, run.NewShares(map[string]int{"cpu": 1}, 1000).Join(1), 1, 1000)
		id := lineage.SourceID(0, 0)
		skip, err := id.Child(1)
		if err != nil {
			t.Fatal(err)
		}
		r.Offer(run.Offer{Offered: exec.Offered{ID: id, Skip: []lineage.ID{skip}}})
		f.consume(r, 1)
		r.Close(t.Context())
		if f.done[id] != 3 || len(f.final) != 2 || f.final[skip] != 0 {
			t.Errorf("%d outputs, kept %v", f.done[id], f.final)
		}
	})
}

func TestErrorsAndPanicsGiveUpTheirSourceAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(2)
		bad := errkind.Errorf(errkind.BadData, "sample x: broken")
		child, err := lineage.SourceID(0, 1).Child(0)
		if err != nil {
			t.Fatal(err)
		}
		f.failing = map[lineage.ID]error{child: bad}
		f.panics = map[lineage.ID]bool{lineage.SourceID(0, 2): true}
		r := f.start(t, run.NewShares(map[string]int{"cpu": 2}, 4000).Join(1), 2, 4000)
		r.Offer(offers(4)...)
		f.consume(r, 4)
		r.Close(t.Context())
		if got := f.failed[lineage.SourceID(0, 1)]; !errors.Is(got, bad) {
			t.Errorf("source partition 1 failed with %v", got)
		}
		if got := f.failed[lineage.SourceID(0, 2)]; errkind.Of(got) != errkind.Internal || !strings.Contains(got.Error(), "no such luck") {
			t.Errorf("source partition 2 failed with %v", got)
		}
		if len(f.done) != 2 || len(f.held) != 0 {
			t.Errorf("done: %v, left between stages: %v", f.done, f.held)
		}
	})
}

func TestWithdrawnSourcesEndSilentlyAndCanComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(1)
		f.took = func(int, lineage.ID) time.Duration { return time.Hour }
		r := f.start(t, run.NewShares(map[string]int{"cpu": 2}, 4000).Join(1), 2, 4000)
		r.Offer(offers(4)...)
		synctest.Wait()
		r.WithdrawBelow(1)
		synctest.Wait()
		if f.running != 0 || len(f.done)+len(f.failed) != 0 {
			t.Errorf("%d tasks run, done %v, failed %v", f.running, f.done, f.failed)
		}
		r.Offer(offers(4)...)
		r.Offer(offers(2)...) // again, while they are live
		f.consume(r, 4)
		r.Close(t.Context())
		if diff := cmp.Diff(4, len(f.done)); diff != "" {
			t.Error(diff)
		}
	})
}

// A task that waits for room is told when nobody wants it any more.
func TestAWithdrawnTaskWaitsForRoomNoLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(1)
		f.asks, f.fan = true, func(lineage.ID) int { return 100 }
		r := f.start(t, run.NewShares(map[string]int{"cpu": 2}, 10*outputBytes).Join(1), 2, 10*outputBytes)
		r.Offer(offers(2)...)
		time.Sleep(time.Hour)
		synctest.Wait()
		if _, waits := r.Status(); !slices.ContainsFunc(waits, func(w exec.Wait) bool { return w.Reason != exec.ReasonSlots }) {
			t.Fatalf("no task waits for room: %+v", waits)
		}
		r.WithdrawBelow(1)
		synctest.Wait()
		if f.running != 0 {
			t.Errorf("%d tasks still run", f.running)
		}
		r.Close(t.Context())
	})
}

func TestCloseWaitsForTasksUntilItsContextEnds(t *testing.T) {
	for _, c := range []struct {
		grace time.Duration
		done  int
	}{{time.Minute, 1}, {time.Second, 0}} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake(1)
			f.fan = func(lineage.ID) int { return 1 }
			f.took = func(int, lineage.ID) time.Duration { return 30 * time.Second }
			r := f.start(t, run.NewShares(map[string]int{"cpu": 1}, 4000).Join(1), 1, 4000)
			r.Offer(offers(3)...)
			synctest.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), c.grace)
			defer cancel()
			r.Close(ctx)
			if len(f.done) != c.done || f.running != 0 {
				t.Errorf("with %v of grace %d source partitions were done, %d tasks still run", c.grace, len(f.done), f.running)
			}
		})
	}
}

func TestTheEndOfTheContextStopsEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(1)
		f.took = func(int, lineage.ID) time.Duration { return time.Hour }
		ctx, cancel := context.WithCancel(t.Context())
		r, err := run.New(ctx, run.Config{
			Core: f.config(), Slots: map[string]int{"cpu": 2}, BudgetBytes: 4000,
			Share: run.NewShares(map[string]int{"cpu": 2}, 4000).Join(1), Stages: f, Reports: f, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		r.Offer(offers(5)...)
		synctest.Wait()
		cancel()
		synctest.Wait()
		if f.running != 0 || len(f.failed) != 0 {
			t.Errorf("%d tasks run, failed: %v", f.running, f.failed)
		}
	})
}

func TestJobsShareSlotsByWeight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slots, sources = 8, 80
		shares := run.NewShares(map[string]int{"cpu": slots}, 1<<30)
		light, heavy := newFake(1), newFake(1)
		for _, f := range []*fake{light, heavy} {
			f.fan = func(lineage.ID) int { return 1 }
			f.took = func(int, lineage.ID) time.Duration { return 10 * time.Millisecond }
		}
		a := light.start(t, shares.Join(1), slots, 1<<30)
		a.Offer(offers(sources)...)
		synctest.Wait()
		b := heavy.start(t, shares.Join(3), slots, 1<<30)
		b.Offer(offers(sources)...)
		var reader sync.WaitGroup
		reader.Go(func() { light.consume(a, sources) })
		heavy.consume(b, sources)
		// While both had work, the light job had a quarter of the slots, beside the 8 tasks that ran before the heavy
		// one came. Equal shares would be 80.
		light.mu.Lock()
		got := len(light.done)
		light.mu.Unlock()
		if got < sources/4 || got > sources/2+4 {
			t.Errorf("the light job has done %d source partitions while the heavy one did %d", got, sources)
		}
		reader.Wait()
		if len(light.done) != sources {
			t.Errorf("the light job was left with %d of %d done", len(light.done), sources)
		}
		a.Close(t.Context())
		b.Close(t.Context())
	})
}

func TestAJobThatRunsNothingMayAlwaysStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const budget = 10 * outputBytes
		shares := run.NewShares(map[string]int{"cpu": 2}, budget)
		full := shares.Join(1)
		full.Held(budget) // and nobody consumes
		f := newFake(1)
		r := f.start(t, shares.Join(1), 2, budget)
		r.Offer(offers(3)...)
		f.consume(r, 3)
		r.Close(t.Context())
		if len(f.done) != 3 {
			t.Errorf("%d of 3 source partitions were done beside a job that holds all bytes", len(f.done))
		}
	})
}

func TestStatusSaysWhatRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(1)
		f.took = func(int, lineage.ID) time.Duration { return time.Hour }
		r := f.start(t, run.NewShares(map[string]int{"cpu": 1}, 4000).Join(1), 1, 4000)
		r.Offer(offers(3)...)
		synctest.Wait()
		snapshot, waits := r.Status()
		if snapshot.Stages[0].Running != 1 || snapshot.Stages[0].Queued != 2 {
			t.Errorf("status is %+v", snapshot.Stages[0])
		}
		if len(waits) != 1 || waits[0].Reason != exec.ReasonSlots || waits[0].Count != 2 {
			t.Errorf("waiting: %+v", waits)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		r.Close(ctx)
	})
}
