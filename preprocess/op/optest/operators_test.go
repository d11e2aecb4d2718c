package optest

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/preprocess/op"
)

type object = map[string]any

// operatorRecipes are what is held against torchvision: every operator on pixels, with its parameters at and off their
// defaults.
func operatorRecipes() [][]object {
	var recipes [][]object
	add := func(steps ...object) { recipes = append(recipes, steps) }
	for _, mode := range []string{"constant", "edge", "reflect", "symmetric"} {
		add(object{"name": "pad", "padding": 3, "padding_mode": mode, "fill": []any{200, 7, 30}})
		add(object{"name": "pad", "padding": []any{5, 1, 0, 12}, "padding_mode": mode})
	}
	add(object{"name": "random_vertical_flip", "p": 1})
	add(object{"name": "random_vertical_flip", "p": 1}, object{"name": "center_crop", "size": []any{17, 60}}, object{"name": "random_horizontal_flip", "p": 1})
	add(object{"name": "random_resized_crop", "size": []any{40, 31}}, object{"name": "random_horizontal_flip"})
	add(object{"name": "random_crop", "size": []any{12, 16}, "padding": []any{5, 1, 0, 12}}, object{"name": "random_vertical_flip"})
	add(object{"name": "random_grayscale", "p": 0.7})
	add(object{"name": "grayscale"})
	add(object{"name": "grayscale", "num_output_channels": 3})
	add(object{"name": "color_jitter", "brightness": 0.4, "contrast": 0.4, "saturation": 0.4})
	add(object{"name": "color_jitter", "brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1})
	add(object{"name": "color_jitter", "brightness": []any{0, 3}, "contrast": []any{0, 5}})
	add(object{"name": "color_jitter", "saturation": []any{0, 9}, "hue": 0.5})
	add(object{"name": "color_jitter", "hue": []any{-0.2, 0.3}})
	for _, size := range []any{1, 3, 9, 23, []any{5, 11}} {
		add(object{"name": "gaussian_blur", "kernel_size": size})
		add(object{"name": "gaussian_blur", "kernel_size": size, "sigma": []any{3, 8}})
	}
	for bits := range 8 {
		add(object{"name": "random_posterize", "bits": bits + 1, "p": 0.8})
	}
	add(object{"name": "random_solarize", "threshold": 128})
	add(object{"name": "random_solarize", "threshold": 192.5, "p": 1})
	add(object{"name": "random_equalize", "p": 1})
	add(object{"name": "random_autocontrast", "p": 1})
	add(object{"name": "color_jitter", "contrast": []any{0.2, 0.6}}, object{"name": "random_autocontrast", "p": 1}, object{"name": "random_equalize", "p": 0.5})
	add(object{"name": "random_adjust_sharpness", "sharpness_factor": 2, "p": 1})
	add(object{"name": "random_adjust_sharpness", "sharpness_factor": 0.3, "p": 1})
	add(object{"name": "random_invert", "p": 0.8})
	for _, filter := range []string{"nearest", "bilinear", "bicubic"} {
		add(object{"name": "random_rotation", "degrees": 180, "interpolation": filter})
		add(object{"name": "random_rotation", "degrees": 45, "interpolation": filter, "expand": true, "fill": []any{1, 200, 90}})
		add(object{"name": "random_rotation", "degrees": []any{-30, 90}, "interpolation": filter, "center": []any{3, 7.5}, "fill": 9})
		add(object{"name": "random_affine", "degrees": 30, "interpolation": filter, "translate": []any{0.2, 0.3}, "scale": []any{0.7, 1.5}, "shear": 20})
		add(object{"name": "random_affine", "degrees": 0, "interpolation": filter, "scale": []any{0.2, 3}, "fill": []any{1, 2, 3}})
		add(object{"name": "random_affine", "degrees": []any{10, 350}, "interpolation": filter, "shear": []any{-20, 20, -30, 10}, "center": []any{0, 0}})
		add(object{"name": "random_perspective", "interpolation": filter, "p": 1})
		add(object{"name": "random_perspective", "interpolation": filter, "p": 0.8, "distortion_scale": 0.9, "fill": []any{250, 0, 99}})
		add(object{"name": "rand_augment", "interpolation": filter, "num_ops": 3})
		add(object{"name": "rand_augment", "interpolation": filter, "magnitude": 14, "num_magnitude_bins": 15, "fill": 128})
		add(object{"name": "trivial_augment_wide", "interpolation": filter})
		add(object{"name": "aug_mix", "interpolation": filter})
	}
	for _, angle := range []int{0, 90, 180, 270, 360} {
		add(object{"name": "random_rotation", "degrees": []any{angle, angle}})
		add(object{"name": "random_rotation", "degrees": []any{angle, angle}, "expand": true, "interpolation": "bilinear"})
	}
	for _, policy := range []string{"imagenet", "cifar10", "svhn"} {
		add(object{"name": "auto_augment", "policy": policy})
		add(object{"name": "auto_augment", "policy": policy, "interpolation": "bilinear", "fill": []any{5, 6, 7}})
	}
	add(object{"name": "aug_mix", "severity": 10, "mixture_width": 5, "alpha": 0.4, "all_ops": false})
	add(object{"name": "aug_mix", "severity": 7, "chain_depth": 4, "alpha": 2.5})
	add(object{"name": "random_erasing", "p": 1})
	add(object{"name": "random_erasing", "p": 0.9, "scale": []any{0.1, 0.6}, "ratio": []any{0.5, 2}, "value": []any{3, 250, 99}})
	add(object{"name": "five_crop", "size": []any{9, 12}})
	add(object{"name": "ten_crop", "size": 20})
	add(object{"name": "ten_crop", "size": []any{21, 16}, "vertical_flip": true})
	for _, filter := range []string{"nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"} {
		add(object{"name": "resize", "size": 15, "interpolation": filter})
		add(object{"name": "resize", "size": []any{70, 50}, "interpolation": filter}, object{"name": "random_horizontal_flip", "p": 1})
		add(object{"name": "resize", "size": []any{5, 40}, "interpolation": filter}, object{"name": "center_crop", "size": []any{9, 20}})
	}
	crop := object{"name": "center_crop", "size": []any{20, 30}}
	for _, dtype := range []string{"uint8", "float32"} {
		add(crop, object{"name": "to_tensor", "layout": "HWC", "dtype": dtype}, object{"name": "random_erasing", "p": 1, "value": 3})
		add(crop, object{"name": "convert_image_dtype", "dtype": dtype})
	}
	add(crop, object{"name": "to_tensor"}, object{"name": "normalize", "mean": []any{0.5}, "std": []any{0.25}}, object{"name": "random_erasing", "p": 0.9, "value": -0.5})
	return recipes
}

// inputsOf are the images that recipe is run on: colour and grey, PNG and JPEG.
func inputsOf(recipe []object) []string {
	if fill, ok := recipe[0]["fill"].([]any); ok && len(fill) == 3 || recipe[0]["value"] != nil {
		return []string{"rgb.png", "f-420-b.jpg"} // Values per channel don't go with grey.
	}
	if slices.Contains([]any{"resize", "pad", "five_crop", "ten_crop", "center_crop", "random_vertical_flip"}, recipe[0]["name"]) && (recipe[0]["padding_mode"] == nil || recipe[0]["padding_mode"] == "constant") && len(recipe) < 3 {
		inputs := []string{"rgb.png", "f-420-b.jpg", "l:l.png", "rgba:rgba.png"}
		if len(recipe) == 1 || recipe[1]["name"] != "convert_image_dtype" {
			inputs = append(inputs, "i16:l16.png")
		}
		return inputs
	}
	return []string{"rgb.png", "f-420-b.jpg", "l:l.png"}
}

// runRecipes runs every recipe on its inputs with n draws each.
func runRecipes(t *testing.T, n int, use func(Result)) {
	t.Helper()
	images := inputs(t)
	for i, steps := range operatorRecipes() {
		for _, input := range inputsOf(steps) {
			mode, name, ok := strings.Cut(input, ":")
			if !ok {
				mode, name = "rgb", input
			}
			decode := object{"name": "decode_image", "mode": mode}
			r := Recipe{Input: name, Steps: append([]object{decode}, steps...), Seed: uint64(i)}
			ops, err := r.Build()
			if err != nil {
				t.Fatalf("%v: %v", steps, err)
			}
			fused := op.Fuse(ops)
			for s := range uint64(n) {
				r.Sample = s
				result, err := r.Run(t.Context(), fused, s&1 == 1, images[name])
				if err != nil {
					t.Fatalf("%s %v: %v", name, steps, err)
				}
				use(result)
			}
		}
	}
}

// With MILLRACE_OPTEST_OPERATORS=FILE, the results of all recipes are written there, each a line of JSON and the bytes,
// for check_torchvision.py; without, a few are made twice and must be the same.
func TestOperatorDump(t *testing.T) {
	n := 2
	file := os.Getenv("MILLRACE_OPTEST_OPERATORS")
	if file != "" {
		n = 30
	}
	var dump bytes.Buffer
	runRecipes(t, n, func(r Result) {
		line, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		dump.Write(append(line, '\n'))
		dump.Write(r.Pixels)
	})
	if file != "" {
		if err := os.WriteFile(file, dump.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	again := 0
	runRecipes(t, n, func(r Result) {
		if !bytes.Contains(dump.Bytes()[again:], r.Pixels) {
			t.Errorf("%s %v, sample %d: other bytes when run again", r.Input, r.Steps, r.Sample)
		}
	})
}

// Recipes whose results were compared with torchvision give the same draws and bytes now, fused and one by one, with vector
// instructions and without.
func TestOperatorsEqualTorchvision(t *testing.T) {
	images := inputs(t)
	text, err := os.ReadFile("testdata/torchvision.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for line := range bytes.Lines(text) {
		var want Result
		if err := json.Unmarshal(line, &want); err != nil {
			t.Fatal(err)
		}
		if !promised(Case{Input: want.Input}) {
			continue
		}
		ops, err := want.Build()
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range want.Steps {
			name, _ := s["name"].(string)
			seen[name] = true
		}
		for i, chain := range [][]op.Operator{ops, op.Fuse(ops)} {
			got, err := want.Run(t.Context(), chain, i == 0, images[want.Input])
			if err != nil {
				t.Fatal(err)
			}
			got.Pixels = nil
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s %v, %d operators (-want +got)\n%s", want.Input, want.Steps, len(chain), diff)
			}
		}
	}
	missing := slices.DeleteFunc(op.Names(), func(name string) bool {
		return seen[name] || strings.HasPrefix(name, "virtual_") || slices.Contains([]string{"label", "select", "rename", "mixup", "cutmix", "python"}, name)
	})
	if len(missing) > 0 {
		t.Errorf("no case of %v; there are cases of %v", missing, slices.Sorted(maps.Keys(seen)))
	}
}
