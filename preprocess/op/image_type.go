package op

import (
	"slices"

	"github.com/millrace/millrace/internal/errkind"
)

// imageType is what is known of an image field before any sample is read.
type imageType struct {
	// encoded says that the field still holds the file.
	encoded bool
	// h and w are -1 when they differ from sample to sample.
	h, w     int64
	channels int64
	dtype    DType
	planar   bool
}

// raw says whether the kernel takes it as it is: uint8 pixels of grey or colours, H×W×C.
func (t imageType) raw() bool {
	return !t.encoded && t.dtype == DTypeUint8 && !t.planar && t.channels != 4
}

// fixed says whether all images have one size.
func (t imageType) fixed() bool { return t.h >= 0 && t.w >= 0 }

var (
	dimsHWC = []string{"H", "W", "C"}
	dimsCHW = []string{"C", "H", "W"}
)

// imageTypeOf reads f's type; ok is false for what is no image.
func imageTypeOf(f Field) (t imageType, ok bool) {
	switch f.Kind {
	case KindBytes:
		return imageType{encoded: true, h: -1, w: -1}, true
	case KindImage:
		if len(f.Shape) != 3 {
			return imageType{}, false
		}
		return imageType{h: -1, w: -1, channels: f.Shape[2], dtype: max(f.DType, DTypeUint8)}, true
	case KindTensor:
		if len(f.Shape) != 3 {
			return imageType{}, false
		}
		t.dtype = f.DType
		switch {
		case slices.Equal(f.DimNames, dimsHWC):
			t.h, t.w, t.channels = f.Shape[0], f.Shape[1], f.Shape[2]
		case slices.Equal(f.DimNames, dimsCHW):
			t.channels, t.h, t.w, t.planar = f.Shape[0], f.Shape[1], f.Shape[2], true
		default:
			return imageType{}, false
		}
		return t, t.channels == 1 || t.channels == 3 || t.channels == 4
	case KindInvalid, KindText, KindInt64, KindFloat64:
	}
	return imageType{}, false
}

// field is t as the type of the field called name.
func (t imageType) field(name string) Field {
	f := Field{Name: name, Kind: KindImage, DType: t.dtype, Shape: []int64{t.h, t.w, t.channels}, DimNames: dimsHWC}
	switch {
	case t.encoded:
		return Field{Name: name, Kind: KindBytes}
	case t.planar:
		f.Kind, f.Shape, f.DimNames = KindTensor, []int64{t.channels, t.h, t.w}, dimsCHW
	case t.fixed():
		f.Kind = KindTensor
	}
	return f
}

// needRaw is an error unless t is an image that any operator on pixels can work on.
func (t imageType) needRaw(operator, field string) error {
	if t.encoded {
		return errkind.Errorf(errkind.Invalid, "%s: field %q is not decoded yet; put decode_image before it", operator, field)
	}
	if t.deep() {
		return errkind.Errorf(errkind.Invalid, "%s: images of field %q are %s; it works on images of mode rgb and l", operator, field, t.mode())
	}
	if !t.raw() {
		return errkind.Errorf(errkind.Invalid, "%s: field %q is already %s; put %s before to_tensor and normalize", operator, field, t.field(field), operator)
	}
	return nil
}

// needFixed is an error unless all images have one size.
func (t imageType) needFixed(operator, field string) error {
	if !t.encoded && !t.fixed() {
		return errkind.Errorf(errkind.Invalid, "%s: images of field %q differ in size; bring them to one size before it (resize with [height, width], center_crop or random_resized_crop)", operator, field)
	}
	return nil
}

// mode is the mode of a deep image.
func (t imageType) mode() string {
	if t.dtype == DTypeUint16 {
		return modeI16
	}
	return modeRGBA
}
