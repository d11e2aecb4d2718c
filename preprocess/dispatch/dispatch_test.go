package dispatch_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/errkind"
	feedv1 "github.com/millrace/millrace/proto/millrace/feed/v1"
	workerv1 "github.com/millrace/millrace/proto/millrace/worker/v1"
)

func TestAnEpochIsPlacedSealedAndFreed(t *testing.T) {
	h := newHarness(t, 30, "")
	w := h.worker("w1", nil)
	opened := h.mustOpen(request(0, 1, nil))
	if opened.GetRows() != 30 || opened.GetSteps() != 4 || len(opened.GetSchema()) == 0 {
		t.Fatalf("opened as %v", opened)
	}
	stream := h.attach("s1")
	h.send(stream, seek(0, opened.GetStart()))
	var f feed
	collect(t, stream, &f, epochEnds(1))

	row := int64(0)
	for p := range 8 {
		placement := f.placed[fmt.Sprint(0, "/", p)]
		if placement.GetFirstRow() != row || placement.GetAddress() != "local:w1" {
			t.Errorf("partition 0/%d is placed at row %d on %q, want %d on local:w1", p, placement.GetFirstRow(), placement.GetAddress(), row)
		}
		row += placement.GetRows()
	}
	if row != 30 {
		t.Errorf("placements hold %d rows, want 30", row)
	}
	for i, s := range f.sealed[:4] {
		want := min(8, 30-int64(i)*8)
		if s.GetPosition().GetStep() != int64(i) || s.GetPosition().GetRow() != int64(i)*8 || s.GetRows() != want {
			t.Errorf("sealed %d is %v, want %d rows", i, s, want)
		}
		if c := cursorOf(t, s.GetCursor()); c.Step != uint64(i+1) || c.Rows != uint64(i*8)+uint64(want) || c.Job != "train" {
			t.Errorf("cursor %d is %+v", i, c)
		}
	}
	if e := f.ended[0]; e.GetRows() != 30 || e.GetSteps() != 4 || e.GetLast() {
		t.Errorf("epoch ended as %v", e)
	}
	// The next epoch is made ahead; consuming the first frees its eight partitions.
	h.send(stream, consumed(0, f.generation, 4))
	collect(t, stream, &f, epochEnds(2))
	waitFor(t, func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.freed == 8 })
}

func TestAGenerationBeginsWhenAllRanksAskForTheSamePlace(t *testing.T) {
	h := newHarness(t, 32, "")
	h.worker("w1", nil)
	h.mustOpen(request(0, 2, nil))
	a, b := h.attach("s1"), h.attach("s2")
	h.send(a, seek(0, position(0, 0)))
	waitFor(t, func() bool {
		return strings.Contains(h.d.Status().GetJobs()[0].GetWaiting(), "waiting for rank 1 of 2 to join")
	})
	h.mustOpen(request(1, 2, nil))
	h.send(b, seek(1, position(2, 16)))
	var f feed
	collect(t, a, &f, func(f *feed) bool { return f.failed != nil })
	if want := "rank 0: epoch 0, step 0; rank 1: epoch 0, step 2"; !strings.Contains(f.failed.GetText(), want) {
		t.Fatalf("refused with %q, want %q", f.failed.GetText(), want)
	}
	h.send(a, seek(0, position(2, 16)))
	h.send(b, seek(1, position(2, 16)))
	var fa, fb feed
	collect(t, a, &fa, epochEnds(1))
	collect(t, b, &fb, epochEnds(1))
	for _, f := range []*feed{&fa, &fb} {
		if f.start.GetStep() != 2 || f.sealed[0].GetPosition().GetRow() != 16 || f.ended[0].GetSteps() != 4 {
			t.Errorf("generation begins at %v with %v", f.start, f.sealed[0])
		}
	}
	if _, early := fa.placed["0/3"]; early {
		t.Error("a partition before the start was made")
	}
}

// Peers of a rank may be on several hosts: each host is told all that it needs, once, and the rank has consumed what all
// its peers have.
func TestPeersOnSeveralHostsAreOneRank(t *testing.T) {
	h := newHarness(t, 32, "")
	h.worker("w1", nil)
	as := func(peer int) func(*feedv1.OpenJobRequest) {
		return func(r *feedv1.OpenJobRequest) { r.Peer, r.Peers = uint32(peer), 2 }
	}
	h.mustOpen(request(0, 1, as(0)))
	if _, err := h.open(request(0, 1, nil)); err == nil || !strings.Contains(err.Error(), "rank 0 joined job \"train\" with peers 1; the job uses 2") {
		t.Errorf("another number of peers: %v", err)
	}
	a, b := h.attach("s1"), h.attach("s2")
	h.send(a, seek(0, position(0, 0)))
	waitFor(t, func() bool {
		return strings.Contains(h.d.Status().GetJobs()[0].GetWaiting(), "waiting for peer 1 of rank 0 of 2 to join")
	})
	h.mustOpen(request(0, 1, as(1)))
	h.send(b, seek(1, position(2, 16)))
	var f feed
	collect(t, a, &f, func(f *feed) bool { return f.failed != nil })
	if want := "peer 0 of rank 0: epoch 0, step 0; peer 1 of rank 0: epoch 0, step 2"; !strings.Contains(f.failed.GetText(), want) {
		t.Fatalf("refused with %q, want %q", f.failed.GetText(), want)
	}
	h.send(a, seek(0, position(0, 0)))
	h.send(b, seek(1, position(0, 0)))
	var fa, fb feed
	collect(t, a, &fa, epochEnds(1))
	collect(t, b, &fb, epochEnds(1))
	if len(fa.placed) != len(fb.placed) || len(fa.placed) == 0 {
		t.Errorf("%d partitions for one host, %d for the other", len(fa.placed), len(fb.placed))
	}
	h.send(a, consumed(0, fa.generation, 3))
	h.send(b, consumed(1, fb.generation, 1))
	waitFor(t, func() bool {
		j := h.d.Status().GetJobs()[0]
		return j.GetStep() == 1 && j.GetWorldSize() == 1 && j.GetPeers() == 2 && j.GetRanks()[0].GetStep() == 3 && j.GetRanks()[1].GetPeer() == 1
	})
}

func TestASidecarThatComesBackIsToldWhatIsLive(t *testing.T) {
	h := newHarness(t, 32, "")
	h.worker("w1", nil)
	h.mustOpen(request(0, 1, nil))
	first := h.attach("s1")
	h.send(first, seek(0, position(0, 0)))
	var f feed
	collect(t, first, &f, epochEnds(1))
	h.send(first, consumed(0, f.generation, 2))
	if err := first.CloseSend(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return h.d.Status().GetJobs()[0].GetRanks()[0].GetState() == "joined" })

	second := h.attach("s1")
	h.send(second, seek(0, position(2, 16)))
	var again feed
	collect(t, second, &again, epochEnds(1))
	if again.generation != f.generation {
		t.Errorf("coming back began generation %d, want still %d", again.generation, f.generation)
	}
	if again.sealed[0].GetPosition().GetStep() != 2 || again.placed["0/4"] == nil || again.placed["0/3"] != nil {
		t.Errorf("told %v and %v", again.sealed[0], again.placed)
	}
}

func TestARankMayComeBackToWhereASlowerOneIs(t *testing.T) {
	h := newHarness(t, 32, "")
	h.worker("w1", nil)
	h.mustOpen(request(0, 2, nil))
	h.mustOpen(request(1, 2, nil))
	a, b := h.attach("s1"), h.attach("s2")
	h.send(a, seek(0, position(0, 0)))
	h.send(b, seek(1, position(0, 0)))
	var fa, fb feed
	collect(t, a, &fa, epochEnds(1))
	collect(t, b, &fb, epochEnds(1))
	h.send(a, consumed(0, fa.generation, 4))
	h.send(b, consumed(1, fb.generation, 2))
	waitFor(t, func() bool {
		ranks := h.d.Status().GetJobs()[0].GetRanks()
		return ranks[0].GetStep() == 4 && ranks[1].GetStep() == 2
	})
	// Rank 0 is at the end of the epoch, rank 1 in the middle: both load the state of step 3.
	for _, c := range []struct {
		rank   int
		stream feedv1.FeedService_AttachClient
		at     *feedv1.Position
		begun  uint64
	}{{0, a, position(2, 16), 1}, {1, b, position(2, 16), 1}} {
		h.send(c.stream, seek(c.rank, c.at))
		waitFor(t, func() bool {
			r := h.d.Status().GetJobs()[0].GetRanks()[c.rank]
			return r.GetStep() == c.at.GetStep() && h.d.Status().GetJobs()[0].GetGeneration() == c.begun
		})
	}
}

func TestALostWorkersPartitionsAreMadeAgainAndMustBeEqual(t *testing.T) {
	for _, c := range []struct {
		name  string
		wrong byte
	}{{"equal", 0}, {"different", 1}} {
		t.Run(c.name, func(t *testing.T) {
			h := newHarness(t, 32, "")
			lost := h.worker("w1", nil)
			h.mustOpen(request(0, 1, nil))
			stream := h.attach("s1")
			h.send(stream, seek(0, position(0, 0)))
			var f feed
			collect(t, stream, &f, epochEnds(1))
			lost.stop()
			h.worker("w2", func(w *fakeWorker) { w.wrong = c.wrong })
			if c.wrong != 0 {
				collect(t, stream, &f, func(f *feed) bool { return f.failed != nil })
				if !strings.Contains(f.failed.GetText(), "made again differs") {
					t.Errorf("failed with %q", f.failed.GetText())
				}
				return
			}
			collect(t, stream, &f, func(f *feed) bool {
				for p := range 8 {
					if f.placed[fmt.Sprint(0, "/", p)].GetAddress() != "local:w2" {
						return false
					}
				}
				return true
			})
			if f.failed != nil {
				t.Errorf("failed: %v", f.failed)
			}
		})
	}
}

func TestABadSampleFailsTheJobAfterTheBatchesBeforeIt(t *testing.T) {
	h := newHarness(t, 32, "")
	h.worker("w1", func(w *fakeWorker) {
		w.broken = func(task *workerv1.SourceTask) string {
			if task.GetId().GetSource() == 5 {
				return "sample a.tar!s0021.cls: decode_image: truncated JPEG"
			}
			return ""
		}
	})
	h.mustOpen(request(0, 1, nil))
	stream := h.attach("s1")
	h.send(stream, seek(0, position(0, 0)))
	var f feed
	collect(t, stream, &f, func(f *feed) bool { return f.failed != nil })
	if len(f.sealed) != 2 || f.failed.GetKind() != "bad_data" || !strings.Contains(f.failed.GetText(), "s0021.cls") {
		t.Errorf("after %d sealed batches: %v; want 2, then the sample by name", len(f.sealed), f.failed)
	}
}

func TestMistakesOfRanksAreNamed(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*feedv1.OpenJobRequest)
		kind errkind.Kind
		want string
	}{
		{"other batch", func(r *feedv1.OpenJobRequest) { r.Settings.GlobalBatch = 4 }, errkind.Conflict, `rank 1 joined job "train" with global batch 4; rank 0 uses 8. All ranks of a job must agree`},
		{"other seed", func(r *feedv1.OpenJobRequest) { r.Settings.Seed = 2 }, errkind.Conflict, "with seed 2; rank 0 uses 1"},
		{"other world", func(r *feedv1.OpenJobRequest) { r.WorldSize = 4 }, errkind.Conflict, "with world_size 4; rank 0 uses 2"},
		{"other recipe", func(r *feedv1.OpenJobRequest) {
			r.Recipe = []byte(textRecipe + "output: {label: {dtype: float32}}\n")
		}, errkind.Conflict, "another recipe (output.fields was"},
		{"batch not divisible", func(r *feedv1.OpenJobRequest) { r.WorldSize = 3 }, errkind.Invalid, "global batch of 8 rows cannot be cut into 3 equal parts"},
		{"rank too high", func(r *feedv1.OpenJobRequest) { r.Rank = 2 }, errkind.Invalid, "rank 2 is not below the world size 2"},
		{"no name", func(r *feedv1.OpenJobRequest) { r.Job = "" }, errkind.Invalid, "a job needs a name"},
		{"shuffle", func(r *feedv1.OpenJobRequest) { r.Settings.Shuffle = "blok" }, errkind.Invalid, "did you mean block?"},
		{"tail", func(r *feedv1.OpenJobRequest) { r.Settings.Tail = "padd" }, errkind.Invalid, "did you mean pad?"},
		{"on_error", func(r *feedv1.OpenJobRequest) { r.Settings.OnError = "rase" }, errkind.Invalid, `unknown on_error "rase"; did you mean "raise"?`},
		{"unknown operator", func(r *feedv1.OpenJobRequest) {
			r.Recipe = []byte(textRecipe + "operators: [{resise: {field: label}}]\n")
		}, errkind.Invalid, `operator 1: unknown operator "resise"; did you mean "resize"?`},
		{"unknown parameter", func(r *feedv1.OpenJobRequest) {
			r.Recipe = []byte(textRecipe + "operators: [{resize: {field: label, sise: 3}}]\n")
		}, errkind.Invalid, `unknown parameter "sise" of resize; did you mean "size"?`},
		{"unknown field", func(r *feedv1.OpenJobRequest) {
			r.Recipe = []byte(textRecipe + "operators: [{decode_image: {field: lable}}]\n")
		}, errkind.Invalid, `no field "lable"; did you mean "label"?`},
		{"missing member", func(r *feedv1.OpenJobRequest) {
			r.Recipe = []byte("source: mem://data/a.tar\nfields: {label: clss}\n")
		}, errkind.Invalid, `samples have no member "clss"; did you mean "cls"?`},
		{"missing file", func(r *feedv1.OpenJobRequest) { r.Recipe = []byte("source: mem://data/b.tar\n") }, errkind.NotFound, "b.tar"},
		{"broken state", func(r *feedv1.OpenJobRequest) { r.Cursor = "mr1.AAAA" }, errkind.Invalid, "state: cursor is cut off"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHarness(t, 32, "")
			h.mustOpen(request(0, 2, nil))
			_, err := h.open(request(1, 2, c.edit))
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("error %v does not say %q in one line", err, c.want)
			}
			if errkind.Of(err) != c.kind {
				t.Errorf("kind is %v, want %v", errkind.Of(err), c.kind)
			}
		})
	}
}

func TestAJobWhoseRanksAreGoneIsReplaced(t *testing.T) {
	h := newHarness(t, 32, "")
	h.mustOpen(request(0, 1, nil))
	stream := h.attach("s1")
	h.send(stream, &feedv1.AttachRequest{Message: &feedv1.AttachRequest_Leave{Leave: &feedv1.Leave{Seat: 0}}})
	waitFor(t, func() bool { return h.d.Status().GetJobs()[0].GetState() == "idle" })
	h.mustOpen(request(0, 1, func(r *feedv1.OpenJobRequest) { r.Settings.GlobalBatch = 4 }))
	if got := h.d.Status().GetJobs()[0].GetGlobalBatch(); got != 4 {
		t.Errorf("global batch is %d, want that of the new run, 4", got)
	}
}

func TestAStateOfAnotherRecipeIsExplained(t *testing.T) {
	h := newHarness(t, 32, t.TempDir())
	h.worker("w1", nil)
	resized := func(dtype string) func(*feedv1.OpenJobRequest) {
		return func(r *feedv1.OpenJobRequest) {
			r.Recipe = []byte(textRecipe + "output: {label: {dtype: " + dtype + "}}\n")
		}
	}
	h.mustOpen(request(0, 1, resized("int64")))
	stream := h.attach("s1")
	h.send(stream, seek(0, position(0, 0)))
	var f feed
	collect(t, stream, &f, sealedSteps(2))
	state := f.sealed[1].GetCursor()

	other := func(edits ...func(*feedv1.OpenJobRequest)) *feedv1.OpenJobRequest {
		return request(0, 1, func(r *feedv1.OpenJobRequest) {
			r.Job, r.Cursor = "again", state
			for _, edit := range edits {
				edit(r)
			}
		})
	}
	if got := h.mustOpen(other(resized("int64"))).GetStart(); got.GetStep() != 2 || got.GetRow() != 16 {
		t.Errorf("state leads to %v, want step 2, row 16", got)
	}
	if _, err := h.open(other(resized("float32"))); err == nil || errkind.Of(err) != errkind.Conflict ||
		!strings.Contains(err.Error(), `output.fields was`) || !strings.Contains(err.Error(), `Set on_mismatch="continue"`) {
		t.Errorf("state of another recipe: %v", err)
	}
	h.mustOpen(other(resized("float32"), func(r *feedv1.OpenJobRequest) { r.Job, r.ContinueOnMismatch = "third", true }))
	_, err := h.open(other(resized("int64"), func(r *feedv1.OpenJobRequest) { r.Settings.Seed, r.ContinueOnMismatch = 9, true }))
	if err == nil || !strings.Contains(err.Error(), "seed was 1, is 9") {
		t.Errorf("state of another order: %v", err)
	}
}

func TestTheLastEpochEndsTheJob(t *testing.T) {
	h := newHarness(t, 16, "")
	h.worker("w1", nil)
	two := func(r *feedv1.OpenJobRequest) { r.Settings.Epochs = 2 }
	h.mustOpen(request(0, 1, two))
	stream := h.attach("s1")
	h.send(stream, seek(0, position(0, 0)))
	var f feed
	collect(t, stream, &f, epochEnds(2))
	if f.ended[0].GetLast() || !f.ended[1].GetLast() {
		t.Errorf("ends are %v", f.ended)
	}
	_, err := h.open(request(0, 1, func(r *feedv1.OpenJobRequest) {
		two(r)
		r.Job, r.Cursor = "again", f.sealed[3].GetCursor()
	}))
	if err == nil || !strings.Contains(err.Error(), "has 2 epochs and all are over") {
		t.Errorf("a state after the last epoch: %v", err)
	}
}

// waitFor polls a condition that another goroutine brings about; the test's own deadline is the limit.
func waitFor(t *testing.T, condition func() bool) {
	t.Helper()
	for !condition() {
		select {
		case <-t.Context().Done():
			t.Fatal("the condition never came true")
		default:
		}
	}
}
