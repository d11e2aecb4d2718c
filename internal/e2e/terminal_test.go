package e2e

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

// onTerminal runs a command whose standard error is a terminal, and is what was shown there and its answer.
func (p *place) onTerminal(args ...string) (shown, out string) {
	p.t.Helper()
	control, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = control.Close() }()
	fd := int(control.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		p.t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		p.t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 120}); err != nil {
		p.t.Fatal(err)
	}
	screen, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		p.t.Fatal(err)
	}
	c := exec.CommandContext(p.t.Context(), millrace(), args...)
	var answer bytes.Buffer
	c.Dir, c.Env, c.Stdout, c.Stderr = p.dir, p.env, &answer, screen
	err = c.Run()
	_ = screen.Close()
	text, _ := io.ReadAll(control) // ends with EIO once nobody has the terminal open
	if err != nil {
		p.t.Fatalf("millrace %v: %v\n%s", args, err, text)
	}
	return string(text), answer.String()
}
