package plan_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/preprocess/op"
	"github.com/millrace/millrace/preprocess/plan"
	"github.com/millrace/millrace/preprocess/recipe"
)

func page(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/recipes.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestEveryRecipeOfTheDocsCanBePlanned(t *testing.T) {
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(page(t), -1)
	if len(blocks) < 2 {
		t.Fatalf("docs/recipes.md has %d recipes", len(blocks))
	}
	for _, b := range blocks {
		r, err := recipe.Parse([]byte(b[1]))
		if err != nil {
			t.Fatalf("%v in\n%s", err, b[1])
		}
		if _, err := plan.New(r); err != nil {
			t.Errorf("%v in\n%s", err, b[1])
		}
	}
}

func TestEveryOperatorIsInTheDocs(t *testing.T) {
	text := page(t)
	for _, name := range op.Names() {
		if !strings.Contains(text, "| `"+name+"` |") {
			t.Errorf("docs/recipes.md does not list operator %s", name)
		}
	}
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllStringSubmatch(text, -1) {
		if !slices.Contains(op.Names(), row[1]) {
			t.Errorf("docs/recipes.md lists %s, which is no operator", row[1])
		}
	}
}
