package imagekernel

import (
	"math"
	"math/bits"

	"github.com/millrace/millrace/internal/libm"
)

// Affine is a matrix of two rows and three columns.
type Affine [6]float64

func radians(degrees float64) float64 { return float64(degrees * (math.Pi / 180)) }

func tan(x float64) float64 {
	sin, cos := sinCos(x)
	return sin / cos
}

// InverseAffine is torchvision's _get_inverse_affine_matrix: from output to input, of a rotation, scaling and shear
// (degrees) about a centre and a shift.
func InverseAffine(centerX, centerY, angle, shiftX, shiftY, scale, shearX, shearY float64) Affine {
	rot, sx, sy := radians(angle), radians(shearX), radians(shearY)
	sinR, cosR := sinCos(rot)
	sinD, cosD := sinCos(rot - sy)
	_, cosY := sinCos(sy)
	a := cosD / cosY
	b := float64(-cosD*tan(sx))/cosY - sinR
	c := sinD / cosY
	d := float64(-sinD*tan(sx))/cosY + cosR
	m := Affine{d / scale, -b / scale, 0, -c / scale, a / scale, 0}
	m[2] += float64(m[0]*(-centerX-shiftX)) + float64(m[1]*(-centerY-shiftY))
	m[5] += float64(m[3]*(-centerX-shiftX)) + float64(m[4]*(-centerY-shiftY))
	m[2] += centerX
	m[5] += centerY
	return m
}

func (m *Affine) apply(x, y float64) (float64, float64) {
	return float64(m[0]*x) + float64(m[1]*y) + m[2], float64(m[3]*x) + float64(m[4]*y) + m[5]
}

// Rotation is what Pillow's Image.rotate makes of a counterclockwise angle in degrees on a w×h image: the matrix from
// output to input, and the output's size, which differs from w×h only with expand.
func Rotation(w, h int, angle, centerX, centerY float64, expand bool) (m Affine, outW, outH int) {
	sin, cos := sinCos(-radians(angle))
	m = Affine{round15(cos), round15(sin), 0, round15(-sin), round15(cos), 0}
	m[2], m[5] = m.apply(-centerX, -centerY)
	m[2] += centerX
	m[5] += centerY
	if !expand {
		return m, w, h
	}
	minX, minY, maxX, maxY := math.Inf(1), math.Inf(1), math.Inf(-1), math.Inf(-1)
	for _, corner := range [4][2]float64{{0, 0}, {float64(w), 0}, {float64(w), float64(h)}, {0, float64(h)}} {
		x, y := m.apply(corner[0], corner[1])
		minX, maxX, minY, maxY = min(minX, x), max(maxX, x), min(minY, y), max(maxY, y)
	}
	outW, outH = int(math.Ceil(maxX)-math.Floor(minX)), int(math.Ceil(maxY)-math.Floor(minY))
	m[2], m[5] = m.apply(-float64(outW-w)/2, -float64(outH-h)/2)
	return m, outW, outH
}

// Degrees brings an angle to [0, 360), as Python's % does.
func Degrees(angle float64) float64 {
	if angle = math.Mod(angle, 360); angle < 0 {
		angle += 360
	}
	return angle
}

// round15 is Python's round(x, 15) for |x| ≤ 2: to nearest, ties to even, of the exact value.
func round15(x float64) float64 {
	const scale = 1_000_000_000_000_000
	b := math.Float64bits(x)
	exponent := int(b>>52) & 0x7FF
	if exponent < 1023-60 {
		return math.Copysign(0, x)
	}
	hi, lo := bits.Mul64(b&(1<<52-1)|1<<52, scale)
	shift := uint(1075 - exponent) // 51 to 112.
	var whole, rest, half uint64   // The rest is scaled so that 2^63 is a half, if only roughly.
	if shift < 64 {
		whole = hi<<(64-shift) | lo>>shift
		rest, half = lo<<(64-shift), 1<<63
	} else {
		whole = hi >> (shift - 64)
		rest, half = hi<<(128-shift), 1<<63
		if shift == 64 {
			rest = lo
		} else if lo != 0 {
			rest |= 1
		}
	}
	if rest > half || rest == half && whole&1 == 1 {
		whole++
	}
	return math.Copysign(float64(whole)/scale, x)
}

// Perspective is torchvision's _get_perspective_coeffs: the float32 coefficients that map the corners end back to start.
func Perspective(start, end [4][2]int) [8]float64 {
	var a [8][9]float64
	for i := range 4 {
		x, y := float64(end[i][0]), float64(end[i][1])
		sx, sy := float64(start[i][0]), float64(start[i][1])
		a[2*i] = [9]float64{x, y, 1, 0, 0, 0, -sx * x, -sx * y, sx}
		a[2*i+1] = [9]float64{0, 0, 0, x, y, 1, -sy * x, -sy * y, sy}
	}
	m := solve(&a)
	for i, v := range m {
		m[i] = float64(float32(v))
	}
	return m
}

// solve is Gauss's elimination with the greatest pivot of each column. Corners in a line give no finite answer.
func solve(a *[8][9]float64) [8]float64 {
	for col := range 8 {
		pivot := col
		for row := col + 1; row < 8; row++ {
			if math.Abs(a[row][col]) > math.Abs(a[pivot][col]) {
				pivot = row
			}
		}
		a[col], a[pivot] = a[pivot], a[col]
		for row := col + 1; row < 8; row++ {
			factor := a[row][col] / a[col][col]
			for i := col; i < 9; i++ {
				a[row][i] -= float64(factor * a[col][i])
			}
		}
	}
	var x [8]float64
	for row := 7; row >= 0; row-- {
		sum := a[row][8]
		for i := row + 1; i < 8; i++ {
			sum -= float64(a[row][i] * x[i])
		}
		x[row] = sum / a[row][row]
	}
	return x
}

// GaussianKernel is the right half, centre first, of torchvision's kernel of size values (odd) for a sigma.
func GaussianKernel(size int, sigma float64, half []float32) []float32 {
	half = grow(half, size/2+1)
	sum := float32(0)
	for i := range half {
		x := float32(i) / float32(sigma)
		half[i] = float32(libm.Exp(float64(-0.5 * float32(x*x))))
		sum += half[i]
		if i > 0 {
			sum += half[i]
		}
	}
	for i := range half {
		half[i] /= sum
	}
	return half
}
