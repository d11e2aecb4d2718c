package imagekernel

import (
	"slices"

	"github.com/millrace/millrace/internal/errkind"
)

// Photometric interpretations.
const (
	tiffWhiteIsZero = iota
	tiffBlackIsZero
	tiffRGB
	tiffPalette
	tiffInk   = 5
	tiffYCbCr = 6
)

// Ways to hold a sample.
const (
	tiffUnsigned = iota + 1
	tiffSigned
	tiffFloat
)

// tiffLayout is how the pixels of a directory are stored.
type tiffLayout struct {
	d                        *tiffDirectory
	w, h                     int
	compression, photometric int
	// bits is that of each sample, samples how many there are of a pixel, extra how many of them are beyond its colours.
	bits, samples, format int
	extra                 []int
	planar                bool
	fillOrder, predictor  int
}

// readTIFFLayout reads what Pillow looks at, with its leniency.
func readTIFFLayout(d *tiffDirectory) (tiffLayout, error) {
	l := tiffLayout{
		d: d, w: d.number(tiffWidth, 0), h: d.number(tiffHeight, 0),
		compression: d.number(tiffCompression, 1), photometric: d.number(tiffPhotometric, 0),
		planar: d.number(tiffPlanar, 1) == 2, fillOrder: d.number(tiffFillOrder, 1),
		predictor: d.number(tiffPredictor, 1), samples: d.number(tiffSamples, 1), extra: d.ints(tiffExtraSamples),
	}
	bits := d.ints(tiffBits)
	if len(bits) == 0 {
		bits = []int{1}
	}
	if l.planar && len(l.extra) > 0 && slices.Max(l.extra) == 0 {
		// Further planes that mean nothing are passed over.
		l.samples -= len(l.extra)
		bits = bits[:max(len(bits)-len(l.extra), 1)]
		l.extra = nil
	}
	if l.samples < 1 || l.samples > tiffMostPixelFields {
		return l, errkind.Errorf(errkind.BadData, "TIFF of %d samples a pixel", l.samples)
	}
	bits = bits[:min(len(bits), l.samples)]
	if len(bits) != 1 && len(bits) != l.samples || slices.Max(bits) != slices.Min(bits) {
		return l, errkind.Errorf(errkind.BadData, "TIFF with samples of %v bits, %d a pixel", bits, l.samples)
	}
	l.bits = bits[0]
	formats := d.ints(tiffSampleFormat)
	l.format = tiffUnsigned
	if len(formats) > 0 {
		if slices.Max(formats) != slices.Min(formats) {
			return l, errkind.Errorf(errkind.BadData, "TIFF with samples of differing formats %v", formats)
		}
		l.format = formats[0]
	}
	return l, nil
}

// unsupported is the error for what is no kind that Pillow, or this, reads.
func (l *tiffLayout) unsupported() error {
	return errkind.Errorf(errkind.BadData, "TIFF of a kind that is not supported: photometric interpretation %d, %d samples of %d bits and format %d, extra samples %v",
		l.photometric, l.samples, l.bits, l.format, l.extra)
}

// kind is what the pixels become; ok is false for combinations that Pillow does not read.
func (l *tiffLayout) kind() (sample, bool) {
	plain := l.format == tiffUnsigned
	colors := map[int]int{tiffRGB: 3, tiffInk: 4}[l.photometric]
	switch l.photometric {
	case tiffWhiteIsZero, tiffBlackIsZero:
		return l.grayKind()
	case tiffPalette:
		switch {
		case plain && l.samples == 1 && slices.Contains([]int{1, 2, 4, 8}, l.bits), plain && l.bits == 8 && slices.Equal(l.extra, []int{0}) && l.samples == 2:
			return sampleIndex, true
		case plain && l.bits == 8 && slices.Equal(l.extra, []int{2}) && l.samples == 2:
			return sampleIndexAlpha, true
		}
	case tiffRGB:
		if plain && (l.bits == 8 || l.bits == 16) && l.samples >= colors && l.samples <= 6 && (len(l.extra) == l.samples-colors || l.samples == 4 && len(l.extra) == 0) {
			return sampleColor, true
		}
	case tiffInk:
		if plain && (l.bits == 8 && l.samples <= 6 || l.bits == 16 && l.samples == 4) && l.samples >= colors {
			return sampleInk, true
		}
	case tiffYCbCr:
		if plain && l.bits == 8 && l.compression == tiffJPEG && l.samples == 3 {
			return sampleColor, true
		}
	}
	return 0, false
}

// grayKind is the kind of one sample, perhaps with alpha.
func (l *tiffLayout) grayKind() (sample, bool) {
	black := l.photometric == tiffBlackIsZero
	if l.samples == 2 {
		return sampleColor, black && l.bits == 8 && l.format == tiffUnsigned && len(l.extra) == 1 && l.extra[0] != 1
	}
	if l.samples != 1 {
		return 0, false
	}
	switch {
	case l.format == tiffUnsigned && slices.Contains([]int{1, 2, 4, 8}, l.bits), l.format == tiffSigned && l.bits == 8 && black:
		return sampleGray, true
	case l.format == tiffUnsigned && (l.bits == 16 || l.bits == 12 && black):
		return sampleGray16, true
	case black && l.format == tiffSigned && l.bits == 16, black && l.bits == 32 && l.format != tiffFloat:
		return sampleInt32, true
	case l.format == tiffFloat && l.bits == 32:
		return sampleFloat32, true
	}
	return 0, false
}
