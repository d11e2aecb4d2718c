package op

import (
	"slices"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/nearest"
)

// builders is the list of operators, by name in a recipe.
func builders() map[string]func(index int, a *args) (Operator, error) {
	return map[string]func(index int, a *args) (Operator, error){
		"aug_mix":                 buildAugMix,
		"auto_augment":            buildAutoAugment,
		"center_crop":             buildCenterCrop,
		"color_jitter":            buildColorJitter,
		"convert_image_dtype":     buildConvertImageDtype,
		"cutmix":                  buildCutMix,
		"decode_image":            buildDecodeImage,
		"five_crop":               buildFiveCrop,
		"gaussian_blur":           buildGaussianBlur,
		"grayscale":               buildGrayscale,
		"label":                   buildLabel,
		"mixup":                   buildMixUp,
		"normalize":               buildNormalize,
		"pad":                     buildPad,
		"python":                  buildPython,
		"rand_augment":            buildRandAugment,
		"random_adjust_sharpness": buildMaybe(readSharpness),
		"random_affine":           buildRandomAffine,
		"random_autocontrast":     buildMaybe(readAutocontrast),
		"random_crop":             buildRandomCrop,
		"random_equalize":         buildMaybe(readEqualize),
		"random_erasing":          buildRandomErasing,
		"random_grayscale":        buildRandomGrayscale,
		"random_horizontal_flip":  buildRandomFlip,
		"random_invert":           buildMaybe(readInvert),
		"random_perspective":      buildRandomPerspective,
		"random_posterize":        buildMaybe(readPosterize),
		"random_resized_crop":     buildRandomResizedCrop,
		"random_rotation":         buildRandomRotation,
		"random_solarize":         buildMaybe(readSolarize),
		"random_vertical_flip":    buildRandomFlip,
		"rename":                  buildRename,
		"resize":                  buildResize,
		"select":                  buildSelect,
		"ten_crop":                buildTenCrop,
		"to_tensor":               buildToTensor,
		"trivial_augment_wide":    buildTrivialAugmentWide,
		"virtual_emit":            buildVirtualEmit,
		"virtual_sleep":           buildVirtualSleep,
		"virtual_spin":            buildVirtualSpin,
	}
}

// Build makes the operator of that name with parameters as YAML or JSON gives them. index is its place in the recipe,
// a part of its random key. Errors are of kind Invalid and name the nearest known name.
func Build(name string, index int, params map[string]any) (Operator, error) {
	const maxIndex = 1 << 20
	if index < 0 || index > maxIndex {
		return nil, errkind.Errorf(errkind.Invalid, "operator %s at place %d; places go from 0 to %d", name, index, maxIndex)
	}
	build, ok := builders()[name]
	if !ok {
		return nil, errkind.Errorf(errkind.Invalid, "unknown operator %q%s", name, nearest.Hint(name, Names()))
	}
	return build(index, newArgs(name, params))
}

// Names lists the operators that Build knows, sorted.
func Names() []string {
	names := make([]string, 0, len(builders()))
	for name := range builders() {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
