package e2e

import "testing"

// A benchmark of the executor gives every row within the memory of its workers, by every policy.
func TestBenchExecutorTellsWhatFits(t *testing.T) {
	p := newPlace(t)
	for _, policy := range []string{"streaming", "staged", "static"} {
		out := decode(t, p.must("bench", "executor", "--scenario", "M8", "--scale", "0.002", "--frames", "8", "--policy", policy))
		expect(t, out, map[string]any{"scenario": "M8", "policy": policy, "frames": 8.0, "bound": 0.3, "cap_mb": 96.0, "finished": true})
	}
	a := p.millrace("bench", "executor", "--scenario", "M0")
	if a.code != 2 {
		t.Errorf("a scenario that is not there: exit code %d", a.code)
	}
	matches(t, a.errors, `no scenario "M0"`)
}
