//go:build !linux

package pypool

import (
	"net"
	"os"
	"os/exec"
	"syscall"

	"github.com/millrace/millrace/internal/errkind"
)

var errElsewhere = errkind.Errorf(errkind.Unavailable, "operators in Python need Linux's shared memory")

type outMemory struct{ file *os.File }

func newOutMemory() (*outMemory, error) { return nil, errElsewhere }

func (*outMemory) size() int64       { return 0 }
func (*outMemory) row() int64        { return 0 }
func (*outMemory) ticks() int64      { return 0 }
func (*outMemory) remap(int64) error { return errElsewhere }
func (*outMemory) bytes() []byte     { return nil }
func (*outMemory) close()            {}

type inMemory struct {
	file *os.File
	size int64
	sent bool
}

func (*inMemory) fits(int64) bool { return false }

func newInMemory(int64) (*inMemory, error) { return nil, errElsewhere }

func (*inMemory) close() {}

func socketPair() (*net.UnixConn, *os.File, error) { return nil, nil, errElsewhere }

func sendFile(*net.UnixConn, []byte, *os.File) error { return errElsewhere }

func ofItsOwn() *syscall.SysProcAttr { return nil }

func killGroup(*exec.Cmd) {}
