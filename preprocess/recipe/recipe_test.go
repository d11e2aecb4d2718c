package recipe_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/recipe"
)

const imagenet = `
source: s3://bucket/imagenet/train-{000000..001281}.tar
fields: {image: [jpg, jpeg, png], label: cls, caption: {from: txt, optional: true}}
operators:
  - decode_image: {field: image}
  - random_resized_crop: {field: image, size: 224, scale: [0.08, 1.0]}
  - random_horizontal_flip: {field: image, p: 0.5, resources: {cpu: 2}, barrier: true}
  - drop
output:
  image: {layout: CHW, dtype: uint8}
  label: {dtype: int64}
partition: {samples: 32, target_bytes: 4194304}
`

func TestParseReadsEveryPartInOrder(t *testing.T) {
	got, err := recipe.Parse([]byte(imagenet))
	if err != nil {
		t.Fatal(err)
	}
	want := &recipe.Recipe{
		Source: []string{"s3://bucket/imagenet/train-{000000..001281}.tar"},
		Fields: []recipe.Field{
			{Name: "image", From: []string{"jpg", "jpeg", "png"}},
			{Name: "label", From: []string{"cls"}},
			{Name: "caption", From: []string{"txt"}, Optional: true},
		},
		Operators: []recipe.Operator{
			{Name: "decode_image", Params: map[string]any{"field": "image"}},
			{Name: "random_resized_crop", Params: map[string]any{"field": "image", "size": 224, "scale": []any{0.08, 1.0}}},
			{Name: "random_horizontal_flip", Params: map[string]any{"field": "image", "p": 0.5}, Resources: map[string]int{"cpu": 2}, Barrier: true},
			{Name: "drop"},
		},
		Output:    []recipe.Output{{Name: "image", Layout: "CHW", DType: "uint8"}, {Name: "label", DType: "int64"}},
		Partition: recipe.Partitioning{Samples: 32, TargetBytes: 4 << 20},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Parse differs (-want +got):\n%s", diff)
	}
}

// Whole floats come back as integers, which mean the same, so canonical text is what must survive.
func TestYAMLRoundTripKeepsCanonicalText(t *testing.T) {
	first, err := recipe.Parse([]byte(imagenet))
	if err != nil {
		t.Fatal(err)
	}
	text, err := first.YAML()
	if err != nil {
		t.Fatal(err)
	}
	second, err := recipe.Parse(text)
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	if a, b := canonical(t, first), canonical(t, second); a != b {
		t.Errorf("recipe changed on its way through YAML:\n%s\n%s", a, b)
	}
}

// Numbers travel as floats on the wire, so canonical text is what must survive.
func TestProtoRoundTripKeepsCanonicalParameters(t *testing.T) {
	first, err := recipe.Parse([]byte(imagenet))
	if err != nil {
		t.Fatal(err)
	}
	wire, err := first.ToProto()
	if err != nil {
		t.Fatal(err)
	}
	second, err := recipe.FromProto(wire)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := canonical(t, first), canonical(t, second); a != b {
		t.Errorf("canonical text changed on the wire:\n%s\n%s", a, b)
	}
}

func canonical(t *testing.T, r *recipe.Recipe) string {
	t.Helper()
	text, err := recipe.CanonicalJSON(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestJSONIsARecipe(t *testing.T) {
	r, err := recipe.Parse([]byte(`{"source": ["a.tar", "b.tar"], "operators": [{"decode_image": {"field": "image"}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Source) != 2 || len(r.Operators) != 1 {
		t.Errorf("got %+v", r)
	}
}

func TestMistakesAreNamed(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"empty", "", "recipe is empty"},
		{"not YAML", "source: [", "recipe is not YAML"},
		{"two documents", "source: a\n---\nsource: b\n", "more than one YAML document"},
		{"no source", "operators: []", "source is missing"},
		{"unknown key", "source: a\noperator: []\n", `unknown key "operator" of the recipe; did you mean "operators"?`},
		{"key twice", "source: a\nsource: b\n", `"source" of the recipe is given twice`},
		{"scalar recipe", "hello", "must be a mapping"},
		{"operators not a list", "source: a\noperators: {resize: {}}\n", "operators must be a list"},
		{"operator without a name", "source: a\noperators: [\"\"]\n", "operator 1: line 2: write one operator an entry"},
		{"operator with parameters and no name", "source: a\noperators: [{\"\": {}}]\n", "operator 1: line 2: write one operator an entry"},
		{"operator named by a mapping", "source: a\noperators: [{{}: {}}]\n", "operator 1: line 2: write one operator an entry"},
		{"two operators in one entry", "source: a\noperators:\n  - {resize: {size: 1}, crop: {size: 1}}\n", "operator 1: line 3: write one operator an entry"},
		{"bad layout", "source: a\noutput: {image: {layout: CWH}}\n", `unknown layout "CWH"; did you mean "CHW"?`},
		{"reserved name", "source: a\nfields: {__key__: txt}\n", "names that begin with __"},
		{"partition", "source: a\npartition: {samples: 0}\n", "samples must be a whole number of at least 1"},
		{"not a number", "source: a\noperators: [{r: {p: .nan}}]\n", "p: NaN is not a finite number"},
		{"a date", "source: a\noperators: [{r: {p: 2020-01-01}}]\n", "is not text, a number"},
		{"too large", "source: a\noperators: [{r: {p: 9007199254740993}}]\n", "whole numbers go up to 2^53"},
		{"resources", "source: a\noperators:\n  - resize: {resources: {cpu: many}}\n", "cpu must be a whole number of slots"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := recipe.Parse([]byte(c.text))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error %v does not say %q", err, c.want)
			}
			if errkind.Of(err) != errkind.Invalid {
				t.Errorf("kind is %v", errkind.Of(err))
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(imagenet))
	f.Add([]byte("source: &a [x]\nfields: {b: *a}\n"))
	f.Add([]byte("source: a\noperators: [{r: {p: .nan}}]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 4<<10 {
			return // longer texts are slow to parse and hold nothing new
		}
		r, err := recipe.Parse(text)
		if err != nil {
			return
		}
		again, err := r.YAML()
		if err != nil {
			t.Fatalf("accepted recipe cannot be written: %v", err)
		}
		if _, err := recipe.Parse(again); err != nil {
			t.Fatalf("accepted recipe cannot be read back: %v\n%s", err, again)
		}
	})
}
