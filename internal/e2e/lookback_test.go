package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
)

// rowsOfFile reads a batch that a command has written.
func rowsOfFile(t *testing.T, path string) (out []row) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	r, err := ipc.NewFileReader(f)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	for i := range r.NumRecords() {
		rec, err := r.RecordBatch(i)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, rowsOf(t, rec)...)
	}
	return out
}

// audited are the rows of an audit, without their bytes.
func audited(t *testing.T, answer string) (out []row) {
	t.Helper()
	rows, _ := decode(t, answer)["rows"].([]any)
	for _, r := range rows {
		m, _ := r.(map[string]any)
		sample, _ := m["sample"].(float64)
		key, _ := m["key"].(string)
		valid, _ := m["valid"].(bool)
		out = append(out, row{Sample: int64(sample), Key: key, Valid: valid})
	}
	return out
}

// namesOf are rows without their bytes.
func namesOf(rows []row) []row {
	out := make([]row, len(rows))
	for i, r := range rows {
		out[i] = row{Sample: r.Sample, Key: r.Key, Valid: r.Valid}
	}
	return out
}

// What the ranks got of any step can be told, and made again to the byte, from the job's description alone: with the job
// there, and from its recipe and settings when nobody runs any more. A recipe that changes the number of rows is no exception.
func TestAnyStepCanBeLookedAtAgain(t *testing.T) {
	for _, operators := range []string{"", "  - five_crop: {field: image, size: 12}\n"} {
		p := newPlace(t)
		text := strings.Replace(imageRecipe(shards(t, p.path("data"), 2, 31)), "partition:", operators+"partition:", 1)
		recipe := p.write("recipe.yaml", text)
		r := p.start(millrace(), "local", "--socket", p.path("s"))
		got := readRanks(t, recipe, 16, [2]*grpc.ClientConn{dial(t, r.address(0)), dial(t, r.address(0))}, idle)
		look := func(epoch, rank, step int, job ...string) {
			at := []string{"--epoch", fmt.Sprint(epoch), "--step", fmt.Sprint(step), "--rank", fmt.Sprint(rank)}
			want := got[epoch][rank][step]
			audit := p.must(append(append([]string{"audit", "--json"}, at...), job...)...)
			if diff := cmp.Diff(namesOf(want), audited(t, audit)); diff != "" {
				t.Errorf("audit of %v %v (-got by the rank +told):\n%s", at, job, diff)
			}
			file := p.path("b.arrow")
			p.must(append(append([]string{"batch", "--out", file}, at...), job...)...)
			if diff := cmp.Diff(want, rowsOfFile(t, file)); diff != "" {
				t.Errorf("batch of %v %v (-got by the rank +made again):\n%s", at, job, diff)
			}
		}
		last := len(got[1][1]) - 1
		look(0, 0, 1, "train", "--endpoint", r.address(0))
		look(1, 1, last, "train", "--endpoint", r.address(0))
		r.stop()
		look(1, 0, last, "--recipe", recipe, "--global-batch", "16", "--world-size", "2", "--seed", "7")
	}
}

// A partition that is made again while its job runs is compared with what the job's own workers reported of it.
func TestAPartitionCanBeMadeAgain(t *testing.T) {
	p, recipe := imageSet(t, 2, 40)
	r := p.start(millrace(), "local", "--socket", p.path("s"))
	s := open(t, dial(t, r.address(0)), ask(t, recipe, "train", 0, 1, 8))
	looked := false
	readWith(t, s, 0, func(step int) {
		if step != 2 {
			return
		}
		looked = true
		job := []string{"--job", "train", "--endpoint", r.address(0)}
		again := p.must(append([]string{"rederive", "0/5/0", "--verify"}, job...)...)
		matches(t, again, `^0/5/0: 4 rows, .*, hash [0-9a-f]{32}\nequal to what the dispatcher has on record\n$`)
		again = p.must(append([]string{"rederive", "99999/3", "--verify"}, job...)...)
		matches(t, again, `^99999/3/0: 4 rows, .*\nnothing is on record of it: made twice instead, with and without SIMD, and equal\n$`)
		told := p.must(append([]string{"lineage", "0/5"}, job...)...)
		matches(t, told, `(?s)^partition +0/5 of job train\nmanifest +[0-9a-f]{32}\nplan +[0-9a-f]{32}, seed 7\norder +block, positions 20 to 23\nfeeds +steps 2 to 2\noutput +0/5/0: 4 rows, .*, on worker .*\nSAMPLE +KEY\n(\d+ +train-00000\d\.tar!\d{6}\n){4}$`)
	})
	if !looked {
		t.Error("nobody looked")
	}
	for _, wrong := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"rederive", "0/20", "--job", "train"}, 1, `an epoch of job "train" has 20 source partitions; there is no 0/20`},
		{[]string{"lineage", "five", "--job", "train"}, 2, `five`},
		{[]string{"lineage", "0/5"}, 2, `name a job, or give its --recipe and settings`},
		{[]string{"audit", "train", "--step", "10"}, 1, `epoch 0 of job "train" has no step 10`},
		{[]string{"audit", "train", "--rank", "1"}, 2, `job "train" has 1 ranks; there is no rank 1`},
		{[]string{"audit", "trian"}, 1, `there is no job "trian"; did you mean "train"\?`},
		{[]string{"batch", "train"}, 2, `say with --out where the batch is to be written`},
		{[]string{"batch", "--recipe", recipe, "--world-size", "3", "--out", p.path("b")}, 2, `global batch of 64 rows cannot be cut into 3 equal parts`},
	} {
		a := p.millrace(append(wrong.args, "--endpoint", r.address(0))...)
		if a.code != wrong.code {
			t.Errorf("%v: exit code %d, want %d", wrong.args, a.code, wrong.code)
		}
		matches(t, a.errors, wrong.says)
	}
	if _, err := os.Stat(p.path("b")); !os.IsNotExist(err) {
		t.Errorf("a command that failed left a file (%v)", err)
	}
}
