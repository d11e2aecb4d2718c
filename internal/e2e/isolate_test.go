package e2e

import (
	"bytes"
	"encoding/json"
	"image"
	"image/color/palette"
	"image/gif"
	"image/png"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/loader/dataset/datasettest"
)

// mixed is a recipe for pictures in three formats, one of them damaged where it says so.
func mixed(t *testing.T, p *place, damaged bool) (recipe string) {
	t.Helper()
	var asPNG, asGIF bytes.Buffer
	m := image.NewPaletted(image.Rect(0, 0, 40, 30), palette.WebSafe)
	for i := range m.Pix {
		m.Pix[i] = byte(i % 216)
	}
	if err := png.Encode(&asPNG, m); err != nil {
		t.Fatal(err)
	}
	if err := gif.Encode(&asGIF, m, nil); err != nil {
		t.Fatal(err)
	}
	samples := append(pictures(t, 0, 6),
		datasettest.Sample{Key: "a", Members: []datasettest.Member{{Ext: "png", Data: asPNG.Bytes()}}},
		datasettest.Sample{Key: "b", Members: []datasettest.Member{{Ext: "gif", Data: asGIF.Bytes()}}})
	if damaged {
		samples = append(samples, datasettest.Sample{Key: "c", Members: []datasettest.Member{{Ext: "png", Data: asPNG.Bytes()[:200]}}})
	}
	datasettest.WriteTar(t, p.path("data"), "mixed.tar", samples...)
	return p.write("recipe.yaml", "fields: {image: [jpg, png, gif]}\n"+imageRecipe(p.path("data/mixed.tar")))
}

// Isolation changes no bytes and no error, in any command that decodes.
func TestIsolationChangesNoBytes(t *testing.T) {
	p := newPlace(t)
	recipe := mixed(t, p, false)
	bad := newPlace(t)
	broken := mixed(t, bad, true)
	var want, problem any
	for _, mode := range []string{"off", "format", "all"} {
		var got struct{ Outputs any }
		if err := json.Unmarshal([]byte(p.must("rederive", "0/1", "--recipe", recipe, "--json", "--isolate", mode)), &got); err != nil {
			t.Fatal(err)
		}
		failed := bad.millrace("run", broken, "--batch", "4", "--isolate", mode).errors
		if want == nil {
			want, problem = got.Outputs, failed
		}
		if diff := cmp.Diff(want, got.Outputs); diff != "" {
			t.Errorf("--isolate %s (-off +this):\n%s", mode, diff)
		}
		if diff := cmp.Diff(problem, failed); diff != "" {
			t.Errorf("the error with --isolate %s (-off +this):\n%s", mode, diff)
		}
		matches(t, failed, `data/mixed.tar!c.png .*: decode_image: truncated PNG`)
		matches(t, p.must("run", recipe, "--batch", "4", "--isolate", mode), `8 rows`)
		matches(t, p.must("preview", recipe, "--samples", "2", "--isolate", mode), `2 samples, 0 bad`)
		p.must("plan", recipe, "--isolate", mode)
	}
}

// A worker has its decoders from the start, which end with it; those whose memory does not fit are refused.
func TestAWorkerHasItsDecodersAtTheStart(t *testing.T) {
	p := newPlace(t)
	config := p.write("local.yaml", "isolate: format\n")
	for _, c := range []struct {
		env, args []string
		processes int
	}{
		{nil, nil, 0},
		{nil, []string{"--config", config}, 1},
		{[]string{"MILLRACE_ISOLATE=off"}, []string{"--config", config}, 0},
		{[]string{"MILLRACE_ISOLATE=off"}, []string{"--isolate", "all"}, 1},
	} {
		r := p.startWith(c.env, millrace(), append([]string{"local", "--socket", p.path("s"), "--cpu-slots", "1", "--metrics", "127.0.0.1:0"}, c.args...)...)
		_, text := scrape(t, r)
		matches(t, text, `(?m)^millrace_worker_decoder_processes `+strconv.Itoa(c.processes)+`$`)
		if n := len(running(t, r.mark)); n != 1 { // decoders get no environment, and so no mark
			t.Errorf("%d processes are marked", n)
		}
		r.stop()
	}
	check(t, p, millrace(), []mistake{
		{name: "no such mode", args: []string{"local", "--socket", "s", "--isolate", "formats"}, code: 2, says: `--isolate: isolation "formats"; there are off, format and all; did you mean "format"\?`},
		{name: "no room", args: []string{"local", "--socket", "s", "--isolate", "all", "--cpu-slots", "4"}, code: 2, says: `worker .* has a budget of 50331648 bytes, of which its isolated decoders may take 67108864: give more, or fewer slots`},
	})
}
