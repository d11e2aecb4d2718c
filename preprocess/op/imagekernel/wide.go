package imagekernel

import (
	"bytes"
	"encoding/binary"
	"image"
	"image/png"
	"math"

	"github.com/millrace/millrace/internal/errkind"
)

// Wide is an image of one little-endian uint16 a pixel, rows without gaps: Pillow's mode I;16.
type Wide struct {
	W, H int
	Pix  []byte
}

// DecodeWide decodes a file of one channel to 16 bits a pixel. Grey of 8 bits keeps its values, 32-bit integers are
// cut to the range, as Pillow's convert("I;16") does; colours are an error of kind BadData. h is what Probe said of it.
func DecodeWide(data []byte, h Header) (Wide, error) {
	w := Wide{W: h.W, H: h.H}
	switch h.Format {
	case FormatPNG:
		return w, w.fromPNG(data)
	case FormatBMP, FormatTIFF:
		p, err := decodeRaster(data, h)
		if err != nil {
			return w, err
		}
		return w, w.fromRaster(h.Format, &p)
	case FormatJPEG:
		return w, w.fromJPEG(data, h)
	case FormatAVIF:
		return w, w.fromAVIF(data, h)
	default:
	}
	return w, notGray(h.Format)
}

func notGray(f Format) error {
	return errkind.Errorf(errkind.BadData, "%s of colours, or of numbers that have no 16-bit form; mode i16 reads images of one channel", f)
}

func (w *Wide) put(i int, v uint16) { binary.LittleEndian.PutUint16(w.Pix[2*i:], v) }

func (w *Wide) fromAVIF(data []byte, h Header) error {
	if h.Components != 1 {
		return notGray(FormatAVIF)
	}
	pix, err := Decode(data, h, nil)
	if err != nil {
		return err
	}
	w.Pix = make([]byte, 2*w.W*w.H)
	for i := range w.W * w.H {
		w.put(i, uint16(pix[4*i]))
	}
	return nil
}

func (w *Wide) fromPNG(data []byte) error {
	decoded, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		return damaged(FormatPNG, err)
	}
	if b := decoded.Bounds(); b.Dx() != w.W || b.Dy() != w.H {
		return wrongSize(FormatPNG, w.W, w.H, b)
	}
	const grayType = 0 // Also of images with a transparent value, which are decoded to more channels.
	if data[25] != grayType {
		return notGray(FormatPNG)
	}
	w.Pix = make([]byte, 2*w.W*w.H)
	for i := range w.W * w.H {
		switch m := decoded.(type) {
		case *image.Gray:
			w.put(i, uint16(m.Pix[i]))
		case *image.Gray16:
			w.put(i, binary.BigEndian.Uint16(m.Pix[2*i:]))
		case *image.NRGBA:
			w.put(i, uint16(m.Pix[4*i]))
		case *image.NRGBA64:
			w.put(i, binary.BigEndian.Uint16(m.Pix[8*i:]))
		default:
			return notGray(FormatPNG)
		}
	}
	return nil
}

func (w *Wide) fromRaster(f Format, p *raster) error {
	if p.kind != sampleGray && p.kind != sampleGray16 && p.kind != sampleInt32 {
		return notGray(f)
	}
	w.Pix = make([]byte, 2*w.W*w.H)
	for i := range w.W * w.H {
		switch p.kind {
		case sampleGray:
			w.put(i, uint16(p.pix[i]))
		case sampleGray16:
			copy(w.Pix[2*i:2*i+2], p.pix[2*i:])
		default:
			v := int32(binary.LittleEndian.Uint32(p.pix[4*i:])) //nolint:gosec // The bits of an int32.
			w.put(i, uint16(min(max(v, 0), math.MaxUint16)))
		}
	}
	return nil
}

func (w *Wide) fromJPEG(data []byte, h Header) error {
	if h.Components != 1 {
		return notGray(FormatJPEG)
	}
	gray, err := decodeWhole(data, h, 1)
	if err != nil {
		return err
	}
	w.Pix = make([]byte, 2*w.W*w.H)
	for i, v := range gray {
		w.put(i, uint16(v))
	}
	return nil
}

// decodeWhole decodes all of a JPEG to channels (1 or 3) bytes a pixel.
func decodeWhole(data []byte, h Header, channels int) ([]byte, error) {
	k := New(DefaultLimits())
	defer k.Close()
	whole := Rect{W: h.W, H: h.H}
	h.Orientation = 1
	job := Job{JPEG: data, Header: h, Crop: whole, ResizeW: h.W, ResizeH: h.H, Window: whole, Visible: whole, Channels: channels, Dst: make([]byte, channels*h.W*h.H)}
	return job.Dst, k.Run(&job)
}

// DecodeAlpha is Decode, for JPEGs too, which are opaque.
func DecodeAlpha(data []byte, h Header) ([]byte, error) {
	if h.Format != FormatJPEG {
		return Decode(data, h, nil)
	}
	rgb, err := decodeWhole(data, h, 3)
	if err != nil {
		return nil, err
	}
	pix := make([]byte, 4*h.W*h.H)
	for i := range h.W * h.H {
		put(pix[4*i:], rgb[3*i], rgb[3*i+1], rgb[3*i+2])
	}
	return pix, nil
}

// Upright is an image of w×h pixels of size bytes turned by its EXIF orientation, and its size then.
func Upright(pix []byte, w, h, size, orientation int) (turned []byte, uprightW, uprightH int) {
	if orientation <= 1 {
		return pix, w, h
	}
	uprightW, uprightH = w, h
	if orientation >= 5 {
		uprightW, uprightH = h, w
	}
	turned = make([]byte, len(pix))
	for y := range uprightH {
		for x := range uprightW {
			sx, sy := orientedSource(orientation, x, y, w, h)
			copy(turned[(y*uprightW+x)*size:][:size], pix[(sy*w+sx)*size:])
		}
	}
	return turned, uprightW, uprightH
}

// Resize brings w to another size as Pillow does: weights in float64, each pass rounded to 16 bits. The sums are made
// in Pillow's order, so that they are the same everywhere.
func (w Wide) Resize(outW, outH int, filter Filter, order Order) Wide {
	if filter == Nearest {
		return w.nearest(outW, outH)
	}
	dy, dx := w.H-outH, w.W-outW
	if order == OrderPillow13 && dy > 0 && dy > 2*dx {
		return w.rows(outH, filter).columns(outW, filter)
	}
	return w.columns(outW, filter).rows(outH, filter)
}

func (w Wide) nearest(outW, outH int) Wide {
	var x, y taps
	x.fill(Nearest, w.W, outW, 0, outW)
	y.fill(Nearest, w.H, outH, 0, outH)
	out := Wide{W: outW, H: outH, Pix: make([]byte, 2*outW*outH)}
	for row := range outH {
		for column := range outW {
			if x.bounds[2*column+1] > 0 && y.bounds[2*row+1] > 0 {
				copy(out.Pix[2*(row*outW+column):][:2], w.Pix[2*(int(y.bounds[2*row])*w.W+int(x.bounds[2*column])):])
			}
		}
	}
	return out
}

// columns is the horizontal pass.
func (w Wide) columns(outW int, filter Filter) Wide {
	if outW == w.W {
		return w
	}
	out := Wide{W: outW, H: w.H, Pix: make([]byte, 2*outW*w.H)}
	eachWeights(filter, w.W, outW, func(x, first int, weights []float64) {
		for y := range w.H {
			out.put(y*outW+x, w.sum(y*w.W+first, 1, weights))
		}
	})
	return out
}

// rows is the vertical pass.
func (w Wide) rows(outH int, filter Filter) Wide {
	if outH == w.H {
		return w
	}
	out := Wide{W: w.W, H: outH, Pix: make([]byte, 2*w.W*outH)}
	eachWeights(filter, w.H, outH, func(y, first int, weights []float64) {
		for x := range w.W {
			out.put(y*w.W+x, w.sum(first*w.W+x, w.W, weights))
		}
	})
	return out
}

// sum is the weighted sum of pixels step apart, rounded and cut to 16 bits.
func (w Wide) sum(at, step int, weights []float64) uint16 {
	total := 0.0
	for i, weight := range weights {
		total += float64(float64(binary.LittleEndian.Uint16(w.Pix[2*(at+i*step):])) * weight)
	}
	return uint16(min(max(math.Floor(total+0.5), 0), math.MaxUint16))
}

// eachWeights calls use with the weights of each output of a pass, which sum to 1.
func eachWeights(filter Filter, in, out int, use func(i, first int, weights []float64)) {
	scale := float64(in) / float64(out)
	filterScale := max(scale, 1)
	support := filter.support() * filterScale
	exact := make([]float64, int(math.Ceil(support))*2+1)
	for i := range out {
		center := float64((float64(i) + 0.5) * scale)
		from := max(int(center-support+0.5), 0)
		n := min(int(center+support+0.5), in) - from
		weights := exact[:n]
		filter.weigh(weights, from, center, 1/filterScale)
		sum := 0.0
		for _, v := range weights {
			sum += v
		}
		for j := range weights {
			if sum != 0 {
				weights[j] /= sum
			}
		}
		use(i, from, weights)
	}
}

// MultiplyAlpha multiplies the colours of 4-byte pixels by their alpha, as Pillow does before it resizes them.
func MultiplyAlpha(pix []byte) {
	for i := 0; i+4 <= len(pix); i += 4 {
		for c := range 3 {
			t := uint32(pix[i+c])*uint32(pix[i+3]) + 128
			pix[i+c] = byte((t>>8 + t) >> 8) //nolint:gosec // A product of two fractions of 255.
		}
	}
}

// DivideAlpha undoes MultiplyAlpha, as Pillow does afterwards.
func DivideAlpha(pix []byte) {
	for i := 0; i+4 <= len(pix); i += 4 {
		if a := int(pix[i+3]); a != 0 && a != math.MaxUint8 {
			for c := range 3 {
				pix[i+c] = byte(min(255*int(pix[i+c])/a, math.MaxUint8)) //nolint:gosec // A fraction of 255.
			}
		}
	}
}
