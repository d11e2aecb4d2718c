package imagekernel

import "encoding/binary"

// This file is the pixel loops in Go: what the purego build runs, and what tests hold the C loops against.

// frame is rows of 4-byte pixels, w of them, taken from a source.
type frame struct {
	w, h int
	pix  []byte
}

func (f frame) row(y int) []byte { return f.pix[y*f.w*4 : (y+1)*f.w*4] }

func newFrame(w, h int) frame { return frame{w: w, h: h, pix: make([]byte, w*h*4)} }

// join is the part r of an image of three planes, as 4-byte pixels.
func join(pix []byte, w, h int, r Rect) frame {
	f := newFrame(r.W, r.H)
	n := w * h
	for y := range r.H {
		at, out := (y+r.Y)*w+r.X, f.row(y)
		for x := range r.W {
			put(out[4*x:], pix[at+x], pix[n+at+x], pix[2*n+at+x])
		}
	}
	return f
}

// expand is the part r of an image of c bytes a pixel, as 4-byte pixels.
func expand(pix []byte, w, c int, r Rect) frame {
	f := newFrame(r.W, r.H)
	for y := range r.H {
		in, out := pix[((y+r.Y)*w+r.X)*c:], f.row(y)
		for x := range r.W {
			if c == 1 {
				put(out[4*x:], in[x], in[x], in[x])
			} else {
				put(out[4*x:], in[x*c], in[x*c+1], in[x*c+2])
			}
		}
	}
	return f
}

// toGray replaces each pixel by its luma in all three channels.
func (f frame) toGray() {
	for i := 0; i < len(f.pix); i += 4 {
		p := f.pix[i : i+4]
		v := byte((uint32(p[0])*19595 + uint32(p[1])*38470 + uint32(p[2])*7471 + 0x8000) >> 16) //nolint:gosec // The weights sum to 65,536.
		put(p, v, v, v)
	}
}

// upright is f turned by its EXIF orientation.
func (f frame) upright(orientation int) frame {
	if orientation <= 1 {
		return f
	}
	out := newFrame(f.w, f.h)
	if orientation >= 5 {
		out.w, out.h = f.h, f.w
	}
	for y := range out.h {
		for x := range out.w {
			sx, sy := orientedSource(orientation, x, y, f.w, f.h)
			copy(out.row(y)[4*x:4*x+4], f.row(sy)[4*sx:])
		}
	}
	return out
}

// orientedSource is where pixel (x, y) of the upright image is stored in a w×h image.
func orientedSource(orientation, x, y, w, h int) (sx, sy int) {
	switch orientation {
	case 2:
		return w - 1 - x, y
	case 3:
		return w - 1 - x, h - 1 - y
	case 4:
		return x, h - 1 - y
	case 5:
		return y, x
	case 6:
		return y, h - 1 - x
	case 7:
		return w - 1 - y, h - 1 - x
	case 8:
		return w - 1 - y, x
	}
	return x, y
}

// storedRect is where part r of the upright image is stored in a w×h image.
func storedRect(orientation int, r Rect, w, h int) Rect {
	x0, y0 := orientedSource(orientation, r.X, r.Y, w, h)
	x1, y1 := orientedSource(orientation, r.X+r.W-1, r.Y+r.H-1, w, h)
	return Rect{X: min(x0, x1), Y: min(y0, y1), W: max(x0, x1) - min(x0, x1) + 1, H: max(y0, y1) - min(y0, y1) + 1}
}

// finish resamples the part of the crop that the taps read and writes the window.
func (k *Kernel) finish(job *Job, crop frame, visible Rect) {
	if k.verticalFirst(job) {
		crop = horizontal(vertical(crop, &k.yTaps, visible.H), &k.xTaps, visible.W)
	} else {
		crop = vertical(horizontal(crop, &k.xTaps, visible.W), &k.yTaps, visible.H)
	}
	job.emit(crop, visible)
}

func horizontal(in frame, t *taps, w int) frame {
	out := newFrame(w, in.h)
	for y := range in.h {
		src, dst := in.row(y), out.row(y)
		for x := range w {
			first, n := int(t.bounds[2*x]), int(t.bounds[2*x+1])
			var sum [3]int32
			for j, weight := range t.weights[x*t.stride : x*t.stride+n] {
				p := src[4*(first+j) : 4*(first+j)+4]
				for c := range sum {
					sum[c] += int32(p[c]) * weight
				}
			}
			put(dst[4*x:], round(sum[0]), round(sum[1]), round(sum[2]))
		}
	}
	return out
}

func vertical(in frame, t *taps, h int) frame {
	out := newFrame(in.w, h)
	sums := make([]int32, 4*in.w)
	for y := range h {
		clear(sums)
		first, n := int(t.bounds[2*y]), int(t.bounds[2*y+1])
		for j, weight := range t.weights[y*t.stride : y*t.stride+n] {
			for i, v := range in.row(first + j) {
				sums[i] += int32(v) * weight
			}
		}
		dst := out.row(y)
		for i, sum := range sums {
			dst[i] = round(sum)
		}
	}
	return out
}

// round brings a fixed-point sum to a byte.
func round(sum int32) byte {
	v := (sum + 1<<(precisionBits-1)) >> precisionBits
	return byte(min(max(v, 0), 255))
}

// emit writes visible rows into the window, the rest of it as fill.
func (job *Job) emit(rows frame, visible Rect) {
	window := job.Window
	for y := range window.H {
		for x := range window.W {
			pixel := job.Fill
			vx, vy := x+window.X-visible.X, y+window.Y-visible.Y
			if vx >= 0 && vy >= 0 && vx < visible.W && vy < visible.H {
				pixel = [3]uint8(rows.row(vy)[4*vx:])
			}
			at, row := x, y
			if job.Flip {
				at = window.W - 1 - x
			}
			if job.Flop {
				row = window.H - 1 - y
			}
			for c := range job.Channels {
				i := (row*window.W+at)*job.Channels + c
				if job.Planar {
					i = (c*window.H+row)*window.W + at
				}
				job.put(i, c, pixel[c])
			}
		}
	}
}

func (job *Job) put(i, c int, v uint8) {
	switch job.Element {
	case Uint8:
		job.Dst[i] = v
	case Table16:
		binary.LittleEndian.PutUint16(job.Dst[2*i:], uint16(job.Table[c][v])) //nolint:gosec // The low half is what Table16 means.
	case Table32:
		binary.LittleEndian.PutUint32(job.Dst[4*i:], job.Table[c][v])
	}
}

// runPixels does a job whose source is decoded pixels of the whole stored image.
func (k *Kernel) runPixels(job *Job, pix []byte, w, h, c int, visible Rect) {
	orientation := job.orientation()
	xFrom, xTo := k.xTaps.rebase()
	yFrom, yTo := k.yTaps.rebase()
	read := Rect{X: job.Crop.X + int(xFrom), Y: job.Crop.Y + int(yFrom), W: int(xTo - xFrom), H: int(yTo - yFrom)}
	stored := storedRect(orientation, read, w, h)
	var crop frame
	if job.PlanarPix && c == 3 {
		crop = join(pix, w, h, stored)
	} else {
		crop = expand(pix, w, c, stored)
	}
	crop = crop.upright(orientation)
	if job.Gray {
		crop.toGray()
	}
	k.finish(job, crop, visible)
}
