package imagekernel

import "math"

// Warp maps each pixel of an output to a place in the input, as Pillow's Image.transform does.
type Warp struct {
	// M is the affine matrix (six values, by rows) from output to input, or the eight coefficients of a perspective.
	M           [8]float64
	Perspective bool
	// Filter is Nearest, Bilinear or Bicubic.
	Filter Filter
	// Fill is what lies outside of the input.
	Fill [3]uint8
}

// Warp writes in, warped, to out. Arithmetic is Pillow's: 16.16 fixed point for the nearest pixel of an affine map where
// that is enough, float64 else, each operation rounded by itself.
func (k *Kernel) Warp(out, in Planes, w *Warp) {
	for c := range out.C {
		fillBytes(out.Plane(c), w.Fill[c])
	}
	switch {
	case w.Filter == Bilinear || w.Filter == Bicubic:
		k.engine.warp(out, in, w)
	case w.Perspective:
		k.nearestPerspective(out, in, w)
	case w.M[1] == 0 && w.M[3] == 0:
		k.nearestScaled(out, in, w)
	case w.fits(out.W, out.H):
		f := w.fixed()
		k.offsets = grow(k.offsets, out.W)
		for y := range out.H {
			f.row(in, k.offsets)
			gather(out, in, y, k.offsets)
		}
	default:
		k.nearestFloating(out, in, w)
	}
}

func fillBytes(p []byte, v uint8) {
	for i := range p {
		p[i] = v
	}
}

// gather fills row y of out from offsets into a plane of in, negative where there is nothing.
func gather(out, in Planes, y int, offsets []int32) {
	for c := range out.C {
		dst, src := out.Row(c, y), in.Plane(c)
		for x, at := range offsets {
			if at >= 0 {
				dst[x] = src[at]
			}
		}
	}
}

// whole is the integer part of v if it lies in [0, n), else -1.
func whole(v float64, n int) int {
	if v >= 0 && v < float64(n) {
		return int(v)
	}
	return -1
}

func (p Planes) offset(x, y int) int32 {
	if x < 0 || y < 0 {
		return -1
	}
	return int32(y*p.W + x) //nolint:gosec // Below the limit on pixels.
}

// nearestScaled is a map without rotation: columns and rows are found once.
func (k *Kernel) nearestScaled(out, in Planes, w *Warp) {
	k.offsets = grow(k.offsets, out.W)
	// Pillow adds the step once per column; the rounding of that sum is part of its result.
	x := w.M[2] + float64(w.M[0]*0.5)
	for i := range k.offsets {
		k.offsets[i] = int32(whole(x, in.W)) //nolint:gosec // Below the limit on sizes.
		x += w.M[0]
	}
	yo := w.M[5] + float64(w.M[4]*0.5)
	for y := range out.H {
		if from := whole(yo, in.H); from >= 0 {
			for c := range out.C {
				dst, src := out.Row(c, y), in.Row(c, from)
				for i, at := range k.offsets {
					if at >= 0 {
						dst[i] = src[at]
					}
				}
			}
		}
		yo += w.M[4]
	}
}

// fits says whether all corners of a w×h output stay within 16.16 fixed point.
func (w *Warp) fits(width, height int) bool {
	for _, corner := range [4][2]float64{{0, 0}, {float64(width), float64(height)}, {0, float64(height)}, {float64(width), 0}} {
		for _, m := range [2][]float64{w.M[0:3], w.M[3:6]} {
			if v := float64(corner[0]*m[0]) + float64(corner[1]*m[1]) + m[2]; !(math.Abs(v) < 32768) {
				return false
			}
		}
	}
	return true
}

// fixed walks an affine map in 16.16 fixed point.
type fixed struct{ xx, xy, x0, yx, yy, y0 int32 }

func (w *Warp) fixed() fixed {
	m := &w.M
	fix := func(v float64) int32 { return int32(int64(math.Floor(float64(v*65536) + 0.5))) } //nolint:gosec // It wraps as Pillow's does.
	return fixed{
		xx: fix(m[0]), xy: fix(m[1]), x0: fix(m[2] + float64(m[0]*0.5) + float64(m[1]*0.5)),
		yx: fix(m[3]), yy: fix(m[4]), y0: fix(m[5] + float64(m[3]*0.5) + float64(m[4]*0.5)),
	}
}

func (f *fixed) row(in Planes, offsets []int32) {
	x, y := f.x0, f.y0
	for i := range offsets {
		offsets[i] = -1
		if sx, sy := int(x>>16), int(y>>16); sx >= 0 && sx < in.W && sy >= 0 && sy < in.H {
			offsets[i] = in.offset(sx, sy)
		}
		x += f.xx
		y += f.yx
	}
	f.x0 += f.xy
	f.y0 += f.yy
}

// nearestFloating walks an affine map in float64.
func (k *Kernel) nearestFloating(out, in Planes, w *Warp) {
	k.offsets = grow(k.offsets, out.W)
	m := &w.M
	startX, startY := m[2]+float64(m[1]*0.5)+float64(m[0]*0.5), m[5]+float64(m[4]*0.5)+float64(m[3]*0.5)
	for y := range out.H {
		sx, sy := startX, startY
		for i := range k.offsets {
			k.offsets[i] = in.offset(whole(sx, in.W), whole(sy, in.H))
			sx += m[0]
			sy += m[3]
		}
		gather(out, in, y, k.offsets)
		startX += m[1]
		startY += m[4]
	}
}

// at is where pixel (x, y) of the output comes from.
func (w *Warp) at(x, y int) (sx, sy float64) {
	m := &w.M
	fx, fy := float64(x)+0.5, float64(y)+0.5
	sx = float64(m[0]*fx) + float64(m[1]*fy) + m[2]
	sy = float64(m[3]*fx) + float64(m[4]*fy) + m[5]
	if w.Perspective {
		d := float64(m[6]*fx) + float64(m[7]*fy) + 1
		sx, sy = sx/d, sy/d
	}
	return sx, sy
}

func (k *Kernel) nearestPerspective(out, in Planes, w *Warp) {
	k.offsets = grow(k.offsets, out.W)
	for y := range out.H {
		for x := range k.offsets {
			sx, sy := w.at(x, y)
			k.offsets[x] = in.offset(whole(sx, in.W), whole(sy, in.H))
		}
		gather(out, in, y, k.offsets)
	}
}

// smooth interpolates between neighbours; beyond the edge the last row and column go on.
func (w *Warp) smooth(out, in Planes) {
	for y := range out.H {
		for x := range out.W {
			sx, sy := w.at(x, y)
			if !(sx >= 0 && sx < float64(in.W) && sy >= 0 && sy < float64(in.H)) {
				continue
			}
			sx -= 0.5
			sy -= 0.5
			fx, fy := math.Floor(sx), math.Floor(sy)
			n := neighbourhood{x: int(fx), y: int(fy), dx: sx - fx, dy: sy - fy}
			for c := range out.C {
				v := 0.0
				if w.Filter == Bilinear {
					v = n.bilinear(in, c)
				} else {
					v = n.bicubic(in, c)
				}
				out.Pix[(c*out.H+y)*out.W+x] = byte(max(0, min(255, v)))
			}
		}
	}
}

// neighbourhood is a place between pixels: the pixel above and to the left, and how far it is past that.
type neighbourhood struct {
	x, y   int
	dx, dy float64
}

func (n *neighbourhood) bilinear(in Planes, c int) float64 {
	x0, x1 := max(n.x, 0), min(n.x+1, in.W-1)
	row := in.Row(c, max(n.y, 0))
	v := linear(float64(row[x0]), float64(row[x1]), n.dx)
	below := v
	if n.y+1 < in.H {
		row = in.Row(c, n.y+1)
		below = linear(float64(row[x0]), float64(row[x1]), n.dx)
	}
	return linear(v, below, n.dy)
}

func linear(a, b, d float64) float64 { return a + float64((b-a)*d) }

func (n *neighbourhood) bicubic(in Planes, c int) float64 {
	var at [4]int
	for i := range at {
		at[i] = min(max(n.x-1+i, 0), in.W-1)
	}
	var v [4]float64
	last := 0.0
	for i := range v {
		// The first row goes on above the image; below, each row that is missing is the one before it.
		if y := n.y - 1 + i; i == 0 || y >= 0 && y < in.H {
			row := in.Row(c, max(y, 0))
			last = cubic(float64(row[at[0]]), float64(row[at[1]]), float64(row[at[2]]), float64(row[at[3]]), n.dx)
		}
		v[i] = last
	}
	return cubic(v[0], v[1], v[2], v[3], n.dy)
}

func cubic(a, b, c, d, t float64) float64 {
	p2 := c - a
	p3 := float64(2*(a-b)) + c - d
	p4 := b - a - c + d
	return b + float64(t*(p2+float64(t*(p3+float64(t*p4)))))
}

// Quarter writes in, turned counterclockwise by a number of quarter turns, to out.
func (p Planes) Quarter(out Planes, turns int) {
	for c := range p.C {
		for y := range p.H {
			for x, v := range p.Row(c, y) {
				switch turns & 3 {
				case 1:
					out.Row(c, p.W-1-x)[y] = v
				case 2:
					out.Row(c, p.H-1-y)[p.W-1-x] = v
				case 3:
					out.Row(c, x)[p.H-1-y] = v
				default:
					out.Row(c, y)[x] = v
				}
			}
		}
	}
}
