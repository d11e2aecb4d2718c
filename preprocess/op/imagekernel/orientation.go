package imagekernel

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"encoding/hex"
	"io"
)

// orientationOf is the orientation that metadata ask for, as Pillow reads them: the tag of the EXIF block, and only
// where it has none that of the XMP text. It is 1 where neither says anything that means something.
func orientationOf(exif, xmp []byte) int {
	v, ok := tiffValue(exif, tiffOrientation)
	if !ok {
		v = xmpOrientation(xmp)
	}
	if v < 1 || v > 8 {
		return 1
	}
	return v
}

// xmpOrientation is the digit of the first tiff:Orientation, an attribute or an element; 0 when there is none.
func xmpOrientation(xmp []byte) int {
	name := []byte("tiff:Orientation")
	for {
		at := bytes.Index(xmp, name)
		if at < 0 {
			return 0
		}
		xmp = xmp[at+len(name):]
		rest, attribute := bytes.CutPrefix(xmp, []byte(`="`))
		if !attribute {
			var element bool
			if rest, element = bytes.CutPrefix(xmp, []byte(">")); !element {
				continue
			}
		}
		if len(rest) > 0 && rest[0] >= '0' && rest[0] <= '9' {
			return int(rest[0] - '0')
		}
	}
}

// tiffValue is the value of a tag of one integer in the first directory of a TIFF block; ok says whether the tag is there.
func tiffValue(tiff []byte, tag uint16) (value int, ok bool) {
	if len(tiff) < 8 {
		return 0, false
	}
	var order binary.ByteOrder = binary.LittleEndian
	switch string(tiff[:4]) {
	case "II*\x00":
	case "MM\x00*":
		order = binary.BigEndian
	default:
		return 0, false
	}
	at := int64(order.Uint32(tiff[4:]))
	if at+2 > int64(len(tiff)) {
		return 0, false
	}
	entries := tiff[at+2:]
	for range order.Uint16(tiff[at:]) {
		if len(entries) < 12 {
			return 0, false
		}
		const typeShort, typeLong = 3, 4
		if order.Uint16(entries) == tag {
			if order.Uint32(entries[4:]) != 1 {
				return 0, true
			}
			switch order.Uint16(entries[2:]) {
			case typeShort:
				return int(order.Uint16(entries[8:])), true
			case typeLong:
				return int(order.Uint32(entries[8:])), true
			}
			return 0, true
		}
		entries = entries[12:]
	}
	return 0, false
}

// pngMetadata collects what chunks of a PNG say about its orientation.
type pngMetadata struct {
	// exif is the block of a chunk of its own, profile one that ImageMagick wrote as text.
	exif, profile, xmp []byte
}

// orientation is what the metadata ask for.
func (m *pngMetadata) orientation() int {
	exif := m.exif
	if exif == nil {
		exif = m.profile
	}
	return orientationOf(exif, m.xmp)
}

// take looks at a chunk.
func (m *pngMetadata) take(id string, data []byte) {
	if id == "eXIf" {
		m.exif = data
		return
	}
	key, rest, ok := bytes.Cut(data, []byte{0})
	if !ok || id != "tEXt" && id != "zTXt" && id != "iTXt" {
		return
	}
	const profileKey, xmpKey = "Raw profile type exif", "XML:com.adobe.xmp"
	switch string(key) {
	case xmpKey:
		m.xmp = pngText(id, rest)
	case profileKey:
		m.profile = hexProfile(pngText(id, rest))
	}
}

// pngText is the text of a chunk after its key, nil when it can't be read.
func pngText(id string, data []byte) []byte {
	switch id {
	case "tEXt":
		return data
	case "zTXt":
		if len(data) < 1 || data[0] != 0 {
			return nil
		}
		return inflateText(data[1:])
	}
	if len(data) < 2 {
		return nil
	}
	compressed, method := data[0], data[1]
	_, data, ok := bytes.Cut(data[2:], []byte{0}) // The language.
	if !ok {
		return nil
	}
	_, data, ok = bytes.Cut(data, []byte{0}) // The key in that language.
	switch {
	case !ok || compressed != 0 && method != 0:
		return nil
	case compressed != 0:
		return inflateText(data)
	}
	return data
}

// inflateText unpacks text of at most 1 MiB: Pillow's limit.
func inflateText(data []byte) []byte {
	const most = 1 << 20
	r, err := zlib.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(r, most))
	if err != nil {
		return nil
	}
	return text
}

// hexProfile is the EXIF block in ImageMagick's form: an empty line, a name, a length, and lines of hexadecimal digits.
func hexProfile(text []byte) []byte {
	for range 3 {
		_, rest, ok := bytes.Cut(text, []byte("\n"))
		if !ok {
			return nil
		}
		text = rest
	}
	digits := bytes.ReplaceAll(text, []byte("\n"), nil)
	block := make([]byte, hex.DecodedLen(len(digits)))
	if _, err := hex.Decode(block, digits); err != nil {
		return nil
	}
	return bytes.TrimPrefix(block, []byte("Exif\x00\x00"))
}
