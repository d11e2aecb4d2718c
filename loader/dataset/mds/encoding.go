package mds

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"image"
	"image/png"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset/format"
)

// encoding is how the values of a column are written.
type encoding struct {
	kind format.Type
	// decode is a value as a column of that type has it. It is not nil.
	decode func(value []byte) ([]byte, error)
}

// encodingNamed is the encoding that a shard's description names.
func encodingNamed(name string) (encoding, error) {
	base, details, _ := strings.Cut(name, ":")
	if s := scalarNamed(base); s.size > 0 {
		kind := format.Int64
		if s.float {
			kind = format.Float64
		}
		return encoding{kind, func(v []byte) ([]byte, error) {
			if len(v) != s.size {
				return nil, format.Damaged("it is no %s: it has %d bytes", base, len(v))
			}
			return s.append([]byte{}, v, false), nil
		}}, nil
	}
	switch base {
	case "bytes", "jpeg", "png":
		return encoding{format.Bytes, func(v []byte) ([]byte, error) { return v, nil }}, nil
	case "str":
		return encoding{format.Text, text}, nil
	case "str_int":
		return encoding{format.Int64, text}, nil
	case "str_float":
		return encoding{format.Float64, text}, nil
	case "str_decimal":
		return encoding{format.Text, text}, nil
	case "json":
		return encoding{format.JSON, document}, nil
	case "ndarray":
		a, err := parseArray(details)
		return encoding{format.JSON, a.decode}, err
	case "pil":
		return encoding{format.Bytes, picture}, nil
	case "list[jpeg]", "list[png]", "list[pil]":
		return encoding{format.JSON, func(v []byte) ([]byte, error) {
			if len(v) < 4 {
				return nil, format.Damaged("the list is cut off")
			}
			return list(v[4:], base == "list[pil]")
		}}, nil
	case "jpeg_array", "jpegarray":
		return encoding{format.JSON, func(v []byte) ([]byte, error) { return list(v, false) }}, nil
	case "pkl":
		return encoding{format.Bytes, func([]byte) ([]byte, error) {
			return nil, errkind.Errorf(errkind.Invalid, "it is pickled Python, which could run any program and is not read; leave the column out, or write it anew in another encoding")
		}}, nil
	}
	return encoding{}, errkind.Errorf(errkind.Invalid, "unknown encoding %q", name)
}

func text(v []byte) ([]byte, error) {
	if !utf8.Valid(v) {
		return nil, format.Damaged("it is no text")
	}
	return v, nil
}

func document(v []byte) ([]byte, error) {
	if !json.Valid(v) {
		return nil, format.Damaged("it is no JSON")
	}
	return v, nil
}

// scalar is a number type of NumPy.
type scalar struct {
	name          string
	size          int
	float, signed bool
	code          byte // in arrays that say their own type
}

// scalarNamed is the type of a name; int is what Python's int is written as.
func scalarNamed(name string) scalar {
	if name == "int" {
		name = "int64"
	}
	for _, s := range scalars() {
		if s.name == name {
			return s
		}
	}
	return scalar{}
}

func scalars() []scalar {
	return []scalar{
		{"uint8", 1, false, false, 8},
		{"int8", 1, false, true, 9},
		{"uint16", 2, false, false, 16},
		{"int16", 2, false, true, 17},
		{"float16", 2, true, true, 18},
		{"uint32", 4, false, false, 32},
		{"int32", 4, false, true, 33},
		{"float32", 4, true, true, 34},
		{"uint64", 8, false, false, 64},
		{"int64", 8, false, true, 65},
		{"float64", 8, true, true, 66},
	}
}

// append appends the number that v begins with, in decimal; in JSON as it stands there.
func (s scalar) append(b, v []byte, inJSON bool) []byte {
	var bits uint64
	for i := range s.size {
		bits |= uint64(v[i]) << (8 * i)
	}
	switch {
	case !s.float && !s.signed:
		return strconv.AppendUint(b, bits, 10)
	case !s.float:
		shift := 64 - 8*s.size
		return strconv.AppendInt(b, int64(bits<<shift)>>shift, 10) //nolint:gosec // The bits of a signed number.
	}
	number, size := math.Float64frombits(bits), 64
	switch s.size {
	case 2:
		number, size = half(uint16(bits)), 32
	case 4:
		number, size = float64(math.Float32frombits(uint32(bits))), 32
	}
	if inJSON {
		return format.AppendJSONFloat(b, number, size)
	}
	return format.AppendFloat(b, number, size)
}

// half is an IEEE 754 binary16.
func half(bits uint16) float64 {
	sign, exponent, fraction := 1.0, int(bits>>10&31), float64(bits&1023)
	if bits>>15 == 1 {
		sign = -1
	}
	switch exponent {
	case 0:
		return sign * math.Ldexp(fraction, -24)
	case 31:
		if fraction > 0 {
			return math.NaN()
		}
		return math.Inf(int(sign))
	}
	return sign * math.Ldexp(1024+fraction, exponent-25)
}

// array is ndarray, with the type and the shape that the description gives, if it does.
type array struct {
	of    scalar // size 0: each value says its own
	shape []int  // nil: each value says its own
}

func parseArray(details string) (array, error) {
	var a array
	if details == "" {
		return a, nil
	}
	name, dims, shaped := strings.Cut(details, ":")
	if a.of = scalarNamed(name); a.of.size == 0 {
		return a, errkind.Errorf(errkind.Invalid, "unknown type %q of an array", name)
	}
	if shaped {
		for dim := range strings.SplitSeq(dims, ",") {
			n, err := strconv.Atoi(strings.TrimSpace(dim))
			if err != nil || n < 1 || n > 1<<30 {
				return a, errkind.Errorf(errkind.Invalid, "%q is no shape of an array", dims)
			}
			a.shape = append(a.shape, n)
		}
	}
	return a, nil
}

// decode is an array as lists in lists.
func (a array) decode(v []byte) ([]byte, error) {
	cut := format.Damaged("the array is cut off")
	if a.of.size == 0 {
		if len(v) == 0 {
			return nil, cut
		}
		i := slices.IndexFunc(scalars(), func(s scalar) bool { return s.code == v[0] })
		if i < 0 {
			return nil, format.Damaged("the array has unknown type %d", v[0])
		}
		a.of, v = scalars()[i], v[1:]
	}
	if a.shape == nil {
		if len(v) == 0 {
			return nil, cut
		}
		dims, size := int(v[0]>>2), 1<<(v[0]&3)
		if v = v[1:]; len(v) < dims*size {
			return nil, cut
		}
		for range dims {
			n := uint64(0)
			for i := range size {
				n |= uint64(v[i]) << (8 * i)
			}
			if n < 1 || n > 1<<30 {
				return nil, format.Damaged("the array has a side of %d", n)
			}
			a.shape, v = append(a.shape, int(n)), v[size:]
		}
	}
	elements := 1
	for _, n := range a.shape {
		if elements *= n; elements > len(v) {
			return nil, format.Damaged("an array of shape %v does not fit %d bytes", a.shape, len(v))
		}
	}
	if elements*a.of.size != len(v) || len(a.shape) == 0 {
		return nil, format.Damaged("an array of shape %v does not fit %d bytes", a.shape, len(v))
	}
	out, _ := a.lists([]byte{}, v, a.shape)
	return out, nil
}

// lists appends an array of a shape, and is what follows it.
func (a array) lists(b, v []byte, shape []int) (out, rest []byte) {
	if len(shape) == 0 {
		return a.of.append(b, v, true), v[a.of.size:]
	}
	b = append(b, '[')
	for i := range shape[0] {
		if i > 0 {
			b = append(b, ',')
		}
		b, v = a.lists(b, v, shape[1:])
	}
	return append(b, ']'), v
}

// list is a list of files in JSON, each in base64.
func list(v []byte, raw bool) ([]byte, error) {
	if len(v) < 4 {
		return nil, format.Damaged("the list is cut off")
	}
	n := uint64(binary.LittleEndian.Uint32(v))
	if v = v[4:]; uint64(len(v)) < 4*n {
		return nil, format.Damaged("the list is cut off")
	}
	sizes, files := v[:4*n], v[4*n:]
	out := []byte{'['}
	for ; len(sizes) > 0; sizes = sizes[4:] {
		size := uint64(binary.LittleEndian.Uint32(sizes))
		if size > uint64(len(files)) {
			return nil, format.Damaged("the list is cut off")
		}
		file := files[:size]
		files = files[size:]
		if raw {
			var err error
			if file, err = picture(file); err != nil {
				return nil, err
			}
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(base64.StdEncoding.AppendEncode(append(out, '"'), file), '"')
	}
	return append(out, ']'), nil
}

// picture is a raw image of Pillow's as a PNG, for decoders that read files.
func picture(v []byte) ([]byte, error) {
	if len(v) < 12 {
		return nil, format.Damaged("the image is cut off")
	}
	w, h, n := uint64(binary.LittleEndian.Uint32(v)), uint64(binary.LittleEndian.Uint32(v[4:])), uint64(binary.LittleEndian.Uint32(v[8:]))
	if v = v[12:]; n > uint64(len(v)) || w == 0 || h == 0 {
		return nil, format.Damaged("the image is cut off")
	}
	mode, pix := string(v[:n]), v[n:]
	channels := map[string]uint64{"L": 1, "RGB": 3, "RGBA": 4, "I;16": 2}[mode]
	if channels == 0 {
		return nil, errkind.Errorf(errkind.Invalid, "a raw image of Pillow's mode %q; L, RGB, RGBA and I;16 are read", mode)
	}
	if w > 1<<20 || h > 1<<20 || w*h*channels != uint64(len(pix)) {
		return nil, format.Damaged("the image is cut off: %dx%d pixels in mode %s do not fit %d bytes", w, h, mode, len(pix))
	}
	bounds := image.Rect(0, 0, int(w), int(h))
	var m image.Image
	switch mode {
	case "L":
		m = &image.Gray{Pix: pix, Stride: bounds.Dx(), Rect: bounds}
	case "RGBA":
		m = &image.NRGBA{Pix: pix, Stride: 4 * bounds.Dx(), Rect: bounds}
	case "I;16":
		wide := image.NewGray16(bounds)
		for i := 0; i < len(pix); i += 2 {
			wide.Pix[i], wide.Pix[i+1] = pix[i+1], pix[i]
		}
		m = wide
	default:
		full := image.NewNRGBA(bounds)
		for i := range bounds.Dx() * bounds.Dy() {
			copy(full.Pix[4*i:], pix[3*i:3*i+3])
			full.Pix[4*i+3] = 255
		}
		m = full
	}
	var out bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.NoCompression}).Encode(&out, m); err != nil {
		return nil, format.Damaged("the image: %w", err)
	}
	return out.Bytes(), nil
}
