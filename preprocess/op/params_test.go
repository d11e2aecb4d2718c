package op

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/millrace/millrace/internal/errkind"
)

// A wrong recipe is refused with the nearest name, or with what is allowed.
func TestBuildErrors(t *testing.T) {
	cases := []struct{ name, params, want string }{
		{"random_resized_crop", `{"field": "image", "size": 224, "scal": [0.08, 1]}`, `unknown parameter "scal" of random_resized_crop; did you mean "scale"?`},
		{"random_resize_crop", `{}`, `unknown operator "random_resize_crop"; did you mean "random_resized_crop"?`},
		{"resize", `{"field": "image"}`, `resize needs the parameter "size"`},
		{"resize", `{"size": 3}`, `resize needs the parameter "field"`},
		{"resize", `{"field": "image", "size": "big"}`, `parameter "size" of resize must be an integer (the shorter side) or [height, width], each from 1 to 65500, not "big"`},
		{"resize", `{"field": "image", "size": [1, 2, 3]}`, `parameter "size" of resize must be an integer (the shorter side) or [height, width], each from 1 to 65500, not [1 2 3]`},
		{"resize", `{"field": "image", "size": 0}`, `parameter "size" of resize must be an integer (the shorter side) or [height, width], each from 1 to 65500, not 0`},
		{"resize", `{"field": "image", "size": 2.5}`, `parameter "size" of resize must be an integer (the shorter side) or [height, width], each from 1 to 65500, not 2.5`},
		{"resize", `{"field": "image", "size": 224, "interpolation": "bilinaer"}`, `parameter "interpolation" of resize can't be "bilinaer"; did you mean "bilinear"?`},
		{"resize", `{"field": "image", "size": 224, "antialias": false}`, `resize: antialias=false is not offered: Pillow always antialiases; use interpolation "nearest" or leave it out`},
		{"resize", `{"field": "image", "size": 224, "max_size": 200}`, `resize: max_size 200 must be greater than size 224`},
		{"resize", `{"field": "image", "size": [224, 224], "max_size": 300}`, `resize: max_size only goes with a size of one number`},
		{"random_resized_crop", `{"field": "image", "size": 224, "scale": [1, 0.5]}`, `parameter "scale" of random_resized_crop must be [least, greatest], not [1 0.5]`},
		{"random_resized_crop", `{"field": "image", "size": 224, "scale": 0.5}`, `parameter "scale" of random_resized_crop must be a list of 2 numbers from 1e-06 to 1, not 0.5`},
		{"random_horizontal_flip", `{"field": "image", "p": 2}`, `parameter "p" of random_horizontal_flip must be a number from 0 to 1, not 2`},
		{"decode_image", `{"field": 3}`, `parameter "field" of decode_image must be the name of a field, not 3`},
		{"normalize", `{"field": "image", "mean": [0, 0, 0]}`, `normalize needs the parameter "std"`},
		{"normalize", `{"field": "image", "mean": 0, "std": 0}`, `parameter "std" of normalize must be a list of 1 or 3 numbers from 1e-12 to 1e+06, not 0`},
		{"to_tensor", `{"field": "image", "dtype": "int8"}`, `parameter "dtype" of to_tensor can't be "int8"; did you mean "uint8"?`},
		{"color_jitter", `{"field": "image", "brightness": -1}`, `parameter "brightness" of color_jitter must be a number from 0 to 99, or [least, greatest] from 0 to 100, not -1`},
		{"color_jitter", `{"field": "image", "hue": 0.6}`, `parameter "hue" of color_jitter must be a number from 0 to 0.5, or [least, greatest] from -0.5 to 0.5, not 0.6`},
		{"color_jitter", `{"field": "image", "contrast": [2, 1]}`, `parameter "contrast" of color_jitter must be [least, greatest] from 0 to 100, not [2 1]`},
		{"gaussian_blur", `{"field": "image", "kernel_size": 4}`, `gaussian_blur: kernel_size must be odd, not [4]`},
		{"gaussian_blur", `{"field": "image"}`, `gaussian_blur needs the parameter "kernel_size"`},
		{"random_rotation", `{"field": "image"}`, `random_rotation needs the parameter "degrees"`},
		{"random_rotation", `{"field": "image", "degrees": [9, -9]}`, `parameter "degrees" of random_rotation must be pairs of [least, greatest], not [9 -9]`},
		{"random_rotation", `{"field": "image", "degrees": 9, "interpolation": "lanczos"}`, `parameter "interpolation" of random_rotation can't be "lanczos"; known: bicubic, bilinear, nearest`},
		{"random_posterize", `{"field": "image"}`, `random_posterize needs the parameter "bits"`},
		{"rand_augment", `{"field": "image", "magnitude": 31}`, `rand_augment: magnitude 31 must be below num_magnitude_bins, 31`},
		{"random_erasing", `{"field": "image", "value": "noise"}`, `parameter "value" of random_erasing must be a number, one per channel, or "random", not "noise"`},
		{"grayscale", `{"field": "image", "num_output_channels": 2}`, `grayscale: num_output_channels is 1 or 3`},
		{"pad", `{"field": "image"}`, `pad needs the parameter "padding"`},
		{"select", `{"fields": []}`, `parameter "fields" of select must be a list of field names, not []`},
		{"select", `{"fields": ["a", "a"]}`, `select: field "a" is listed twice`},
	}
	for _, c := range cases {
		var params map[string]any
		if err := json.Unmarshal([]byte(c.params), &params); err != nil {
			t.Fatal(err)
		}
		_, err := Build(c.name, 0, params)
		if err == nil || err.Error() != c.want || errkind.Of(err) != errkind.Invalid {
			t.Errorf("%s %s\ngot  %v\nwant %s", c.name, c.params, err, c.want)
		}
	}
}

// Info holds every parameter, with defaults, in one form: however the recipe spelt it, and read from YAML or JSON.
func TestInfoIsCanonical(t *testing.T) {
	texts := []string{
		`{field: image, size: 224}`,
		`{field: image, size: [224, 224.0], scale: [0.08, 1], ratio: null, interpolation: bilinear}`,
	}
	want := map[string]any{
		"field": "image", "size": []any{int64(224), int64(224)}, "scale": []any{0.08, 1.0}, "ratio": []any{0.75, 4.0 / 3},
		"interpolation": "bilinear", "antialias": true, "pillow": ">=13",
	}
	for _, text := range texts {
		var params map[string]any
		if err := yaml.Unmarshal([]byte(text), &params); err != nil {
			t.Fatal(err)
		}
		o, err := Build("random_resized_crop", 1, params)
		if err != nil {
			t.Fatal(err)
		}
		info := o.Info()
		if diff := cmp.Diff(want, info.Params); diff != "" {
			t.Errorf("%s (-want +got)\n%s", text, diff)
		}
		if !info.KeepsRows || !info.Deterministic || !info.ChangesPixelsOnly || info.Resources["cpu"] != 1 || info.Version < 1 {
			t.Errorf("info %+v", info)
		}
	}
}

func pick(t *testing.T, fields ...string) Operator {
	t.Helper()
	o, err := Build("select", 0, map[string]any{"fields": fields})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// Image operators join over others that leave their field alone, and a fused one lists its parts in order.
func TestFuseListsParts(t *testing.T) {
	ops := chain(t, decode, rrc)
	ops = append(ops, chain(t, step{"label", map[string]any{"field": "label"}})...)
	ops = append(ops, pick(t, "label", "image"))
	ops = append(ops, chain(t, flip)...)
	fused := Fuse(ops)
	names := make([]string, len(fused))
	for i, o := range fused {
		names[i] = o.Info().Name
	}
	if diff := cmp.Diff([]string{"label", "select", "decode_image+random_resized_crop+random_horizontal_flip"}, names); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	parts, _ := fused[2].Info().Params["operators"].([]any)
	for i, want := range []string{"decode_image", "random_resized_crop", "random_horizontal_flip"} {
		if part, _ := parts[i].(map[string]any); part["name"] != want {
			t.Errorf("part %d is %v", i, part["name"])
		}
	}
	dropping := append(append(chain(t, decode), pick(t, "label")), chain(t, flip)...)
	if n := len(Fuse(dropping)); n != 3 {
		t.Errorf("%d operators after fusing over a select that drops the field", n)
	}
}

// No parameters, however strange, make Build panic; what it accepts says its own name.
func FuzzBuild(f *testing.F) {
	for _, name := range Names() {
		f.Add(name, []byte(`{"field": "image", "size": [3, 4], "fields": ["a"], "mean": [1], "std": [2], "from": "a", "to": "b"}`))
		f.Add(name, []byte(`{"field": "image", "size": 224}`))
	}
	f.Add("random_crop", []byte(`{"field": "x", "size": 1, "padding": [1, 2, 3, 4], "fill": [1, 2, 3], "pad_if_needed": true}`))
	f.Add("resize", []byte(`{"field": "x", "size": 1e300, "max_size": -1}`))
	f.Fuzz(func(t *testing.T, name string, text []byte) {
		var params map[string]any
		if json.Unmarshal(text, &params) != nil {
			return
		}
		o, err := Build(name, 0, params)
		if err != nil {
			if errkind.Of(err) != errkind.Invalid {
				t.Errorf("error of kind %v: %v", errkind.Of(err), err)
			}
			return
		}
		if o.Info().Name != name {
			t.Errorf("%s says that it is %s", name, o.Info().Name)
		}
	})
}
