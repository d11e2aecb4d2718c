//go:build !cgo || purego

package imagekernel

func (*engine) blendFlat(p []byte, base uint8, factor float32) { loops{}.blendFlat(p, base, factor) }

func (*engine) blend(p, from []byte, factor float32) { loops{}.blend(p, from, factor) }

func (*engine) saturate(p []byte, factor float32) { loops{}.saturate(p, factor) }

func (*engine) hue(p []byte, shift uint8) { loops{}.hue(p, shift) }

func (*engine) luma(out, p []byte) { loops{}.luma(out, p) }

func (*engine) lumaSum(p []byte) uint64 { return loops{}.lumaSum(p) }

func (*engine) lookup(p []byte, table *[256]uint8) { loops{}.lookup(p, table) }

func (*engine) histogram(p []byte, counts *[256]uint32) { loops{}.histogram(p, counts) }

func (*engine) smooth(out, p []byte, w, h int) { loops{}.smooth(out, p, w, h) }

func (*engine) blur(out, p []byte, w, h int, kx, ky, row []float32) {
	loops{}.blur(out, p, w, h, kx, ky, row)
}

func (*engine) mix(sums []float32, p []byte, weight float32, first bool) {
	loops{}.mix(sums, p, weight, first)
}

func (*engine) mixed(p []byte, sums []float32) { loops{}.mixed(p, sums) }

func (*engine) warp(out, in Planes, w *Warp) { w.smooth(out, in) }
