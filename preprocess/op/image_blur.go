package op

import (
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/op/imagekernel"
)

// gaussianBlur is torchvision's GaussianBlur: its kernel in float32, edges reflected, rounded to nearest even. It sums
// rows and columns one after the other, torchvision all products at once in an order of its library's; where a sum
// comes to lie within about 0.0001 of a half, a byte can differ by 1 (fewer than one in 50,000 do), never by more.
type gaussianBlur struct {
	place
	kernelW, kernelH int
	sigma            [2]float64
}

const maxKernel = 255

func buildGaussianBlur(index int, a *args) (Operator, error) {
	field := a.field("field")
	p := &gaussianBlur{}
	size := a.integers("kernel_size", "an odd integer or [width, height]", 1, maxKernel, 1, 2)
	if len(size) == 0 {
		a.required("kernel_size")
		size = []int64{1}
	}
	p.kernelW, p.kernelH = int(size[0]), int(size[len(size)-1])
	a.canon["kernel_size"] = []any{int64(p.kernelW), int64(p.kernelH)}
	if p.kernelW%2 == 0 || p.kernelH%2 == 0 {
		a.reject("kernel_size must be odd, not %v", size)
	}
	sigma := a.numbers("sigma", []float64{0.1, 2}, []int{1, 2}, 1e-3, 1e3)
	p.sigma = [2]float64{sigma[0], sigma[len(sigma)-1]}
	if p.sigma[0] > p.sigma[1] {
		a.fail("sigma", "[least, greatest]", sigma)
	}
	a.canon["sigma"] = []any{p.sigma[0], p.sigma[1]}
	if err := a.done(); err != nil {
		return nil, err
	}
	p.place = a.place(index)
	return newImageOp(field, p), nil
}

func (p *gaussianBlur) output(field string, in imageType) (imageType, error) {
	return in, in.needRaw(p.name, field)
}

func (p *gaussianBlur) apply(r *imageRun) error {
	sigma := r.draws.Uniform(p.sigma[0], p.sigma[1])
	if r.env.Drawn != nil {
		r.drawn(`{"sigma":%v}`, sigma)
	}
	return r.blur(p.kernelW, p.kernelH, sigma)
}

func (r *imageRun) blur(kernelW, kernelH int, sigma float64) error {
	if w, h := r.size(); kernelW/2 >= w || kernelH/2 >= h {
		return errkind.Errorf(errkind.BadData, "image of %dx%d pixels is too small for a kernel of %dx%d", w, h, kernelW, kernelH)
	}
	p, err := r.planes()
	if err != nil {
		return err
	}
	r.kernels[0] = imagekernel.GaussianKernel(kernelW, sigma, r.kernels[0])
	r.kernels[1] = imagekernel.GaussianKernel(kernelH, sigma, r.kernels[1])
	out := r.blank(p.W, p.H)
	r.kernel.Blur(out, p, r.kernels[0], r.kernels[1])
	r.use(out)
	return nil
}
