package op

import (
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/op/imagekernel"
)

// decodeImage reads JPEG, PNG, WebP, GIF, BMP and TIFF, with Pillow's pixels.
type decodeImage struct {
	place
	// mode is that of Pillow: rgb, l (grey), rgba, p (the indices of a palette) or i16.
	mode   string
	orient bool
	// fast decodes a JPEG at 1/2, 1/4 or 1/8 of its size as long as what is resized next, in the same fused operator, stays
	// at least as large as what it is resized to.
	fast bool
	// alpha is the grey that transparent pixels are laid on, -1 to drop alpha.
	alpha int
}

// Modes of images.
const (
	modeRGB  = "rgb"
	modeGray = "l"
	modeRGBA = "rgba"
	modeP    = "p"
	modeI16  = "i16"
)

// place is the part of every part that says where it stands and how it is described.
type place struct {
	name   string
	at     int
	params map[string]any
}

func (p place) info() Info { return cpuInfo(p.name, 1, p.params) }
func (p place) index() int { return p.at }

func buildDecodeImage(index int, a *args) (Operator, error) {
	field := a.field("field")
	mode := a.text("mode", modeRGB, modeRGB, modeGray, modeRGBA, modeP, modeI16)
	orient := a.text("exif", "apply", "apply", "ignore") == "apply"
	alpha := map[string]int{"drop": -1, "black": 0, "gray": 128, "white": 255}[a.text("alpha", "drop", "drop", "white", "black", "gray")]
	fast := a.text("decode", "exact", "exact", "fast") == "fast"
	if alpha >= 0 && (mode == modeRGBA || mode == modeP || mode == modeI16) {
		a.reject("alpha only goes with the modes rgb and l; mode %s keeps what the file has", mode)
	}
	if fast && (mode == modeRGBA || mode == modeI16) {
		a.reject("decode: fast only goes with the modes rgb and l")
	}
	if err := a.done(); err != nil {
		return nil, err
	}
	return newImageOp(field, &decodeImage{place: a.place(index), mode: mode, orient: orient, fast: fast, alpha: alpha}), nil
}

func (a *args) place(index int) place { return place{name: a.operator, at: index, params: a.canon} }

func (p *decodeImage) output(field string, in imageType) (imageType, error) {
	if !in.encoded {
		return imageType{}, errkind.Errorf(errkind.Invalid, "decode_image: field %q is decoded already; it is %s", field, in.field(field))
	}
	out := imageType{h: -1, w: -1, channels: 3, dtype: DTypeUint8}
	switch p.mode {
	case modeGray, modeP:
		out.channels = 1
	case modeRGBA:
		out.channels = 4
	case modeI16:
		out.channels, out.dtype = 1, DTypeUint16
	}
	return out, nil
}

func (p *decodeImage) apply(r *imageRun) error {
	data := r.encoded
	r.encoded = nil
	header, err := imagekernel.Probe(data, imagekernel.DefaultLimits())
	if err != nil {
		return err
	}
	r.charge(header)
	if p.mode == modeRGBA || p.mode == modeI16 {
		return r.decodeDeep(data, header, p)
	}
	r.job = imagekernel.Job{Header: header, Orient: p.orient, Gray: p.mode == modeGray}
	switch {
	case p.mode == modeP:
		pix, err := r.decode(imagekernel.FormIndices, data, header, r.buffer(0))
		if err != nil {
			return err
		}
		r.frames[r.next] = pix
		r.job.Pix, r.job.W, r.job.H, r.job.C = pix, header.W, header.H, 1
	case header.Format != imagekernel.FormatJPEG:
		pix, err := r.decode(imagekernel.FormColor, data, header, r.buffer(0))
		if err != nil {
			return err
		}
		if p.alpha >= 0 {
			imagekernel.Compose(pix, uint8(p.alpha)) //nolint:gosec // A byte, by how it is built.
		}
		r.frames[r.next] = pix
		r.job.Pix, r.job.W, r.job.H, r.job.C = pix, header.W, header.H, 4
	default:
		r.job.JPEG, r.fast = data, p.fast
	}
	r.channels, r.planar = 3, false
	if p.mode != modeRGB {
		r.channels = 1
	}
	w, h := header.Size(p.orient)
	r.frame(w, h)
	return nil
}
