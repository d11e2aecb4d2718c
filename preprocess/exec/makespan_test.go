package exec

import (
	"testing"
	"time"

	"github.com/millrace/millrace/preprocess/lineage"
)

// videos is the memory-aware benchmark of the streaming batch paper: 160 loads of 5 s and 5 frames each, a transform
// of 0.5 s per frame on the same 8 slots, an inference of 0.5 s per frame on 4 others. Its bound is 150 s.
func videos(policy Policy) (*world, error) {
	w, err := newWorld(Config{Policy: policy, Stages: []StageSpec{
		{Name: "load", Resources: map[string]int{"cpu": 1}, ExpectBytes: 500},
		{Name: "transform", Resources: map[string]int{"cpu": 1}, ExpectBytes: 100},
		{Name: "infer", Resources: map[string]int{"gpu": 1}, ExpectBytes: 1},
	}}, 160)
	if err != nil {
		return nil, err
	}
	w.atEnd = true
	w.duration = func(s int, _ lineage.ID) time.Duration {
		return []time.Duration{5 * time.Second, time.Second / 2, time.Second / 2}[s]
	}
	w.outputs = func(s int, _ lineage.ID) []int64 {
		return [][]int64{{100, 100, 100, 100, 100}, {100}, {1}}[s]
	}
	return w, nil
}

// Law: with room for it, streaming execution comes near the bound, and with little room it gets slower, not stuck.
func TestMakespanOfVideos(t *testing.T) {
	for _, test := range []struct {
		policy Policy
		frames int64
		most   time.Duration
	}{
		{PolicyStreaming, 6, 610 * time.Second},
		{PolicyStreaming, 20, 195 * time.Second},
		{PolicyStreaming, 41, 158 * time.Second},
		{PolicyStreaming, 61, 154 * time.Second},
		{PolicyStreaming, 164, 156 * time.Second},
		{PolicyStaged, 61, 400 * time.Second},
		{PolicyStatic, 61, 210 * time.Second},
	} {
		w, err := videos(test.policy)
		if err != nil {
			t.Fatal(err)
		}
		w.allowed = 1005 // one source partition, with what the later stages make of it
		if err := w.join("a", map[string]int{"cpu": 8, "gpu": 4}, test.frames*100); err != nil {
			t.Fatal(err)
		}
		if err := w.run(); err != nil {
			t.Fatalf("%v, %d frames: %v", test.policy, test.frames, err)
		}
		t.Logf("%v, %d frames: %v, peak %d, %d launches", test.policy, test.frames, w.now, w.peak["a"], w.launches)
		if w.now > test.most || w.launches != 160+800+800 {
			t.Errorf("%v, %d frames: took %v and %d launches, want at most %v", test.policy, test.frames, w.now, w.launches, test.most)
		}
	}
}
