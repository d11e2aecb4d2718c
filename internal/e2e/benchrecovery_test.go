package e2e

import (
	"encoding/json"
	"strings"
	"testing"
)

// What the benchmark says of a killed worker: nothing lost, nothing doubled, the same order.
func TestBenchRecovery(t *testing.T) {
	p := newPlace(t)
	lines := strings.Split(strings.TrimSpace(p.must("bench", "recovery", "--scenario", "worker_kill", "--seconds", "2")), "\n")
	if len(lines) != 2 {
		t.Fatalf("%d lines, want one for each consumer: %q", len(lines), lines)
	}
	for i, consumer := range []string{"unthrottled", "80%"} {
		var r struct {
			Scenario, Consumer, Error string
			Missing, Doubled          int64
			OrderEqual                bool `json:"order_equal"`
		}
		if err := json.Unmarshal([]byte(lines[i]), &r); err != nil {
			t.Fatal(err)
		}
		if r.Scenario != "worker_kill" || r.Consumer != consumer || r.Error != "" || r.Missing != 0 || r.Doubled != 0 || !r.OrderEqual {
			t.Errorf("%s", lines[i])
		}
	}
}
