package transport_test

import (
	"context"
	"io"
	"os"
	"os/exec"
	"runtime/pprof"
	"testing"
	"time"
	"bufio"
	"encoding/json"

	"github.com/millrace/millrace/bench/transport"
)

func TestScratch(t *testing.T) {
	rows := os.Getenv("ROWS")
	net := os.Getenv("NET")
	role := os.Getenv("PROF")
	dir := t.TempDir()
	sv := exec.Command(os.Args[0], "--kind", "ours", "--role", "server", "--rows", rows, "--network", net, "--dir", dir)
	sv.Env = append(os.Environ(), "MILLRACE_TEST_SIDE=1", "PROFILE="+map[bool]string{true: "/tmp/mr/wire-server.prof"}[role == "server"])
	in, _ := sv.StdinPipe()
	out, _ := sv.StdoutPipe()
	sv.Stderr = os.Stderr
	if err := sv.Start(); err != nil { t.Fatal(err) }
	line, _ := bufio.NewReader(out).ReadBytes('\n')
	var r struct{ Address string }
	_ = json.Unmarshal(line, &r)
	go io.Copy(io.Discard, out)
	n := 256
	if rows == "7" { n = 7 }
	pr, pw := io.Pipe()
	f, _ := os.Create("/tmp/mr/wire-client.prof")
	pprof.StartCPUProfile(f)
	go func() { pw.Write([]byte("\n")); time.Sleep(5 * time.Second); pw.Write([]byte("\n")); pw.Close() }()
	err := transport.Side{Kind: "ours", Role: "client", Network: net, Dir: dir, Address: r.Address, Rows: n}.Run(context.Background(), pr, os.Stdout)
	pprof.StopCPUProfile(); f.Close()
	in.Close()
	sv.Wait()
	if err != nil { t.Fatal(err) }
}
