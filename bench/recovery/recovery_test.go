package recovery

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/millrace/millrace/internal/errkind"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// epochOf is an epoch in which two ranks take the samples by turns.
func epochOf(samples int64) *outcome {
	out := &outcome{total: 10, made: samples}
	for i := range samples {
		out.rows[i%world] = append(out.rows[i%world], row{sample: i, hash: uint64(i)})
	}
	return out
}

// What is lost, doubled, moved or changed shows.
func TestACaseIsComparedRowByRow(t *testing.T) {
	const samples = 40
	s := scenario{name: "worker_kill", lost: .25}
	for _, c := range []struct {
		what             string
		edit             func(o *outcome)
		missing, doubled int64
		equal            bool
	}{
		{"equal", func(*outcome) {}, 0, 0, true},
		{"lost", func(o *outcome) { o.rows[0] = o.rows[0][1:] }, 1, 0, false},
		{"doubled", func(o *outcome) { o.rows[1] = append(o.rows[1], o.rows[1][3]) }, 0, 1, false},
		{"moved", func(o *outcome) { o.rows[0][0], o.rows[0][1] = o.rows[0][1], o.rows[0][0] }, 0, 0, false},
		{"other rank", func(o *outcome) { o.rows[0], o.rows[1] = o.rows[1], o.rows[0] }, 0, 0, false},
		{"changed", func(o *outcome) { o.rows[0][7].hash++ }, 0, 0, false},
	} {
		struck := epochOf(samples)
		struck.made += 4
		c.edit(struck)
		r := compare(s, Unthrottled, samples, 4, epochOf(samples), struck)
		if r.Missing != c.missing || r.Doubled != c.doubled || r.OrderEqual != c.equal {
			t.Errorf("%s: %d missing, %d doubled, order equal %v", c.what, r.Missing, r.Doubled, r.OrderEqual)
		}
		// A quarter at 4 samples a second, the rest at 3.
		if r.LeastTotal != 12.5 || r.ExtraWork != .1 {
			t.Errorf("least total %v s, want 12.5; extra work %v, want 0.1", r.LeastTotal, r.ExtraWork)
		}
	}
}

func TestEpochsAreWholeBatches(t *testing.T) {
	for _, seconds := range []float64{.01, 1, 7.3, 20} {
		n := epochSamples(seconds)
		if n%batchRows != 0 || n < 8*batchRows || n > batchRows*8+int64(seconds*workers*slots/sampleSeconds) {
			t.Errorf("%v s: %d samples", seconds, n)
		}
	}
}

func TestMistakesAreNamed(t *testing.T) {
	for _, err := range []error{Check("worker_kil", Options{Seconds: 5}), Check("frozen", Options{Seconds: .5})} {
		if errkind.Of(err) != errkind.Invalid {
			t.Errorf("%v", err)
		}
	}
}
