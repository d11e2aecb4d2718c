package dataset

import (
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestMembersAreNamedAsWebDatasetDoes(t *testing.T) {
	for path, want := range map[string][2]string{
		"0001.jpg":                {"0001", "jpg"},
		"a/b/0001.JPG":            {"a/b/0001", "jpg"},
		"0001.seg.png":            {"0001", "seg.png"},
		"train.v1/0001.jpg":       {"train.v1/0001", "jpg"},
		"./0001.jpg":              {"./0001", "jpg"},
		"a.b/c.d/e.f.g":           {"a.b/c.d/e", "f.g"},
		"noextension":             {},
		"dir.x/noextension":       {},
		"trailing.":               {},
		"._0001.jpg":              {},
		"dir/._0001.jpg":          {},
		"dir/.DS_Store":           {},
		".hidden":                 {},
		"__meta__.json/x":         {"__meta__.json/x", ""},
		"__worker__/x.json":       {},
		"__0__":                   {},
		"":                        {},
		"caf\xe9.J\xe9":           {"caf\xe9", "J\xe9"},
		"\u00fc/\u00e4.\u00dcber": {"\u00fc/\u00e4", "\u00fcber"},
	} {
		key, ext, ok := splitName(path)
		wantOK := want[1] != ""
		if ok != wantOK || ok && (key != want[0] || ext != want[1]) {
			t.Errorf("splitName(%q) = %q, %q, %v; want %q, %q, %v", path, key, ext, ok, want[0], want[1], wantOK)
		}
	}
}

// The rule is WebDataset's regular expression, except for hidden files in directories, from which that
// makes a sample named after the directory, and names that end in a dot.
func TestMembersAreSplitByWebDatasetsRule(t *testing.T) {
	rule := regexp.MustCompile(`^((?:.*/|)[^.]+)[.]([^/]*)$`)
	rapid.Check(t, func(t *rapid.T) {
		path := rapid.StringMatching(`[ab./]{1,12}`).Draw(t, "path")
		base := path[strings.LastIndexByte(path, '/')+1:]
		if strings.HasPrefix(base, ".") || strings.HasSuffix(base, ".") {
			return
		}
		m := rule.FindStringSubmatch(path)
		key, ext, ok := splitName(path)
		if ok != (m != nil) || ok && (key != m[1] || ext != m[2]) {
			t.Errorf("splitName(%q) = %q, %q, %v; the rule gives %q", path, key, ext, ok, m)
		}
	})
}
