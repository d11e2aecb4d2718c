package worker

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/loader/dataset/datasettest"
	"github.com/millrace/millrace/preprocess/exec"
	"github.com/millrace/millrace/preprocess/recipe"
	workerv1 "github.com/millrace/millrace/proto/millrace/worker/v1"
)

const ledgerFrame = 64 << 10

// framesOf is a job of three stages that take their time and hand on frames: four of each sample, each a partition.
func framesOf(t *testing.T, d *data) *workerv1.JobPlan {
	t.Helper()
	p := planOf(t, d, "job", variableColumns)
	r, err := recipe.Parse(fmt.Appendf(nil, `
source: mem://data/train.tar
fields: {bin: bin}
operators:
  - virtual_sleep: {seconds: 0.02}
  - virtual_emit: {field: frame, rows: 4, bytes: %d}
  - virtual_sleep: {seconds: 0.005, barrier: true}
  - virtual_emit: {field: frame, bytes: %d}
  - virtual_sleep: {seconds: 0.003, barrier: true}
partition: {target_bytes: %d}
`, ledgerFrame, ledgerFrame, ledgerFrame))
	if err != nil {
		t.Fatal(err)
	}
	if p.Recipe, err = r.ToProto(); err != nil {
		t.Fatal(err)
	}
	p.Layout.PartitionSamples = 2
	p.Layout.BlockSamples, p.Layout.WindowBlocks = 2, 4
	return p
}

// inMemory is what lies between the stages of the job and in the store, counted piece by piece.
func (w *world) inMemory(j *job) int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	sum := w.worker.Store().Bytes()
	for _, b := range j.between {
		sum += batchBytes(b.batch)
	}
	return sum
}

// Law: at any time the ledger of the executor is what is in memory, to the byte; buffers never take more than it has
// charged; and an idle worker gives back all of them.
func TestTheLedgerIsWhatIsInMemory(t *testing.T) {
	d := newData(t, datasettest.Samples(numSamples))
	const sources = numSamples / 2
	for _, c := range []struct {
		policy exec.Policy
		slots  int
		frames int64
	}{{0, 4, 40}, {0, 4, 9}, {0, 2, 1}, {exec.PolicyStaged, 3, 20}, {exec.PolicyStatic, 4, 20}} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorldWith(t, d, Config{Policy: c.policy, Slots: map[string]int{"cpu": c.slots}, BudgetBytes: c.frames * (ledgerFrame + 200)}, slog.New(slog.DiscardHandler))
			defer w.finish()
			s := w.accept()
			s.welcome()
			s.plan(framesOf(t, d))
			s.run("job", 1, 1, nil, upTo(sources)...)
			synctest.Wait()
			j := w.worker.job("job")
			read, ended, most := 0, 0, int64(0)
			for deadline := time.Now().Add(time.Hour); ended < sources; time.Sleep(time.Millisecond) {
				synctest.Wait()
				if time.Now().After(deadline) {
					t.Fatalf("%v, %d frames: %d of %d source partitions have ended", c.policy, c.frames, ended, sources)
				}
				snapshot, _ := j.runner.Status()
				node := snapshot.Nodes[0]
				if held := w.inMemory(j); held != node.BytesHeld {
					t.Fatalf("%v, %d frames: %d bytes are held, the ledger says %d", c.policy, c.frames, held, node.BytesHeld)
				}
				// A buffer is at most an eighth larger than what it is for, and there is a small one for each row's key.
				if live := w.pool.Stats().LiveBytes; live > node.BytesCharged*9/8+int64(node.Held+node.Tasks)*1024 {
					t.Fatalf("%v, %d frames: %d bytes of buffers are in use, %d are charged", c.policy, c.frames, live, node.BytesCharged)
				}
				most = max(most, node.BytesHeld)
				s.mu.Lock()
				events := s.events[read:]
				s.mu.Unlock()
				read += len(events)
				for _, e := range events {
					switch {
					case e.GetOutput() != nil:
						w.take(s, "job", e.GetOutput())
					case e.GetFailed() != nil:
						t.Fatal(e.GetFailed().GetText())
					case e.GetDone() != nil && len(e.GetDone().GetId().GetPath()) == 0:
						ended++
					}
				}
			}
			if most == 0 {
				t.Error("nothing was ever held")
			}
			time.Sleep(time.Millisecond)
			synctest.Wait()
			if stats := w.pool.Stats(); stats.LiveBytes != 0 || w.inMemory(j) != 0 {
				t.Errorf("%v: %d bytes are in use and %d held when all is done", c.policy, stats.LiveBytes, w.inMemory(j))
			}
			time.Sleep(3 * trimEvery)
			synctest.Wait()
			if idle := w.pool.Stats().IdleBytes; idle != 0 {
				t.Errorf("%v: %d bytes of buffers are kept by a worker that has been idle", c.policy, idle)
			}
		})
	}
}

func upTo(n uint64) []uint64 {
	out := make([]uint64, n)
	for i := range out {
		out[i] = uint64(i)
	}
	return out
}

// A process above its limit keeps no idle buffer, and says so once.
func TestAProcessWithTooMuchMemorySaysSo(t *testing.T) {
	d := newData(t, datasettest.Samples(numSamples))
	for _, limit := range []int64{0, 1, 1 << 50} {
		synctest.Test(t, func(t *testing.T) {
			var text bytes.Buffer
			w := newWorldWith(t, d, Config{Slots: map[string]int{"cpu": 1}, BudgetBytes: 1 << 20, ResidentLimit: limit}, slog.New(slog.NewTextHandler(&text, nil)))
			s := w.accept()
			s.welcome()
			time.Sleep(trimEvery - time.Millisecond)
			w.pool.Free(w.pool.Alloc(64 << 10))
			time.Sleep(2 * time.Millisecond)
			synctest.Wait()
			if idle := w.pool.Stats().IdleBytes; (idle == 0) != (limit == 1) {
				t.Errorf("limit %d: %d bytes are idle", limit, idle)
			}
			time.Sleep(3 * trimEvery)
			synctest.Wait()
			w.finish()
			warnings := strings.Count(text.String(), "more memory than its budget")
			if want := map[bool]int{true: 1}[limit == 1]; warnings != want {
				t.Errorf("limit %d: %d warnings, want %d\n%s", limit, warnings, want, text.String())
			}
		})
	}
}
