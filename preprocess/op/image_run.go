package op

import (
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/rng"
	"github.com/millrace/millrace/preprocess/op/imagekernel"
)

// imageRun is one image on its way through the parts of an imageOp. Parts only describe what is to be done: the steps
// add up to one kernel job (crop, resize, window, flip) that write runs, and only a step that the job can't take
// (a second resize, say) first runs what there is into memory.
type imageRun struct {
	kernel *imagekernel.Kernel
	env    *Env
	// outside decodes elsewhere what belongs there; nil: nothing does.
	outside *outside
	target  imageType
	// draws is the random source of the present part.
	draws rng.Source
	// badSource says that an error came up in reading the source, not in the present part.
	badSource bool
	// encoded is the file, until decode_image. fast says that it may be decoded at a fraction of its size.
	encoded []byte
	fast    bool

	// deep is the image when it has alpha or 16 bits; then it is all that counts.
	deep *deepImage

	job imagekernel.Job
	// crop is resized to resizeW × resizeH; visible is the part of that which later crops left, window what is seen of
	// it, padding included. All but crop are in pixels of the resized image.
	crop             imagekernel.Rect
	resizeW, resizeH int
	resized          bool
	visible, window  imagekernel.Rect
	padded           bool
	fill             [3]uint8
	flip, flop       bool
	// channels is that of the present image. planar says that the source is planes in one of the frames, which may be
	// changed in place.
	channels int
	planar   bool

	// element and table say how the target's elements follow from pixels.
	element imagekernel.Element
	table   imagekernel.Table
	// tone is what the parts so far do to values as they are written, float whether they are numbers by then.
	tone  tone
	float bool
	// pointwise says that there are no planes: the image is a tensor already.
	pointwise bool
	// erased are rectangles that are blanked in the output.
	erased []erasure
	// frames are the images between two jobs, and a decoded PNG. spare and aside hold images for operators.
	frames [2][]byte
	next   int
	// home is where the output goes, if that is planes of bytes and no part to come moves pixels: they may be made in it.
	home  []byte
	spare []byte
	aside []byte
	// bytes, counts and kernels are scratch memory of operators.
	bytes   [256]uint8
	counts  [256]uint32
	kernels [2][]float32
	warped  imagekernel.Warp
	// charged is what the present image takes of the budget.
	charged int64
	// row and part say what is being done, for Env.Drawn.
	row  int
	part part
}

// reset starts with row i of c.
func (r *imageRun) reset(c *Column, i int) {
	r.encoded, r.fast, r.badSource = nil, false, false
	r.tone, r.float, r.pointwise, r.erased, r.row = r.tone[:0], false, false, r.erased[:0], i
	r.job, r.deep = imagekernel.Job{}, nil
	if t, ok := imageTypeOf(c.Field); ok && t.deep() {
		r.deep = c.deepRow(i)
		return
	}
	switch c.Kind {
	case KindBytes, KindText:
		r.encoded = c.Bytes[i]
	case KindImage:
		m := c.Images[i]
		r.source(m.Pix, m.W, m.H, m.C)
	case KindTensor:
		r.source(c.TensorRow(i), int(c.Shape[1]), int(c.Shape[0]), int(c.Shape[2]))
	case KindInvalid, KindInt64, KindFloat64:
	}
}

// smallScratch is what an image may take without being charged: it fits beside the budget.
const smallScratch = 4 << 20

// charge charges what decoding takes, until the row is done. Who decodes elsewhere charges it there.
func (r *imageRun) charge(h imagekernel.Header) {
	if r.env.Charge == nil || r.outside != nil && r.outside.takes(h.Format) {
		return
	}
	if n := h.Scratch(); n > smallScratch {
		r.charged = n
		r.env.Charge(n)
	}
}

// discharge gives back what charge took.
func (r *imageRun) discharge() {
	if r.charged != 0 {
		r.env.Charge(-r.charged)
		r.charged = 0
	}
}

// source starts from decoded pixels.
func (r *imageRun) source(pix []byte, w, h, c int) {
	r.job = imagekernel.Job{Pix: pix, W: w, H: h, C: c}
	r.channels, r.planar = c, false
	r.frame(w, h)
}

// use starts from p, which lies in one of the frames.
func (r *imageRun) use(p imagekernel.Planes) {
	r.source(p.Pix, p.W, p.H, p.C)
	r.job.PlanarPix, r.planar = true, true
}

// planes is the present image as planes that may be changed in place.
func (r *imageRun) planes() (imagekernel.Planes, error) {
	if !r.untouched() {
		if err := r.flush(); err != nil {
			return imagekernel.Planes{}, err
		}
	}
	return imagekernel.Planes{Pix: r.job.Pix, W: r.job.W, H: r.job.H, C: r.job.C}, nil
}

// untouched says whether the present image is just the planes of a frame.
func (r *imageRun) untouched() bool {
	whole := imagekernel.Rect{W: r.job.W, H: r.job.H}
	return r.planar && !r.resized && !r.padded && !r.flip && !r.flop && r.window == whole
}

// blank is a frame for a w×h image, to be filled and then used.
func (r *imageRun) blank(w, h int) imagekernel.Planes {
	return imagekernel.Planes{Pix: r.buffer(w * h * r.channels), W: w, H: h, C: r.channels}
}

// frame sets the geometry to all of a w×h image.
func (r *imageRun) frame(w, h int) {
	whole := imagekernel.Rect{W: w, H: h}
	r.crop, r.visible, r.window = whole, whole, whole
	r.resizeW, r.resizeH = w, h
	r.resized, r.padded, r.flip, r.flop, r.fill = false, false, false, false, [3]uint8{}
}

// size is the present width and height.
func (r *imageRun) size() (w, h int) {
	if r.deep != nil {
		return r.deep.w, r.deep.h
	}
	return r.window.W, r.window.H
}

// cut makes rect (in pixels of the present image) the image. Parts of rect outside of it are filled.
func (r *imageRun) cut(rect imagekernel.Rect, fill [3]uint8) error {
	if err := checkPixels(rect.W, rect.H); err != nil {
		return err
	}
	if r.deep != nil {
		r.deep.cut(rect, fill[0])
		return nil
	}
	w, h := r.size()
	outside := rect.X < 0 || rect.Y < 0 || rect.X+rect.W > w || rect.Y+rect.H > h
	if outside && r.padded && fill != r.fill {
		if err := r.flush(); err != nil {
			return err
		}
	}
	if r.flip {
		rect.X = w - rect.X - rect.W
	}
	if r.flop {
		rect.Y = h - rect.Y - rect.H
	}
	r.visible = r.visible.Intersect(r.window)
	rect.X += r.window.X
	rect.Y += r.window.Y
	r.visible = r.visible.Intersect(rect)
	r.window = rect
	if outside {
		r.padded, r.fill = true, fill
	}
	return nil
}

// resize brings the image to w×h.
func (r *imageRun) resize(w, h int, filter imagekernel.Filter, order imagekernel.Order) error {
	if err := checkPixels(w, h); err != nil {
		return err
	}
	if r.deep != nil {
		return r.deep.resize(r.kernel, w, h, filter, order)
	}
	if ow, oh := r.size(); ow == w && oh == h {
		return nil
	}
	if r.resized || r.padded || r.flip || r.flop {
		if err := r.flush(); err != nil {
			return err
		}
	}
	r.crop = r.window
	whole := imagekernel.Rect{W: w, H: h}
	r.visible, r.window = whole, whole
	r.resizeW, r.resizeH, r.resized = w, h, true
	r.job.Filter, r.job.Order = filter, order
	return nil
}

// mirror flips the image left to right.
func (r *imageRun) mirror() {
	if r.deep != nil {
		r.deep.mirror()
	}
	r.flip = !r.flip
}

// upend flips the image top to bottom.
func (r *imageRun) upend() {
	if r.deep != nil {
		r.deep.upend()
	}
	r.flop = !r.flop
}

// checkPixels bounds what an operator may make of an image: a thin one resized by its shorter side can become huge.
func checkPixels(w, h int) error {
	limits := imagekernel.DefaultLimits()
	if w <= 0 || h <= 0 {
		return errkind.Errorf(errkind.BadData, "image would become %dx%d pixels", w, h)
	}
	if w > limits.Dimension || h > limits.Dimension || int64(w)*int64(h) > limits.Pixels {
		return errkind.Errorf(errkind.Exhausted, "image would become %dx%d pixels; the limit is %d pixels, %d on each side", w, h, limits.Pixels, limits.Dimension)
	}
	return nil
}

// flush runs the steps so far into memory and goes on from there.
func (r *imageRun) flush() error {
	w, h := r.size()
	p := r.blank(w, h)
	if err := r.run(p.Pix, true, imagekernel.Uint8); err != nil {
		r.badSource = true
		return err
	}
	r.use(p)
	return nil
}

// buffer is a frame that the present source doesn't lie in, n bytes long.
func (r *imageRun) buffer(n int) []byte {
	if n > 0 && len(r.home) == n && !r.arrived() {
		return r.home
	}
	r.next = 1 - r.next
	if cap(r.frames[r.next]) < n {
		r.frames[r.next] = make([]byte, n)
	}
	r.frames[r.next] = r.frames[r.next][:n]
	return r.frames[r.next]
}

// arrived says whether the present source lies in home.
func (r *imageRun) arrived() bool {
	return len(r.home) > 0 && len(r.job.Pix) > 0 && &r.job.Pix[0] == &r.home[0]
}

// write runs the steps into dst, a row of the target type.
func (r *imageRun) write(dst []byte) error {
	if r.deep != nil {
		r.deep.write(dst, r.target, r.tone)
		return nil
	}
	if r.target.planar && r.element == imagekernel.Uint8 && r.untouched() {
		if !r.arrived() {
			copy(dst, r.job.Pix)
		}
	} else if err := r.run(dst, r.target.planar, r.element); err != nil {
		return err
	}
	r.erase(dst)
	return nil
}

func (r *imageRun) run(dst []byte, planar bool, element imagekernel.Element) error {
	j := &r.job
	j.Crop, j.ResizeW, j.ResizeH = r.crop, r.resizeW, r.resizeH
	j.Visible, j.Window, j.Fill, j.Flip, j.Flop = r.visible, r.window, r.fill, r.flip, r.flop
	if !r.resized {
		// Without a resize the crop is the window itself, so that nothing else is read.
		j.Visible = r.visible.Intersect(r.window)
		if j.Visible.W > 0 {
			j.Crop, j.ResizeW, j.ResizeH = j.Visible, j.Visible.W, j.Visible.H
			j.Window.X -= j.Visible.X
			j.Window.Y -= j.Visible.Y
			j.Visible.X, j.Visible.Y = 0, 0
		}
	}
	j.Scale = 0
	if r.fast && r.resized && j.JPEG != nil && j.Filter != imagekernel.Nearest {
		for s := 8; s > 1 && j.Scale == 0; s /= 2 {
			if j.Crop.W >= s*j.ResizeW && j.Crop.H >= s*j.ResizeH {
				j.Scale = s
			}
		}
	}
	j.Channels, j.Planar, j.Element, j.Dst = r.channels, planar, element, dst
	j.Table = nil
	if element != imagekernel.Uint8 {
		j.Table = &r.table
	}
	return r.do(j)
}
