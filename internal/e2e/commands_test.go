package e2e

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
)

// decode reads the JSON that is all of a command's answer.
func decode(t *testing.T, text string) map[string]any {
	t.Helper()
	if strings.Count(text, "\n") != 1 || !strings.HasSuffix(text, "\n") {
		t.Fatalf("not one line: %q", text)
	}
	var v map[string]any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v
}

// expect compares fields of a JSON object.
func expect(t *testing.T, got, want map[string]any) {
	t.Helper()
	for key, v := range want {
		if got[key] != v {
			t.Errorf("%s is %v, want %v", key, got[key], v)
		}
	}
}

func matches(t *testing.T, text string, patterns ...string) {
	t.Helper()
	for _, p := range patterns {
		if !regexp.MustCompile(p).MatchString(text) {
			t.Errorf("nothing matches %s in:\n%s", p, text)
		}
	}
}

func TestIndexAnswersAlikeEachTimeAndReadsOnce(t *testing.T) {
	p := newPlace(t)
	source := shards(t, p.path("data"), 3, 20)
	first := p.millrace("index", source)
	if first.code != 0 || first.errors != "" {
		t.Fatalf("exit code %d\n%s", first.code, first.errors)
	}
	matches(t, first.out, `^3 shards · 60 samples · [\d.]+ kB · webdataset · manifest [0-9a-f]{12}… \([\d.]+ s\)\n$`)

	// A shard that was read anew would show: nothing can be read from these any more.
	for _, name := range []string{"train-000000.tar", "train-000001.tar"} {
		if a := p.run(nil, "/bin/sh", "-c", `t=$(stat -c %y "$1") && dd if=/dev/zero of="$1" conv=notrunc bs=1024 count=4 2>/dev/null && touch -d "$t" "$1"`,
			"sh", p.path("data", name)); a.code != 0 {
			t.Fatal(a.errors)
		}
	}
	second := decode(t, p.must("index", "--json", source))
	expect(t, second, map[string]any{"format": "webdataset", "shards": 3.0, "samples": 60.0})
	id, _ := second["manifest"].(string)
	if !strings.Contains(first.out, id[:12]) {
		t.Errorf("the manifest is %s at the second time; the first said %s", id, first.out)
	}
}

func TestIndexTakesImageFolders(t *testing.T) {
	p := newPlace(t)
	folder(t, p.path("images"), 3, 4)
	expect(t, decode(t, p.must("index", "--json", "images")), map[string]any{"format": "folder", "samples": 12.0})
	recipe := p.write("images.yaml", "source: images\noperators:\n  - decode_image: {field: image}\n  - center_crop: {field: image, size: 8}\n")
	expect(t, decode(t, p.must("run", "--json", "--batch", "5", "--tail", "short", recipe)), map[string]any{"rows": 12.0, "batches": 3.0})
}

func TestIndexDrawsABarOnATerminalAlone(t *testing.T) {
	p := newPlace(t)
	source := shards(t, p.path("data"), 2, 8)
	shown, out := p.onTerminal("index", "--json", source)
	matches(t, shown, `indexing .*2 of 2 shards · 16 samples, [\d.]+ kB`)
	expect(t, decode(t, out), map[string]any{"samples": 16.0})
	if a := p.millrace("index", source); a.errors != "" {
		t.Errorf("a bar without a terminal: %q", a.errors)
	}
}

func TestPlanShowsTheChainAndItsDefaults(t *testing.T) {
	p, recipe := imageSet(t, 2, 32)
	matches(
		t, p.must("plan", recipe, "--batch", "16", "--for", "1000/s"),
		`(?m)^recipe.yaml · 2 shards · 64 samples · [\d.]+ kB · manifest [0-9a-f]{6}…$`,
		`(?m)^  stage +operators +µs/sample +bytes in → out +runs on$`,
		`(?m)^  read +webdataset +\d+ .* any worker$`,
		`(?m)^  preprocess +decode_image\+random_resized_crop\+random_horizontal_flip \(fused\) +\d+ .* → 776 B +any worker \(cpu\)$`,
		`(?m)^measured  on \d+ samples of the source, one after the other$`,
		`(?m)^place     all stages of a partition run on the worker that reads it; 776 B a sample cross to the sidecar, `,
		`(?m)^for 1,000 samples/s: \d+\.\d cores of preprocessing, 776 kB/s to the trainer, [\d.]+ [kM]B/s from the store$`,
		`(?m)^  feed +batch 16: image uint8 tensor \[3,16,16\] \(CHW\), label int64 +.* sidecar$`,
		`(?m)^order +block: 4 samples a block, 2 blocks a window, 2 windows at a time, 4 samples a partition; a batch of 16 mixes ≈\d+ of 16 blocks$`,
		`(?m)random_horizontal_flip\(field=image, p=0.5\)$`,
	)
	got := decode(t, p.must("plan", recipe, "--json", "--shuffle", "full"))
	expect(t, got, map[string]any{"samples": 64.0, "shards": 2.0, "keeps_rows": true})
	if o, _ := got["order"].(map[string]any); o["shuffle"] != "full" || o["lanes"] != 1.0 {
		t.Errorf("order is %v", got["order"])
	}
}

func TestRunDrainsARecipe(t *testing.T) {
	p, recipe := imageSet(t, 2, 32)
	a := p.millrace("run", recipe, "--to", "null", "--batch", "10")
	if a.code != 0 || a.errors != "" {
		t.Errorf("exit code %d\n%s", a.code, a.errors)
	}
	matches(t, a.out, `^1 epoch · 64 rows in 7 batches · [\d,]+ rows/s · [\d.]+ .?B/s · first batch after [\d.]+ s\n$`)
	for _, c := range []struct {
		tail            string
		batches, rows   float64
		epochs, shuffle string
	}{
		{"pad", 14, 128, "2", "full"}, {"drop", 6, 60, "1", "none"}, {"short", 7, 64, "1", "block"},
	} {
		expect(
			t, decode(t, p.must("run", recipe, "--json", "--batch", "10", "--tail", c.tail, "--epochs", c.epochs, "--shuffle", c.shuffle)),
			map[string]any{"batches": c.batches, "rows": c.rows},
		)
	}
}

func TestStatusAndStopOfAJob(t *testing.T) {
	p, recipe := imageSet(t, 2, 32)
	dispatcher := p.start(millrace(), "dispatcher", "--listen", "unix://"+p.path("d"))
	side := p.start(sidecar(), "--dispatcher", "unix://"+p.path("d"), "--listen", "unix://"+p.path("s"))
	p.start(millrace(), "worker", "--name", "w0", "--dispatcher", "unix://"+p.path("d"), "--listen", "unix://"+p.path("w"), "--slots", "gpu=2")
	p.must("run", recipe, "--endpoint", side.address(0), "--job", "resnet", "--batch", "16")

	// The dispatcher and every sidecar answer alike.
	for _, endpoint := range []string{"unix://" + dispatcher.address(0), side.address(0)} {
		matches(
			t, p.must("status", "--endpoint", endpoint),
			`(?m)^JOB +STATE +EPOCH +STEP +RANKS +HELD +SOURCE\nresnet +idle +0 +4 of 4 +1 gone +0 B +/.*tar$`,
			`(?m)^WORKER +STATE +ADDRESS +SLOTS +RUNNING +HELD +RSS +SAMPLES\nw0 +ready +unix:/.*/w +\d+ cpu, 2 gpu +0 `,
		)
		got := decode(t, p.must("status", "--json", "--endpoint", endpoint))
		jobs, _ := got["jobs"].([]any)
		if len(jobs) != 1 {
			t.Fatalf("jobs are %v", got["jobs"])
		}
		job, _ := jobs[0].(map[string]any)
		expect(t, job, map[string]any{"name": "resnet", "state": "idle", "global_batch": 16.0, "world_size": 1.0})
	}

	for _, endpoint := range []string{"unix://" + dispatcher.address(0), side.address(0)} {
		if a := p.millrace("stop", "resnet", "--endpoint", endpoint); a.code != 0 || a.out != "" {
			t.Errorf("stop: %+v", a)
		}
		matches(t, p.must("status", "--endpoint", endpoint), `^no jobs\n`)
		p.must("run", recipe, "--endpoint", side.address(0), "--job", "resnet")
	}
	a := p.millrace("stop", "resent", "--endpoint", side.address(0))
	if a.code != 1 {
		t.Errorf("stop of a job that is not there: exit code %d", a.code)
	}
	matches(t, a.errors, `^error: there is no job "resent"; did you mean "resnet"\?\n$`)
}

func TestHelpAndVersionAreAnswers(t *testing.T) {
	p := newPlace(t)
	for _, args := range [][]string{{}, {"--help"}, {"help"}, {"local", "--help"}, {"run", "-h"}, {"bench"}} {
		if a := p.millrace(args...); a.code != 0 || a.errors != "" || a.out == "" {
			t.Errorf("millrace %v: %+v", args, a)
		}
	}
	for _, binary := range []string{millrace(), sidecar()} {
		a := p.run(nil, binary, "--version")
		if a.code != 0 || a.errors != "" {
			t.Errorf("%s: %+v", binary, a)
		}
		matches(t, a.out, `^millrace(-sidecar)? version \S+\n$`)
		if a := p.run(nil, binary, "--help"); a.code != 0 || !strings.Contains(a.out+a.errors, "--budget") && !strings.Contains(a.out, "sidecar") {
			t.Errorf("%s --help: %+v", binary, a)
		}
	}
}

// A second look says what went through since the first: here nothing, a job being idle.
func TestTopLooksAgain(t *testing.T) {
	p, recipe := imageSet(t, 1, 32)
	r := p.start(millrace(), "local", "--socket", p.path("s"))
	p.must("run", recipe, "--endpoint", r.address(0), "--job", "resnet", "--batch", "16")
	matches(
		t, p.must("top", "--endpoint", r.address(0), "--interval", "50ms", "--count", "2"),
		`(?s)^JOB +STATE +EPOCH +STEP +ROWS/S +RANKS.*resnet +idle +0 +2 of 2 +- .*SAMPLES +SAMPLES/S\n.* \d+ +-\n.*resnet +idle +0 +2 of 2 +0\.0 .* \d+ +[\d.]+\n$`,
	)
	lines := strings.Split(strings.TrimSpace(p.must("top", "--json", "--endpoint", r.address(0), "--interval", "50ms", "--count", "3")), "\n")
	if len(lines) != 3 {
		t.Fatalf("three looks are %d lines", len(lines))
	}
	for _, line := range lines {
		if jobs, _ := decode(t, line+"\n")["jobs"].([]any); len(jobs) != 1 {
			t.Errorf("jobs are %v", jobs)
		}
	}
	for _, wrong := range [][]string{{"--interval", "0s"}, {"--count", "-1"}} {
		a := p.millrace(append([]string{"top", "--endpoint", r.address(0)}, wrong...)...)
		if a.code != 2 {
			t.Errorf("top %v: exit code %d", wrong, a.code)
		}
	}
}

func TestPreviewDrawsSamplesAndWhatIsBad(t *testing.T) {
	p, recipe := imageSet(t, 2, 8)
	p.must("preview", recipe, "--samples", "4", "--seed", "5")
	first := readFile(t, p.path("recipe.png"))
	matches(t, p.must("preview", recipe, "--samples", "4", "--seed", "5", "--out", "again.png"), `^4 samples, 0 bad · again.png\n$`)
	if again := readFile(t, p.path("again.png")); again != first || !strings.HasPrefix(again, "\x89PNG") {
		t.Errorf("sheets of %d and %d bytes differ", len(first), len(again))
	}
	_, shown := p.onTerminal("preview", recipe, "--samples", "1")
	matches(t, shown, `recipe.png`) // not kitty

	bad := p.write("bad.yaml", strings.Replace(readFile(t, recipe), "decode_image: {field: image}", "decode_image: {field: image}\n  - random_crop: {field: image, size: 1000}", 1))
	matches(t, p.must("preview", bad, "--samples", "3"), `^3 samples, 3 bad · bad.png\n(bad: sample .*\.tar!.*: random_crop: image of .* is smaller than the crop.*\n){3}$`)
	got := decode(t, p.must("preview", "--json", recipe, "--samples", "2"))
	if samples, _ := got["samples"].([]any); len(samples) != 2 {
		t.Errorf("the answer is %v", got)
	}
	for _, wrong := range [][]string{{"preview", recipe, "--samples", "0"}, {"preview", recipe, "--shuffle", "well"}, {"preview"}} {
		if a := p.millrace(wrong...); a.code != 2 {
			t.Errorf("%v: exit code %d: %s", wrong, a.code, a.errors)
		}
	}
}
