package e2e

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// bench kernels compares with the real Pillow and torchvision before it measures, and prints a line a scenario.
func TestBenchKernelsComparesPixelsAndPrintsALineAScenario(t *testing.T) {
	a := newPlace(t).millrace("bench", "kernels", "--images", "2", "--passes", "1", "--rounds", "1")
	if a.code != 0 {
		t.Fatalf("exit code %d\n%s", a.code, a.errors)
	}
	var names []string
	for line := range strings.Lines(a.out) {
		var got map[string]any
		if err := json.Unmarshal([]byte(line), &got); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		name, _ := got["scenario"].(string)
		names = append(names, name)
		for _, key := range []string{"us_per_image", "peer_us_per_image", "ratio"} {
			if v, _ := got[key].(float64); v <= 0 {
				t.Errorf("%s: %s is %v", name, key, got[key])
			}
		}
		expect(t, got, map[string]any{"peer": "pillow+torchvision", "allocs_per_image": 0.0})
		if name != "jpeg_1600_fast" && name != "blur23" {
			expect(t, got, map[string]any{"pixels": "equal"})
		}
		for key, where := range map[string][]string{"added_us": {"jitter", "jitter_hue", "blur23"}, "speedup": {"two_cores"}} {
			if _, has := got[key]; has != slices.Contains(where, name) {
				t.Errorf("%s: %s given is %v", name, key, has)
			}
		}
	}
	want := []string{"jpeg_44k", "jpeg_103k", "jpeg_103k_restart", "jpeg_1600_exact", "jpeg_1600_fast", "jitter", "jitter_hue", "blur23", "two_cores"}
	if !slices.Equal(names, want) {
		t.Errorf("scenarios %v, want %v", names, want)
	}
}
