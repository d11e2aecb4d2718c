package op

import (
	"slices"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/nearest"
)

// builders is the list of operators, by name in a recipe.
func builders() map[string]func(index int, a *args) (Operator, error) {
	return map[string]func(index int, a *args) (Operator, error){
		"center_crop":            buildCenterCrop,
		"decode_image":           buildDecodeImage,
		"label":                  buildLabel,
		"normalize":              buildNormalize,
		"random_crop":            buildRandomCrop,
		"random_horizontal_flip": buildRandomFlip,
		"random_resized_crop":    buildRandomResizedCrop,
		"rename":                 buildRename,
		"resize":                 buildResize,
		"select":                 buildSelect,
		"to_tensor":              buildToTensor,
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
