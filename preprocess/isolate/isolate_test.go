//go:build linux && (amd64 || arm64)

package isolate_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/isolate"
	"github.com/millrace/millrace/preprocess/op/imagekernel"
)

// parentRole is this program as one that has a pool and then waits to be killed.
const parentRole = "parent-process"

func TestMain(m *testing.M) {
	switch {
	case len(os.Args) == 2 && os.Args[1] == isolate.Role:
		os.Exit(isolate.Serve(misbehave))
	case len(os.Args) == 2 && os.Args[1] == parentRole:
		beParent()
	}
	goleak.VerifyTestMain(m)
}

// misbehave does what a file says that begins with "do:", as a decoder would that has been taken over.
func misbehave(r *isolate.Request) error {
	what, ok := strings.CutPrefix(string(r.Data), "do:")
	if !ok {
		return isolate.Decode(r)
	}
	switch what {
	case "crash":
		page, err := unix.Mmap(-1, 0, 4096, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			return err
		}
		page[0] = 1
	case "panic":
		panic("a decoder panics")
	case "hang":
		for i := 0; ; i++ {
			r.Out[i%len(r.Out)]++
		}
	case "sleep":
		<-time.After(time.Hour)
	case "open":
		_, _ = os.Open("/etc/passwd")
	case "socket":
		_, _ = net.Dial("unix", "/nowhere") //nolint:noctx // On purpose.
	case "exec":
		_ = syscall.Exec("/bin/true", nil, nil)
	case "fork":
		_, _, _ = syscall.RawSyscall(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0)
	case "kill":
		_ = syscall.Kill(os.Getppid(), syscall.SIGTERM)
	case "ptrace":
		_ = syscall.PtraceAttach(os.Getppid())
	case "executable":
		_, _ = syscall.Mmap(-1, 0, 4096, syscall.PROT_READ|syscall.PROT_WRITE|syscall.PROT_EXEC, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	case "grow":
		all := unsafe.Slice(&r.Out[0], 16<<20) //nolint:gosec // Beyond the memory, on purpose.
		all[len(all)-1] = 1
	case "eat":
		var kept [][]byte
		for range 1024 {
			kept = append(kept, make([]byte, 64<<20))
		}
		r.Out[0] = byte(len(kept))
	case "exit":
		os.Exit(7)
	case "lie":
		return errkind.Errorf(errkind.Unavailable, "no\nsuch \x1b[31mthing%s", strings.Repeat("!", 5000))
	case "threads":
		var many sync.WaitGroup
		for i := range 20 {
			many.Go(func() {
				_, _ = syscall.Write(2, nil) // a call that takes a thread
				r.Out[i] = byte(len(bytes.Repeat([]byte{1}, 1<<20)) >> 20)
			})
		}
		many.Wait()
	case "environment":
		copy(r.Out, strings.Join(os.Environ(), "\n"))
	}
	return nil
}

func newPool(t *testing.T, mode isolate.Mode, slots int, timeout time.Duration) *isolate.Pool {
	t.Helper()
	p, err := isolate.New(isolate.Config{Mode: mode, Slots: slots, Timeout: timeout, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// do has a decoder do something; its picture is of the size that the header says.
func do(ctx context.Context, p *isolate.Pool, what string) ([]byte, error) {
	h := imagekernel.Header{Format: imagekernel.FormatGIF, W: 16, H: 16, Orientation: 1}
	return p.Join(func(int64) {}).Decode(ctx, imagekernel.FormColor, []byte("do:"+what), h, nil)
}

// works checks that a pool decodes as if nothing had been.
func works(t *testing.T, p *isolate.Pool) {
	t.Helper()
	data := picture(t, "PNG")
	h := probe(t, data)
	want, err := imagekernel.Decode(data, h, nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := p.Join(func(int64) {}).Decode(t.Context(), imagekernel.FormColor, data, h, nil)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("afterwards a PNG is not decoded as before: %v", err)
	}
}

// Whatever a file makes of its decoder is the error of that sample alone, and says what it was.
func TestADecoderThatIsTakenOverIsAnErrorOfItsSample(t *testing.T) {
	forbidden := "GIF: its isolated decoder made a system call that decoders may not make and was killed"
	for what, want := range map[string]struct {
		kind errkind.Kind
		text string
	}{
		"crash":      {errkind.BadData, "GIF: its isolated decoder crashed: unexpected fault address 0x"},
		"panic":      {errkind.BadData, "GIF: its isolated decoder crashed: panic: a decoder panics (exit status 2)"},
		"open":       {errkind.BadData, forbidden},
		"socket":     {errkind.BadData, forbidden},
		"exec":       {errkind.BadData, forbidden},
		"fork":       {errkind.BadData, forbidden},
		"kill":       {errkind.BadData, forbidden},
		"ptrace":     {errkind.BadData, forbidden},
		"executable": {errkind.BadData, forbidden},
		"grow":       {errkind.BadData, "GIF: its isolated decoder crashed"},
		"eat":        {errkind.Exhausted, "GIF: its isolated decoder needed more than the 2048 MiB of memory that it may take"},
		"exit":       {errkind.BadData, "GIF: its isolated decoder crashed (exit status 7)"},
		"lie":        {errkind.BadData, "no such  [31mthing!!!"},
	} {
		t.Run(what, func(t *testing.T) {
			p := newPool(t, isolate.Format, 1, 0)
			_, err := do(t.Context(), p, what)
			if errkind.Of(err) != want.kind || !strings.HasPrefix(err.Error(), want.text) || len(err.Error()) > 1100 {
				t.Errorf("the error is %v (%v), want %v (%v)", err, errkind.Of(err), want.text, want.kind)
			}
			works(t, p)
		})
	}
}

// One that does not come back is killed at its deadline: whether it computes or waits.
func TestADecoderThatHangsIsKilled(t *testing.T) {
	for _, what := range []string{"hang", "sleep"} {
		p := newPool(t, isolate.Format, 1, 300*time.Millisecond)
		_, err := do(t.Context(), p, what)
		if want := "GIF: its isolated decoder took longer than 300ms and was killed"; errkind.Of(err) != errkind.Exhausted || err.Error() != want {
			t.Errorf("%s: the error is %v (%v), want %s", what, err, errkind.Of(err), want)
		}
	}
}

// A caller who gives up, and the end of the pool, end what a decoder does.
func TestCallsEndWithTheirContextAndWithThePool(t *testing.T) {
	p := newPool(t, isolate.Format, 2, 0)
	ctx, cancel := context.WithCancel(t.Context())
	answers := make(chan error, 2)
	go func() { _, err := do(ctx, p, "sleep"); answers <- err }()
	cancel()
	if err := <-answers; errkind.Of(err) != errkind.Canceled {
		t.Errorf("the error of a caller who gave up is %v (%v)", err, errkind.Of(err))
	}
	works(t, p)
	go func() { _, err := do(t.Context(), p, "hang"); answers <- err }()
	go func() { _, err := do(t.Context(), p, "sleep"); answers <- err }()
	for p.Stats().Processes < 2 {
		runtime.Gosched()
	}
	p.Close()
	for range 2 {
		if err := <-answers; err == nil {
			t.Error("a call outlived its pool")
		}
	}
	if s := p.Stats(); s.Processes > 2 {
		t.Errorf("%d processes", s.Processes)
	}
	if _, err := do(t.Context(), p, "threads"); errkind.Of(err) != errkind.Canceled {
		t.Errorf("the error of a closed pool is %v", err)
	}
}

// The lock leaves a decoder what it needs: threads, memory. And it has nothing of this process's environment.
func TestALockedDecoderHasThreadsAndMemoryAndNoEnvironment(t *testing.T) {
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	p := newPool(t, isolate.Format, 1, 0)
	out, err := do(t.Context(), p, "threads")
	if err != nil || !bytes.Equal(out[:20], bytes.Repeat([]byte{1}, 20)) {
		t.Errorf("threads: %v, %v", out, err)
	}
	out, err = do(t.Context(), p, "environment")
	if err != nil || bytes.Contains(out, []byte("secret")) || !bytes.Contains(out, []byte("GOMAXPROCS=1")) {
		t.Errorf("the environment is %q (%v)", out, err)
	}
}

// Many callers share the processes, some of which die.
func TestManyCallersAtOnce(t *testing.T) {
	p := newPool(t, isolate.All, 3, 0)
	var callers sync.WaitGroup
	for i := range 12 {
		callers.Go(func() {
			if i%4 == 0 {
				if _, err := do(t.Context(), p, "exit"); errkind.Of(err) != errkind.BadData {
					t.Error(err)
				}
				return
			}
			works(t, p)
		})
	}
	callers.Wait()
	if s := p.Stats(); s.Processes > 3 || s.Died != 6 || s.Started > 9 {
		t.Errorf("%+v", s)
	}
}

// Nothing is left of a pool: no process, file or mapping.
func TestAPoolLeavesNothing(t *testing.T) {
	before := files(t)
	p := newPool(t, isolate.All, 2, 0)
	works(t, p)
	_, _ = do(t.Context(), p, "exit")
	works(t, p)
	pids := children(t)
	if len(pids) == 0 {
		t.Error("there are no decoder processes")
	}
	p.Close()
	if after := files(t); after != before {
		t.Errorf("%d files are open, before it were %d", after, before)
	}
	if left := children(t); len(left) != 0 {
		t.Errorf("processes %v are left", left)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil || bytes.Contains(maps, []byte("memfd:millrace-decoder")) {
		t.Errorf("shared memory is still mapped (%v)", err)
	}
}

// A decoder does not outlive the process that started it, not even one that is killed while it decodes.
func TestDecodersEndWithTheirParent(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", parentRole)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscan(out, &pid); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err := poll(fd); err != nil { // until the process has ended
		t.Fatal(err)
	}
}

// beParent starts a decoder that hangs, says which process it is, and waits to be killed.
func beParent() {
	p, err := isolate.New(isolate.Config{Mode: isolate.Format, Slots: 1, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		panic(err)
	}
	go func() { _, _ = do(context.Background(), p, "hang") }()
	entries, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		panic(err)
	}
	for _, e := range entries {
		if text, err := os.ReadFile(e); err == nil && len(bytes.TrimSpace(text)) > 0 {
			fmt.Println(string(text))
		}
	}
	select {}
}

// Where the filter for system calls can't be had, nothing is decoded.
func TestWithoutALockThereIsNoPool(t *testing.T) {
	for _, c := range []struct {
		command []string
		says    string
	}{
		{[]string{"/bin/sh", "-c", "echo no seccomp here >&2; exit 3"}, "decoding in isolated processes (isolate all) is not possible here: no seccomp here"},
		{[]string{"/bin/true"}, "decoding in isolated processes (isolate all) is not possible here: its process crashed (exit status 0)"},
		{[]string{"/nowhere"}, "decoding in isolated processes (isolate all) is not possible here: fork/exec /nowhere: no such file or directory"},
	} {
		p, err := isolate.New(isolate.Config{Mode: isolate.All, Slots: 1, Command: c.command, Logger: slog.New(slog.DiscardHandler)})
		if p != nil || errkind.Of(err) != errkind.Unavailable || err.Error() != c.says {
			t.Errorf("%v: %v (%v)", c.command, err, errkind.Of(err))
		}
	}
	if _, err := isolate.ParseMode("formats"); errkind.Of(err) != errkind.Invalid || !strings.Contains(err.Error(), `did you mean "format"?`) {
		t.Errorf("the error is %v", err)
	}
}

// What a large image takes beyond the reserve is charged meanwhile, and given back by the process.
func TestLargeImagesAreCharged(t *testing.T) {
	p := newPool(t, isolate.All, 2, 0)
	if p.Reserve() != 2*isolate.ReserveBytes {
		t.Errorf("the reserve is %d", p.Reserve())
	}
	var most, now int64
	s := p.Join(func(delta int64) { now += delta; most = max(most, now) })
	bmp := blank(3000, 2000)
	h := probe(t, bmp)
	if _, err := s.Decode(t.Context(), imagekernel.FormColor, bmp, h, nil); err != nil {
		t.Fatal(err)
	}
	if want := int64(16*3000*2000+len(bmp)) - isolate.ReserveBytes; most != want || now != 0 {
		t.Errorf("it was charged %d and still is %d, want %d", most, now, want)
	}
	for _, pid := range children(t) {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			t.Fatal(err)
		}
		var shared, private int64
		for line := range strings.Lines(string(text)) {
			_, _ = fmt.Sscanf(line, "RssShmem: %d", &shared)
			_, _ = fmt.Sscanf(line, "RssAnon: %d", &private)
		}
		t.Logf("process %d keeps %d kB private, %d kB shared", pid, private, shared)
		if shared<<10 > isolate.ReserveBytes/2 {
			t.Errorf("a process keeps %d kB of shared memory after a large image", shared)
		}
	}
	huge := imagekernel.Header{Format: imagekernel.FormatPNG, W: 50_000, H: 50_000}
	if _, err := s.Decode(t.Context(), imagekernel.FormColor, nil, huge, nil); errkind.Of(err) != errkind.Exhausted {
		t.Errorf("the error is %v", err)
	}
}

// blank is a BMP of that size.
func blank(w, h int) []byte {
	out := make([]byte, 54+3*w*h)
	copy(out, "BM")
	binary.LittleEndian.PutUint32(out[2:], uint32(len(out)))
	binary.LittleEndian.PutUint32(out[10:], 54)
	binary.LittleEndian.PutUint32(out[14:], 40)
	binary.LittleEndian.PutUint32(out[18:], uint32(w))
	binary.LittleEndian.PutUint32(out[22:], uint32(h))
	binary.LittleEndian.PutUint16(out[26:], 1)
	binary.LittleEndian.PutUint16(out[28:], 24)
	return out
}
