package e2e

import (
	"encoding/json"
	"fmt"
	"hash/crc32"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/feed/client"
)

// foreignBatch is what clients of other languages say of a batch: the CRC-32 is that of the pixels.
type foreignBatch struct {
	Sequence uint64  `json:"sequence"`
	Labels   []int64 `json:"labels"`
	Image    uint32  `json:"image"`
}

// interop is the folder that `make setup-interop` fills.
func interop(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(os.Getenv("MILLRACE_INTEROP"))
	if err != nil || os.Getenv("MILLRACE_INTEROP") == "" {
		t.Fatal("MILLRACE_INTEROP names no folder; run make setup-interop and set it to .cache/interop")
	}
	return dir
}

// Clients that share no code with Millrace (Arrow's Go client of an older major version, its Java client) find a job, read a rank,
// go on from where they broke off and cancel, by standard calls alone.
func TestForeignClientsReadResumeAndCancel(t *testing.T) {
	p := newPlace(t)
	text := strings.Replace(imageRecipe(shards(t, p.path("data"), 4, 150)), "size: 16}", "size: 224}", 1)
	recipe := p.write("recipe.yaml", text)
	r := p.start(millrace(), "local", "--socket", p.path("s"), "--listen", "127.0.0.1:0")
	var want []foreignBatch
	own := open(t, dial(t, r.address(0)), ask(t, recipe, "own", 0, 1, 40))
	err := own.Read(t.Context(), own.Info.Start, func(b client.Batch) error {
		rec := b.Record
		labels, _ := rec.Column(rec.Schema().FieldIndices("label")[0]).(*array.Int64)
		image := rec.Column(rec.Schema().FieldIndices("image")[0])
		if x, ok := image.(array.ExtensionArray); ok {
			image = x.Storage()
		}
		list, _ := image.(*array.FixedSizeList)
		pixels, _ := list.ListValues().(*array.Uint8)
		want = append(want, foreignBatch{Sequence: uint64(len(want)), Labels: append([]int64{}, labels.Int64Values()...), Image: crc32.ChecksumIEEE(pixels.Uint8Values())})
		return nil
	})
	if err != nil || len(want) != 15 {
		t.Fatalf("%d batches: %v", len(want), err)
	}
	if err := own.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	host, port, err := net.SplitHostPort(r.address(1))
	if err != nil {
		t.Fatal(err)
	}
	dir := interop(t)
	java, err := filepath.Abs(filepath.Join(root, "clients/interop/java/Interop.java"))
	if err != nil {
		t.Fatal(err)
	}
	for i, command := range [][]string{
		{filepath.Join(dir, "interop-go"), r.address(1)},
		{"java", "--add-opens=java.base/java.nio=ALL-UNNAMED", "-cp", filepath.Join(dir, "java", "*"), java, host, port},
	} {
		s := open(t, dial(t, r.address(0)), ask(t, recipe, fmt.Sprintf("foreign%d", i), 0, 1, 40))
		a := p.run(nil, command[0], command[1:]...)
		if a.code != 0 {
			t.Errorf("%s: exit code %d\n%s", command[0], a.code, a.errors)
			continue
		}
		var got struct {
			Jobs           []string
			Endpoints      int
			Whole, Resumed []foreignBatch
			Canceled       bool
		}
		if err := json.Unmarshal([]byte(a.out), &got); err != nil {
			t.Fatalf("%s: %v: %s", command[0], err, a.out)
		}
		if len(got.Jobs) != 1 || got.Endpoints != 1 || !got.Canceled {
			t.Errorf("%s: jobs %v, %d endpoints, cancelled: %v", command[0], got.Jobs, got.Endpoints, got.Canceled)
		}
		if diff := cmp.Diff(want, got.Whole); diff != "" {
			t.Errorf("%s read another epoch (-own +foreign):\n%.2000s", command[0], diff)
		}
		if diff := cmp.Diff(want, got.Resumed); diff != "" {
			t.Errorf("%s went on with other batches (-own +foreign):\n%.2000s", command[0], diff)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	r.stop()
}
