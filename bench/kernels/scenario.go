package kernels

import (
	"github.com/millrace/millrace/internal/errkind"
)

// Scenario is one kind of file and what is done to it.
type Scenario struct {
	// Name is what it is called on the command line and in results.
	Name string
	// About says in one line what it measures.
	About string
	// set names the files, decode is a parameter of decode_image, steps are the operators after it.
	set, decode string
	steps       []step
	// ready says that images are decoded beforehand.
	ready bool
	// share is how many of Options.Images are used, one in so many.
	share int
	cores int
	// same judges the pixels.
	same judge
}

// step is an operator by name and parameters, as recipes have it.
type step struct {
	Name   string         `json:"name"`
	Params map[string]any `json:"params"`
}

const size = 224 // pixels, of the results

func crop() []step {
	return []step{
		{"random_resized_crop", map[string]any{"size": size}},
		{"random_horizontal_flip", map[string]any{"p": 0.5}},
	}
}

func jitter(hue float64) []step {
	return []step{{"color_jitter", map[string]any{"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": hue}}}
}

// Scenarios lists them.
func Scenarios() []Scenario {
	blur := []step{{"gaussian_blur", map[string]any{"kernel_size": 23}}}
	return []Scenario{
		{Name: "jpeg_44k", About: "crop, resize to 224² and flip of JPEGs of 500x375 pixels and 44 KB", set: "jpeg_44k", steps: crop()},
		{Name: "jpeg_103k", About: "the same of 103 KB, about ImageNet's mean", set: "jpeg_103k", steps: crop()},
		{Name: "jpeg_103k_restart", About: "the same files with restart markers", set: "jpeg_103k_restart", steps: crop()},
		{Name: "jpeg_1600_exact", About: "the same of 1600x1200 pixels and 344 KB", set: "jpeg_1600", share: 4, steps: crop()},
		{Name: "jpeg_1600_fast", About: "the same with decode: fast, whose pixels are not the peer's", set: "jpeg_1600", share: 4, decode: "fast", steps: crop(), same: alike},
		{Name: "jitter", About: "ColorJitter(0.4, 0.4, 0.4) of decoded images of 224²", set: "ready", ready: true, steps: jitter(0)},
		{Name: "jitter_hue", About: "ColorJitter(0.4, 0.4, 0.4, 0.1) of the same", set: "ready", ready: true, steps: jitter(0.1)},
		{Name: "blur23", About: "GaussianBlur(23) of the same", set: "ready", ready: true, share: 4, steps: blur, same: almost},
		{Name: "two_cores", About: "jpeg_103k on two cores, by the clock", set: "jpeg_103k", steps: crop(), cores: 2},
	}
}

// Find is the scenario of a name.
func Find(name string) (Scenario, error) {
	for _, s := range Scenarios() {
		if s.Name == name {
			return s, nil
		}
	}
	return Scenario{}, errkind.Errorf(errkind.Invalid, "there is no scenario %q of kernels", name)
}
