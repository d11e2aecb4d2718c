package storage

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/millrace/millrace/internal/errkind"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Each scenario reads what it laid down, on a small scale, with no error; figures that do not depend on time are right.
func TestScenariosRead(t *testing.T) {
	dir := os.Getenv("MILLRACE_S3_SERVERS")
	if dir == "" {
		return // Plain `go test` has no servers; `make unit` builds them and names their folder.
	}
	for _, s := range Scenarios() {
		t.Run(s.Name, func(t *testing.T) {
			r, err := Run(t.Context(), s, Options{Server: filepath.Join(dir, "versitygw"), Scale: 100, Log: io.Discard})
			if err != nil {
				t.Fatal(err)
			}
			if r.Scenario != s.Name || r.Errors != 0 || r.Samples == 0 || r.Requests == 0 {
				t.Errorf("%+v", r)
			}
			if s.Name == "s3_10k" && (r.Requests*10 > r.SampleRequests || r.Amplification > 1.15) {
				t.Errorf("%d requests where samples alone were %d, amplification %.3f", r.Requests, r.SampleRequests, r.Amplification)
			}
		})
	}
}

func TestWrongRunsAreRefused(t *testing.T) {
	if _, err := Find("nothing"); errkind.Of(err) != errkind.Invalid {
		t.Errorf("an unknown scenario: %v", err)
	}
	for _, o := range []Options{{Scale: 1}, {Server: "versitygw"}} {
		if _, err := Run(t.Context(), Scenario{}, o); errkind.Of(err) != errkind.Invalid {
			t.Errorf("%+v: %v", o, err)
		}
	}
}
