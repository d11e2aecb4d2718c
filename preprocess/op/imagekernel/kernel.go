// Package imagekernel turns one encoded or decoded image into pixels of a batch in a single call: decode of just the
// rows and columns needed, crop, resize, flip, layout and element type, written straight into the destination.
//
// Resizing equals Pillow's byte for byte: its 22-bit fixed-point weights, its rounding between the two passes and its
// choice of which pass comes first. These loops use integers only. Those of Planes (colours, blur, warps) follow Pillow's
// own floating point: single operations, each rounded by itself and never fused. So every CPU gives the same bytes, with
// vector instructions or without.
//
// With cgo, JPEG is decoded by libjpeg-turbo exactly as its full default decode does. With the build tag purego (or
// CGO_ENABLED=0), image/jpeg decodes instead, whose pixels differ slightly; resizing is the same in both.
package imagekernel

import (
	"github.com/millrace/millrace/internal/errkind"
)

// Filter is a resampling filter of Pillow.
type Filter uint8

const (
	// Bilinear is a triangle of support 1, torchvision's default.
	Bilinear Filter = iota
	// Bicubic is Keys' cubic with a = -0.5.
	Bicubic
	// Nearest takes one source pixel per output pixel.
	Nearest
	// Box is the mean over the source area.
	Box
	// Hamming is a Hamming-windowed sinc of support 1.
	Hamming
	// Lanczos is a sinc windowed by a sinc of support 3.
	Lanczos
)

// Rect is a rectangle of pixels: its top left corner and size.
type Rect struct{ X, Y, W, H int }

// intersect is the common part of r and s, of zero size when there is none.
func (r Rect) intersect(s Rect) Rect {
	x0, y0 := max(r.X, s.X), max(r.Y, s.Y)
	x1, y1 := min(r.X+r.W, s.X+s.W), min(r.Y+r.H, s.Y+s.H)
	if x1 <= x0 || y1 <= y0 {
		return Rect{X: x0, Y: y0}
	}
	return Rect{X: x0, Y: y0, W: x1 - x0, H: y1 - y0}
}

// Intersect is the common part of r and s, of zero size when there is none.
func (r Rect) Intersect(s Rect) Rect { return r.intersect(s) }

// Order says which pass of a resize comes first.
type Order uint8

const (
	// OrderPillow13 is the rule of Pillow 13 and later: the vertical pass first when it shrinks much more.
	OrderPillow13 Order = iota
	// OrderHorizontal is the rule of all earlier versions.
	OrderHorizontal
)

// Element is the type of an output element.
type Element uint8

const (
	// Uint8 writes the pixel itself.
	Uint8 Element = iota
	// Table16 writes the low 16 bits of the table's entry.
	Table16
	// Table32 writes the table's entry.
	Table32
)

func (e Element) size() int { return [...]int{1, 2, 4}[e] }

// Table maps a channel's byte to the bits of an output element.
type Table [3][256]uint32

// Job is one image's way from source to destination.
type Job struct {
	// JPEG is an encoded image and Header what Probe said of it. Without it, Pix holds decoded pixels, of an upright
	// image unless Orient is set.
	JPEG   []byte
	Header Header
	// Pix is H rows of W pixels of C (1, 3 or 4) bytes; the fourth byte is ignored. With PlanarPix it is C (1 or 3)
	// planes instead.
	Pix       []byte
	W, H, C   int
	PlanarPix bool
	// Orient turns the source upright by its EXIF orientation (Header.Orientation) before all else.
	Orient bool
	// Ink says that a JPEG of four components has inks as they are, not turned over as Adobe's programs write them.
	Ink bool
	// Gray takes the source's ITU-R 601 luma, as Pillow's convert("L") does.
	Gray bool

	// Scale, if it is 2, 4 or 8, decodes a JPEG at that fraction of its size, by fewer terms of its cosine transform:
	// faster, and not the same pixels. Crop still counts pixels of the whole. Without libjpeg it does nothing.
	Scale int

	// Crop is the part of the (upright) source that is resized.
	Crop Rect
	// ResizeW and ResizeH are the size that Crop is brought to.
	ResizeW, ResizeH int
	Filter           Filter
	Order            Order
	// Window is the part of the resized image that is written; it may lie partly outside.
	Window Rect
	// Visible is the part of the resized image that is shown; all else in Window is Fill.
	Visible Rect
	Fill    [3]uint8
	// Flip mirrors the window left to right, Flop top to bottom.
	Flip, Flop bool

	// Channels is 1 (the first channel) or 3.
	Channels int
	// Planar writes C×H×W instead of H×W×C.
	Planar  bool
	Element Element
	// Table is needed unless Element is Uint8.
	Table *Table
	// Dst has exactly Window.W × Window.H × Channels elements.
	Dst []byte
}

// Limits bounds what an encoded image may ask for, checked on its header before memory is taken.
type Limits struct {
	// EncodedBytes is the size of the file.
	EncodedBytes int
	// Pixels is width × height; ProgressivePixels that of images stored in several scans, which need a full frame.
	Pixels, ProgressivePixels int64
	// Dimension is the greatest width or height.
	Dimension int
	// Aspect is how many times as long as the shorter side the longer one may be.
	Aspect int
	// Scans is the greatest number of scans of one image.
	Scans int
}

// DefaultLimits are the limits of decode_image.
func DefaultLimits() Limits {
	return Limits{EncodedBytes: 64 << 20, Pixels: 50_000_000, ProgressivePixels: 25_000_000, Dimension: 65_500, Aspect: 1000, Scans: 100}
}

// Kernel runs jobs one at a time and keeps its scratch memory between them. It is not safe for concurrent use.
type Kernel struct {
	limits Limits
	xTaps  taps
	yTaps  taps
	engine engine
	// row, sums and offsets are scratch memory of Blur, Mix and Warp.
	row, sums []float32
	offsets   []int32
	// crop is the part of the source, as it is decoded, that the job resizes.
	crop Rect
}

// New is a Kernel with these limits. Close frees its memory.
func New(limits Limits) *Kernel {
	k := &Kernel{limits: limits}
	k.engine.open()
	return k
}

// Scalar says whether jobs run without vector instructions, as they always do where the CPU has none. The bytes are the same.
func (k *Kernel) Scalar(scalar bool) { k.engine.scalar = scalar }

// Close frees the scratch memory. The Kernel may not be used again.
func (k *Kernel) Close() { k.engine.close() }

// Run does job. Damaged input is an error of kind BadData, a passed limit one of kind Exhausted.
func (k *Kernel) Run(job *Job) error {
	visible, err := k.prepare(job)
	if err != nil {
		return err
	}
	if job.scaled() {
		k.shrink(job, visible)
	}
	return k.engine.run(k, job, visible)
}

// scaled says whether the source is decoded smaller than it is.
func (job *Job) scaled() bool { return Exact && job.JPEG != nil && job.Scale > 1 }

// prepare checks job's geometry, which the pixel loops then trust, and computes the weights of both passes.
func (k *Kernel) prepare(job *Job) (Rect, error) {
	w, h := job.W, job.H
	if job.JPEG != nil {
		w, h = job.Header.W, job.Header.H
	} else if job.C != 1 && job.C != 3 && (job.C != 4 || job.PlanarPix) || len(job.Pix) != w*h*job.C {
		return Rect{}, errkind.Errorf(errkind.Internal, "image kernel: %d bytes for %dx%d pixels of %d", len(job.Pix), w, h, job.C)
	}
	if job.orientation() >= 5 {
		w, h = h, w
	}
	c := job.Crop
	if w <= 0 || h <= 0 || c.X < 0 || c.Y < 0 || c.W <= 0 || c.H <= 0 || c.X > w-c.W || c.Y > h-c.H {
		return Rect{}, errkind.Errorf(errkind.Internal, "image kernel: crop %+v of %dx%d pixels", c, w, h)
	}
	if job.ResizeW <= 0 || job.ResizeH <= 0 || job.Window.W <= 0 || job.Window.H <= 0 {
		return Rect{}, errkind.Errorf(errkind.Internal, "image kernel: resize to %dx%d, window %+v", job.ResizeW, job.ResizeH, job.Window)
	}
	if job.Channels != 1 && job.Channels != 3 || job.Element > Table32 || job.Element != Uint8 && job.Table == nil ||
		len(job.Dst) != job.Window.W*job.Window.H*job.Channels*job.Element.size() {
		return Rect{}, errkind.Errorf(errkind.Internal, "image kernel: %d bytes for a window of %+v with %d channels", len(job.Dst), job.Window, job.Channels)
	}
	if job.JPEG != nil && job.Scale != 0 && job.Scale != 1 && job.Scale != 2 && job.Scale != 4 && job.Scale != 8 || job.Scale > 1 && job.Filter == Nearest {
		return Rect{}, errkind.Errorf(errkind.Internal, "image kernel: scale %d", job.Scale)
	}
	k.crop = c
	visible := job.Visible.intersect(job.Window).intersect(Rect{W: job.ResizeW, H: job.ResizeH})
	k.xTaps.fill(job.Filter, c.W, job.ResizeW, visible.X, visible.W)
	k.yTaps.fill(job.Filter, c.H, job.ResizeH, visible.Y, visible.H)
	return visible, nil
}

// orientation is the EXIF orientation to undo, 1 for none.
func (job *Job) orientation() int {
	if !job.Orient && !job.Header.Upright || job.Header.Orientation < 1 {
		return 1
	}
	return job.Header.Orientation
}

// shrink replaces crop and weights by those for a source decoded at a fraction of its size: the crop becomes the whole
// pixels around it, the weights are those of its exact place in them.
func (k *Kernel) shrink(job *Job, visible Rect) {
	w, h := job.Header.W, job.Header.H
	o := job.orientation()
	flipX := o == 2 || o == 3 || o == 7 || o == 8
	flipY := o == 3 || o == 4 || o == 6 || o == 7
	if o >= 5 {
		w, h = h, w
		flipX, flipY = o == 6 || o == 7, o == 7 || o == 8
	}
	x0, nx, fx := shrunk(job.Crop.X, job.Crop.W, w, job.Scale, flipX)
	y0, ny, fy := shrunk(job.Crop.Y, job.Crop.H, h, job.Scale, flipY)
	k.crop = Rect{X: x0, Y: y0, W: nx, H: ny}
	scale := float64(job.Scale)
	k.xTaps.fillBox(job.Filter, nx, fx, float64(job.Crop.W)/scale, job.ResizeW, visible.X, visible.W)
	k.yTaps.fillBox(job.Filter, ny, fy, float64(job.Crop.H)/scale, job.ResizeH, visible.Y, visible.H)
}

// shrunk is where a span of n pixels from at lies in a side of size pixels decoded at 1/scale of it: the first whole
// pixel, their number, and how far into the first the span begins. A flipped side has its incomplete last pixel first.
func shrunk(at, n, size, scale int, flipped bool) (first, count int, begin float64) {
	total := (size + scale - 1) / scale
	shift := 0
	if flipped {
		shift = total*scale - size
	}
	first = (at + shift) / scale
	last := min((at+shift+n+scale-1)/scale, total)
	return first, last - first, float64(at+shift-first*scale) / float64(scale)
}

// verticalFirst is Pillow's choice of passes for a job.
func (k *Kernel) verticalFirst(job *Job) bool {
	dy, dx := k.crop.H-job.ResizeH, k.crop.W-job.ResizeW
	return job.Order == OrderPillow13 && dy > 0 && dy > 2*dx
}
