//go:build !linux || !(amd64 || arm64)

package isolate

import (
	"context"
	"time"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/spawn"
)

// Request is what a decoder process is to do.
type Request struct{}

// Decode is for systems that have decoder processes.
func Decode(*Request) error { return errNowhere }

// Serve is for systems that have decoder processes.
func Serve(func(*Request) error) int { return 1 }

var errNowhere = errkind.Errorf(errkind.Unavailable, "it needs Linux on amd64 or arm64")

type process struct{ broken bool }

type deathError struct {
	kind errkind.Kind
	how  string
	late bool
}

func (e *deathError) Error() string { return e.how }

func start(*spawn.Thread, []string, string) (*process, error) { return nil, errNowhere }

func (*process) hello(time.Duration) error { return errNowhere }

func (*process) call(context.Context, time.Duration, *request, []byte, int, func([]byte)) error {
	return errNowhere
}

func (*process) kill() {}
func (*process) end()  {}
