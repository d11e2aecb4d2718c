package op

import (
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/op/imagekernel"
)

// A deepImage is an image with alpha, 4 bytes a pixel, or of 16 bits a pixel. The kernel's jobs don't take those; they
// are rare, and are cut, mirrored and resized one step after the other.
type deepImage struct {
	w, h int
	// size is the bytes of a pixel, 4 or 2.
	size int
	pix  []byte
}

// deep says whether t is such an image, as H×W×C.
func (t imageType) deep() bool {
	return !t.encoded && !t.planar && (t.dtype == DTypeUint8 && t.channels == 4 || t.dtype == DTypeUint16)
}

// needPixels is an error unless t is an image that operators on geometry can work on.
func (t imageType) needPixels(operator, field string) error {
	if t.deep() {
		return nil
	}
	return t.needRaw(operator, field)
}

// needOneFill is an error for images with alpha where fill is a colour: it would need a fourth value.
func (t imageType) needOneFill(operator, field string, fill [3]uint8) error {
	if t.deep() && (fill[0] != fill[1] || fill[1] != fill[2]) {
		return errkind.Errorf(errkind.Invalid, "%s: fill has 3 values, images of field %q have %d channels; give one value, which is that of all", operator, field, t.channels)
	}
	return nil
}

// decodeDeep decodes the file in mode rgba or i16.
func (r *imageRun) decodeDeep(data []byte, h imagekernel.Header, p *decodeImage) error {
	orientation := 1
	if p.orient || h.Upright {
		orientation = h.Orientation
	}
	form := imagekernel.FormAlpha
	if p.mode == modeI16 {
		form = imagekernel.FormWide
	}
	pix, err := r.decode(form, data, h, nil)
	if err != nil {
		return err
	}
	d := &deepImage{size: form.Size()}
	d.pix, d.w, d.h = imagekernel.Upright(pix, h.W, h.H, d.size, orientation)
	r.deep = d
	return nil
}

// deepColumn starts with row i of a column of such images.
func (c *Column) deepRow(i int) *deepImage {
	m := c.image(i)
	pix := append([]byte(nil), m.Pix...) // The column is not ours to change.
	return &deepImage{w: m.W, h: m.H, size: m.C, pix: pix}
}

func (d *deepImage) row(y int) []byte { return d.pix[y*d.w*d.size : (y+1)*d.w*d.size] }

// cut makes rect the image; what lies outside is fill in every channel.
func (d *deepImage) cut(rect imagekernel.Rect, fill uint8) {
	out := deepImage{w: rect.W, h: rect.H, size: d.size, pix: make([]byte, rect.W*rect.H*d.size)}
	for i := range out.pix {
		if d.size == 4 || i%2 == 0 {
			out.pix[i] = fill
		}
	}
	inside := rect.Intersect(imagekernel.Rect{W: d.w, H: d.h})
	for y := range inside.H {
		in := d.row(inside.Y + y)[inside.X*d.size : (inside.X+inside.W)*d.size]
		copy(out.row(inside.Y - rect.Y + y)[(inside.X-rect.X)*d.size:], in)
	}
	*d = out
}

func (d *deepImage) mirror() {
	for y := range d.h {
		row := d.row(y)
		for left, right := 0, d.w-1; left < right; left, right = left+1, right-1 {
			for b := range d.size {
				row[left*d.size+b], row[right*d.size+b] = row[right*d.size+b], row[left*d.size+b]
			}
		}
	}
}

func (d *deepImage) upend() {
	for top, bottom := 0, d.h-1; top < bottom; top, bottom = top+1, bottom-1 {
		upper, lower := d.row(top), d.row(bottom)
		for i := range upper {
			upper[i], lower[i] = lower[i], upper[i]
		}
	}
}

// resize brings the image to w×h. Colours are multiplied by alpha meanwhile, as in Pillow.
func (d *deepImage) resize(k *imagekernel.Kernel, w, h int, filter imagekernel.Filter, order imagekernel.Order) error {
	if d.w == w && d.h == h {
		return nil
	}
	if d.size == 2 {
		out := imagekernel.Wide{W: d.w, H: d.h, Pix: d.pix}.Resize(w, h, filter, order)
		d.w, d.h, d.pix = w, h, out.Pix
		return nil
	}
	if filter != imagekernel.Nearest {
		imagekernel.MultiplyAlpha(d.pix)
	}
	alpha := make([]byte, d.w*d.h)
	for i := range alpha {
		alpha[i] = d.pix[4*i+3]
	}
	whole := imagekernel.Rect{W: w, H: h}
	job := imagekernel.Job{
		Pix: d.pix, W: d.w, H: d.h, C: 4, Crop: imagekernel.Rect{W: d.w, H: d.h}, ResizeW: w, ResizeH: h, Filter: filter, Order: order,
		Window: whole, Visible: whole, Channels: 3, Dst: make([]byte, 3*w*h),
	}
	if err := k.Run(&job); err != nil {
		return err
	}
	colors := job.Dst
	job.Pix, job.C, job.Channels, job.Dst = alpha, 1, 1, make([]byte, w*h)
	if err := k.Run(&job); err != nil {
		return err
	}
	out := make([]byte, 4*w*h)
	for i := range w * h {
		copy(out[4*i:4*i+3], colors[3*i:])
		out[4*i+3] = job.Dst[i]
	}
	if filter != imagekernel.Nearest {
		imagekernel.DivideAlpha(out)
	}
	d.w, d.h, d.pix = w, h, out
	return nil
}

// write writes the image as a row of the target type.
func (d *deepImage) write(dst []byte, target imageType, t tone) {
	from := imageType{h: int64(d.h), w: int64(d.w), channels: target.channels, dtype: DTypeUint8}
	if d.size == 2 {
		from.dtype = DTypeUint16
	}
	pixels := d.w * d.h
	for c := range int(target.channels) {
		for i := range pixels {
			convert(d.pix, from.element(c, i, pixels), from.dtype, dst, target.element(c, i, pixels), target.dtype, c, t)
		}
	}
}
