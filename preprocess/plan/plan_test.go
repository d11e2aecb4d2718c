package plan_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/op"
	"github.com/millrace/millrace/preprocess/plan"
	"github.com/millrace/millrace/preprocess/recipe"
)

func mustParse(t *testing.T, text string) *recipe.Recipe {
	t.Helper()
	r, err := recipe.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func mustPlan(t *testing.T, text string) *plan.Plan {
	t.Helper()
	p, err := plan.New(mustParse(t, text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

const chain = `
source: a.tar
operators:
  - decode_image: {field: image}
  - random_resized_crop: {field: image, size: 8}
  - random_horizontal_flip: {field: image}
`

func TestEqualShapesFuseAndOthersBecomeStages(t *testing.T) {
	one := mustPlan(t, chain)
	if len(one.Stages) != 1 || one.Stages[0].Resources["cpu"] != 1 {
		t.Fatalf("stages are %+v", one.Stages)
	}
	if n := len(one.Stages[0].Ops); n >= len(one.Operators()) {
		t.Errorf("nothing fused: %d operators run for %d", n, len(one.Operators()))
	}
	gpu := mustPlan(t, strings.Replace(chain, "size: 8}", "size: 8, resources: {gpu: 1}}", 1))
	if len(gpu.Stages) != 3 || gpu.Stages[1].Resources["gpu"] != 1 {
		t.Errorf("a step on a GPU gives %d stages", len(gpu.Stages))
	}
	barrier := mustPlan(t, strings.Replace(chain, "size: 8}", "size: 8, barrier: true}", 1))
	if len(barrier.Stages) != 2 {
		t.Errorf("a barrier gives %d stages", len(barrier.Stages))
	}
}

func TestWithoutOutputImagesAreCHWAndClassesAreNumbers(t *testing.T) {
	p := mustPlan(t, chain)
	want := op.Schema{
		{Name: "image", Kind: op.KindTensor, DType: op.DTypeUint8, Shape: []int64{3, 8, 8}, DimNames: []string{"C", "H", "W"}},
		{Name: "label", Kind: op.KindInt64, DType: op.DTypeInt64},
	}
	if diff := cmp.Diff(want, p.Schema); diff != "" {
		t.Errorf("schema (-want +got):\n%s", diff)
	}
	if got := p.Stages[0].RowBytes; got != 3*8*8+8 {
		t.Errorf("a row has %d bytes", got)
	}
	if !p.KeepsRows {
		t.Error("image operators do not keep rows")
	}
}

func TestDigestsTellPixelsFromOrder(t *testing.T) {
	digests := func(text string) (ordering, pixels plan.Digest) {
		p := mustPlan(t, text)
		ordering, err := p.OrderDigest(nil)
		if err != nil {
			t.Fatal(err)
		}
		if pixels, err = p.PixelsDigest(); err != nil {
			t.Fatal(err)
		}
		return ordering, pixels
	}
	o1, p1 := digests(chain)
	if o2, p2 := digests(strings.ReplaceAll(chain, "size: 8", "size: 8, scale: [0.08, 1]")); o2 != o1 || p2 != p1 {
		t.Error("writing a default out changes a digest")
	}
	if o2, p2 := digests(strings.ReplaceAll(chain, "size: 8", "size: 9")); o2 != o1 || p2 == p1 {
		t.Error("another size must change the pixels digest alone")
	}
	if o2, _ := digests(chain + "partition: {target_bytes: 1000}\n"); o2 == o1 {
		t.Error("another partition size must change the order digest")
	}
}

func TestResolveKeepsOptionalFieldsThatAreThere(t *testing.T) {
	r := mustParse(t, "source: a.tar\n")
	for _, c := range []struct {
		members []string
		want    []string
	}{
		{[]string{"jpg", "cls"}, []string{"image", "label"}},
		{[]string{"png", "txt"}, []string{"image"}},
	} {
		got, err := plan.Resolve(r, c.members)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, f := range got.Fields {
			names = append(names, f.Name)
		}
		if diff := cmp.Diff(c.want, names); diff != "" {
			t.Errorf("%v: %s", c.members, diff)
		}
	}
	_, err := plan.Resolve(r, []string{"wav"})
	if errkind.Of(err) != errkind.Invalid || !strings.Contains(err.Error(), "samples have none of the members jpg, jpeg") {
		t.Errorf("no image: %v", err)
	}
}

func TestMistakesNameTheOperator(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"source: a\noperators: [{random_resized_crop: {field: image, size: 4, scal: [1, 1]}}]", `operator 1: unknown parameter "scal" of random_resized_crop; did you mean "scale"?`},
		{"source: a\noperators: [{decode_image: {field: image}}]", `images of field "image" differ in size`},
		{
			"source: a\noperators: [" + strings.Repeat("{virtual_sleep: {barrier: true}}, ", 9) + "]",
			"the operators make 9 stages; at most 8 can follow each other",
		},
		{"source: a\noutput: {image: {dtype: uint9}}", `unknown dtype "uint9"; did you mean "uint8"?`},
		{"source: a\noutput: {imag: {}}", `no field "imag"; did you mean "image"?`},
	} {
		_, err := plan.New(mustParse(t, c.text))
		if errkind.Of(err) != errkind.Invalid || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s:\n%v does not say %q", c.text, err, c.want)
		}
	}
}
