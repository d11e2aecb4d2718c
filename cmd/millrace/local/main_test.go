package local_test

import (
	"flag"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// A check runs whole pipelines, so few of them make a test; -rapid.checks asks for more.
func TestMain(m *testing.M) {
	if err := flag.Set("rapid.checks", "25"); err != nil {
		panic(err)
	}
	flag.Parse()
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) { os.Exit(code) }))
}
