package e2e

import (
	"os"
	"path/filepath"
	"testing"
)

func TestReshardKeepsSamplesAndTellsWhatItDid(t *testing.T) {
	p := newPlace(t)
	source := shards(t, p.path("data"), 2, 6)
	if a := p.millrace("reshard", source, "restarts"); a.code != 2 {
		t.Errorf("exit code %d without anything to do\n%s", a.code, a.errors)
	}
	expect(t, decode(t, p.must("reshard", "--json", "--jpeg-restarts", source, "restarts")), map[string]any{"shards": 2.0, "jpegs": 12.0, "kept": 0.0})
	before := decode(t, p.must("index", "--json", source))
	after := decode(t, p.must("index", "--json", "restarts"))
	expect(t, after, map[string]any{"samples": before["samples"], "shards": before["shards"], "format": "webdataset"})

	// The recipes differ in their source alone.
	recipes := map[string]string{}
	for _, from := range []string{source, p.path("restarts", "train-{000000..000001}.tar")} {
		recipes[from] = p.write("recipe.yaml", imageRecipe(from))
		expect(t, decode(t, p.must("run", "--json", "--batch", "4", recipes[from])), map[string]any{"rows": 12.0})
	}
	if a := p.millrace("reshard", "--jpeg-restarts", source, "restarts"); a.code != 1 {
		t.Errorf("exit code %d over shards that are there\n%s", a.code, a.errors)
	}
	left, err := os.ReadDir(p.path("restarts"))
	if err != nil || len(left) != 2 || filepath.Ext(left[0].Name()) != ".tar" {
		t.Errorf("left %v, %v", left, err)
	}
}
