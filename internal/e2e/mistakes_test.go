package e2e

import (
	"bytes"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/millrace/millrace/loader/dataset/datasettest"
)

// mistake is a command that cannot work, and what it says.
type mistake struct {
	name string
	args []string
	env  []string
	code int
	says string // a pattern for the whole line after "error: "
}

// check runs each command: nothing goes to standard output, and standard error has one line, followed by where to find
// help if the command line itself was wrong.
func check(t *testing.T, p *place, binary string, mistakes []mistake) {
	t.Helper()
	for _, m := range mistakes {
		t.Run(m.name, func(t *testing.T) {
			a := p.run(m.env, binary, m.args...)
			if a.code != m.code {
				t.Errorf("exit code %d, want %d", a.code, m.code)
			}
			if a.out != "" {
				t.Errorf("on standard output: %s", a.out)
			}
			text := strings.TrimSuffix(a.errors, "\n")
			if m.code == 2 {
				var help string
				text, help, _ = strings.Cut(text, "\n")
				if !regexp.MustCompile(`^Run millrace(-sidecar)?( [a-z0-9]+)* --help for usage\.$`).MatchString(help) {
					t.Errorf("after the error: %q", help)
				}
			}
			if !regexp.MustCompile(`^error: (?:` + m.says + `)$`).MatchString(text) {
				t.Errorf("it says\n%s\nwant\nerror: %s", text, m.says)
			}
		})
	}
}

func TestWrongCommandLines(t *testing.T) {
	p, recipe := imageSet(t, 1, 32)
	check(t, p, millrace(), []mistake{
		{name: "unknown command", args: []string{"runn", recipe}, code: 2, says: `unknown command "runn"; did you mean "run"\?`},
		{name: "unknown flag", args: []string{"run", recipe, "--bach", "3"}, code: 2, says: `unknown flag: --bach; did you mean "batch"\?`},
		{name: "unknown flag of a role", args: []string{"local", "--sockt", "x"}, code: 2, says: `unknown flag: --sockt; did you mean "socket"\?`},
		{name: "flag of the wrong type", args: []string{"run", recipe, "--batch", "many"}, code: 2, says: `invalid argument "many" for "--batch" flag: .*`},
		{name: "size of the wrong form", args: []string{"run", recipe, "--feed-budget", "much"}, code: 2, says: `.*"much" is not a size; write 256MiB, 2GB or a number of bytes`},
		{name: "no recipe", args: []string{"run"}, code: 2, says: `.* write millrace run RECIPE \[flags\]`},
		{name: "no source", args: []string{"index"}, code: 2, says: `.* write millrace index URI… \[flags\]`},
		{name: "unknown shuffle", args: []string{"run", recipe, "--shuffle", "blok"}, code: 2, says: `unknown shuffle "blok"; did you mean block\? .*`},
		{name: "unknown shuffle of a plan", args: []string{"plan", recipe, "--shuffle", "blok"}, code: 2, says: `unknown shuffle "blok"; did you mean block\? .*`},
		{name: "unknown tail", args: []string{"run", recipe, "--tail", "pd"}, code: 2, says: `unknown tail "pd"; did you mean pad\? .*`},
		{name: "unknown sink", args: []string{"run", recipe, "--to", "disk"}, code: 2, says: `--to "disk": batches can only go to null`},
		{name: "no rows", args: []string{"run", recipe, "--batch", "0"}, code: 2, says: `--epochs, --batch and --prefetch are at least 1, .*`},
		{name: "a rate that is none", args: []string{"plan", recipe, "--for", "fast"}, code: 2, says: `--for "fast" is no number of samples a second, such as 2500/s`},
		{name: "a rate without times", args: []string{"plan", recipe, "--for", "9", "--measure", "0"}, code: 2, says: `--for needs measured times; leave --measure 0 out`},
		{name: "a policy for functions", args: []string{"run", recipe, "--allow-python", "import"}, code: 2, says: `--allow-python "import"; did you mean "imports"\?`},
		{name: "no rows of a plan", args: []string{"plan", recipe, "--batch", "-1"}, code: 2, says: `--batch is at least 1, not -1`},
		{name: "too small a budget", args: []string{"run", recipe, "--feed-budget", "1MiB"}, code: 2, says: `a budget of .* is too small: .*`},
		{name: "no slots", args: []string{"run", recipe, "--cpu-slots", "0"}, code: 2, says: `worker .* has 0 slots of "cpu"; give 1 to 65536`},
		{name: "unknown level", args: []string{"run", recipe, "--log-level", "loud"}, code: 2, says: `unknown log level "loud"; .*`},
		{name: "nowhere to listen", args: []string{"local"}, code: 2, says: `give --socket PATH or --listen ADDRESS for trainers`},
		{name: "address of no form", args: []string{"local", "--listen", "here"}, code: 2, says: `address "here" is neither unix:///path nor host:port`},
		{name: "metrics at no address", args: []string{"local", "--socket", "s", "--metrics", "here"}, code: 2, says: `address "here" is neither unix:///path nor host:port`},
		{name: "too long a socket", args: []string{"local", "--socket", strings.Repeat("d", 120)}, code: 2, says: `socket path .* choose a shorter directory`},
		{name: "worker alone", args: []string{"worker"}, code: 2, says: `give the dispatcher's address with --dispatcher`},
		{name: "sidecar alone", args: []string{"sidecar", "--listen", "unix:///s"}, code: 2, says: `give the dispatcher's address with --dispatcher, and addresses for trainers with --listen`},
		{name: "status of nothing", args: []string{"status"}, code: 2, says: `give an address with --endpoint or MILLRACE_ENDPOINT`},
	})
	check(t, p, sidecar(), []mistake{
		{name: "small binary without addresses", code: 2, says: `give the dispatcher's address with --dispatcher, and addresses for trainers with --listen`},
		{name: "small binary, unknown flag", args: []string{"--dispatchr", "x"}, code: 2, says: `unknown flag: --dispatchr.*`},
		{name: "small binary, address of no form", args: []string{"--dispatcher", "127.0.0.1:1", "--listen", "here"}, code: 2, says: `address "here" is neither .*`},
	})
}

func TestMistakesInTheSource(t *testing.T) {
	p := newPlace(t)
	shards(t, p.path("data"), 2, 8)
	if err := os.Mkdir(p.path("void"), 0o700); err != nil {
		t.Fatal(err)
	}
	p.write("texts/a.txt", "no image")
	p.write("archive.zip", "no tar")
	datasettest.WriteTar(t, p.dir, "none.tar")
	whole := readFile(t, p.path("data", "train-000000.tar"))
	p.write("half.tar", whole[:len(whole)/2])
	check(t, p, millrace(), []mistake{
		{name: "missing file", args: []string{"index", "nowhere.tar"}, code: 1, says: `/.*/nowhere.tar: no such file or object`},
		{name: "missing directory", args: []string{"index", "nowhere"}, code: 1, says: `/.*/nowhere: nothing is there, neither a file nor a directory with files`},
		{name: "missing shards", args: []string{"index", "data/train-{000000..000003}.tar"}, code: 1, says: `2 of 4 shards are missing: /.*/train-000002.tar, /.*/train-000003.tar; bring them back, .*`},
		{name: "empty directory", args: []string{"index", "void"}, code: 1, says: `/.*/void: nothing is there, .*`},
		{name: "directory without samples", args: []string{"index", "texts"}, code: 1, says: `directory /.*/texts holds neither shards nor images, videos or audio files; seen 1 other files, such as a.txt .*`},
		{name: "file that is no shard", args: []string{"index", "archive.zip"}, code: 1, says: `/.*/archive.zip is a file of 6 bytes, but no shard: those are named .*`},
		{name: "shard without samples", args: []string{"index", "none.tar"}, code: 1, says: `/.*/none.tar: no samples: .*`},
		{name: "shard that was cut off", args: []string{"index", "half.tar"}, code: 1, says: `shard /.*/half.tar: damaged tar at offset \d+: cut in the data of "00000\d.jpg": .*`},
		{name: "unknown scheme", args: []string{"index", "gopher://x/y.tar"}, code: 1, says: `gopher://x/y.tar: unknown scheme "gopher"; known are .*`},
		{name: "broken pattern", args: []string{"index", "data/train-{0..x}.tar"}, code: 1, says: `pattern .*: \{0\.\.x\} is not a range: .*`},
		{name: "no recipe of that name", args: []string{"run", "nowhere.yaml"}, code: 1, says: `recipe nowhere.yaml does not exist; name a YAML file`},
		{name: "recipe is a directory", args: []string{"run", "data"}, code: 1, says: `recipe data is a directory; name a YAML file`},
	})
	// What can be read of a cut shard is taken if asked for, and said.
	matches(t, p.must("index", "--tolerate-damaged", "half.tar"), `^1 shards · 3 samples .*\ndamaged: /.*/half.tar: damaged tar at offset .*\n$`)
	matches(t, p.must("index", "--tolerate-missing", "data/train-{000000..000002}.tar"), `^2 shards · 16 samples .*\nmissing: /.*/train-000002.tar\n$`)
}

func TestMistakesInARecipe(t *testing.T) {
	p := newPlace(t)
	source := "source: " + shards(t, p.path("data"), 1, 8) + "\n"
	var mistakes []mistake
	for _, c := range []struct{ name, text, says string }{
		{"unknown operator", "operators:\n  - decode_imag: {field: image}\n", `operator \d: unknown operator "decode_imag"; did you mean "decode_image"\?`},
		{"misspelt parameter", "operators:\n  - decode_image: {field: image}\n  - random_resized_crop: {field: image, size: 8, scal: [0.5, 1]}\n", `operator \d: unknown parameter "scal" of random_resized_crop; did you mean "scale"\?`},
		{"unknown field", "operators:\n  - decode_image: {field: imgae}\n", `operator \d: decode_image: no field "imgae"; did you mean "image"\?`},
		{"unknown key", "operatrs: []\n", `.*line 2: unknown key "operatrs" of the recipe; did you mean "operators"\?`},
		{"images of many sizes", "operators:\n  - decode_image: {field: image}\n", `.*images of field "image" differ in size; bring them to one size .*`},
		{"no YAML", "operators: [\n", `.*is not YAML: .*`},
	} {
		path := p.write(strings.ReplaceAll(c.name, " ", "-")+".yaml", source+c.text)
		for _, command := range []string{"plan", "run"} {
			mistakes = append(mistakes, mistake{
				name: c.name + " in " + command, args: []string{command, path}, code: 1, says: `(?:recipe )?` + regexp.QuoteMeta(path) + `: ` + c.says,
			})
		}
	}
	missing := p.write("missing.yaml", source+"fields: {image: jpgg}\noperators:\n  - decode_image: {field: image}\n  - center_crop: {field: image, size: 8}\n")
	mistakes = append(mistakes, mistake{
		name: "member that no sample has", args: []string{"run", missing}, code: 1, says: `recipe .*: field "image": samples have no member "jpgg"; did you mean "jpg"\?`,
	})
	check(t, p, millrace(), mistakes)
}

// The error names the archive and the member, where it lies, what was done to it and what is wrong with it.
func TestDamagedImages(t *testing.T) {
	p := newPlace(t)
	good := pictures(t, 0, 16)[9].Members[0].Data
	var mistakes []mistake
	for _, c := range []struct {
		name string
		data []byte
		says string
	}{
		{"truncated", good[:len(good)-40], `truncated JPEG, \d+ % of rows read`},
		{"cut-in-its-header", good[:200], `truncated JPEG, the header is incomplete`},
		{"not-an-image", bytes.Repeat([]byte("x"), len(good)), `neither JPEG.* \(it begins with "xxxxxxxx"\)`},
		{"corrupt", append(bytes.Clone(good[:len(good)/2]), bytes.Repeat([]byte{0xff, 0xc4, 0xff}, 100)...), `(truncated|damaged) JPEG.*`},
	} {
		samples := pictures(t, 0, 16)
		samples[9].Members[0].Data = c.data
		archive := datasettest.WriteTar(t, p.dir, c.name+".tar", samples...)
		offset := bytes.Index([]byte(readFile(t, archive)), c.data)
		mistakes = append(mistakes, mistake{
			name: c.name, args: []string{"run", p.write(c.name+".yaml", imageRecipe(archive)), "--batch", "4"}, code: 1,
			says: `recipe .*: sample ` + regexp.QuoteMeta(archive) + `!000009\.jpg \(offset ` + grouped(offset) + `, ` + grouped(len(c.data)) + ` bytes\): decode_image: ` + c.says + `; on_error="skip" leaves such samples out`,
		})
	}
	dir := folder(t, p.path("images"), 2, 4)
	datasettest.WriteFile(t, dir, "class-1/002.jpg", good[:len(good)-40])
	mistakes = append(mistakes, mistake{
		name: "file of a folder", args: []string{"run", p.write("images.yaml", imageRecipe(dir)), "--batch", "4"}, code: 1,
		says: `recipe .*: sample /.*/images/class-1/002\.jpg.*: decode_image: truncated JPEG, .*`,
	})
	check(t, p, millrace(), mistakes)
}

// grouped is a number as errors write it.
func grouped(n int) string {
	s := regexp.MustCompile(`\d`).FindAllString(strconv.Itoa(n), -1)
	var out string
	for i, digit := range s {
		if i > 0 && (len(s)-i)%3 == 0 {
			out += ","
		}
		out += digit
	}
	return out
}

func TestAddressesThatAreTakenOrDead(t *testing.T) {
	p, recipe := imageSet(t, 1, 32)
	local := p.start(millrace(), "local", "--socket", p.path("s"), "--metrics", "127.0.0.1:0")
	orphan := p.start(sidecar(), "--dispatcher", "127.0.0.1:1", "--listen", "unix://"+p.path("o"))
	taken := local.metrics()
	p.write("file", "no socket")
	check(t, p, millrace(), []mistake{
		{name: "socket in use", args: []string{"local", "--socket", p.path("s")}, code: 1, says: `unix:///.*/s is in use by another process; stop it or choose another address`},
		{name: "port in use", args: []string{"dispatcher", "--listen", taken}, code: 1, says: taken + ` is in use by another process; stop it or choose another address`},
		{name: "port for metrics in use", args: []string{"local", "--socket", p.path("t"), "--metrics", taken}, code: 1, says: taken + ` is in use by another process; stop it or choose another address`},
		{name: "socket is a file", args: []string{"local", "--socket", p.path("file")}, code: 1, says: `/.*/file exists and is not a socket; choose another path`},
		{name: "status without a role", args: []string{"status", "--endpoint", "unix://" + p.path("n")}, code: 1, says: `nothing answers at unix:///.*/n; is it running\?`},
		{name: "stop without a role", args: []string{"stop", "job", "--endpoint", "127.0.0.1:1"}, code: 1, says: `nothing answers at 127.0.0.1:1; is it running\?`},
		{name: "sidecar not running", args: []string{"run", recipe, "--endpoint", "unix://" + p.path("n")}, code: 1, says: `nothing answers at unix:///.*/n; is it running\?`},
		{name: "endpoint of no form", args: []string{"run", recipe, "--endpoint", "here"}, code: 2, says: `address "here" is neither unix:///path nor host:port`},
		{name: "sidecar without a dispatcher", args: []string{"run", recipe, "--endpoint", orphan.address(0)}, code: 1, says: `recipe .*: the dispatcher cannot be reached: .*; is it running\?`},
		{name: "status without a dispatcher", args: []string{"status", "--endpoint", orphan.address(0)}, code: 1, says: `the sidecar cannot reach its dispatcher; is that running\?`},
	})
	check(t, p, sidecar(), []mistake{
		{name: "small binary, socket in use", args: []string{"--dispatcher", "127.0.0.1:1", "--listen", "unix://" + p.path("s")}, code: 1, says: `unix:///.*/s is in use by another process; .*`},
		{name: "small binary, port in use", args: []string{"--dispatcher", "127.0.0.1:1", "--listen", "unix://" + p.path("x"), "--metrics", taken}, code: 1, says: taken + ` is in use by another process; .*`},
	})
	if _, err := os.Stat(p.path("t")); !os.IsNotExist(err) {
		t.Errorf("a role that did not start has left its socket (%v)", err)
	}
	local.stop()
	orphan.stop()
}
