package imagekernel

// Form is what a file that no job reads itself is decoded to: rows without gaps, of the stored size.
type Form uint8

const (
	// FormColor is what Decode makes.
	FormColor Form = iota
	// FormIndices is what DecodeIndices makes.
	FormIndices
	// FormWide is the pixels of DecodeWide.
	FormWide
	// FormAlpha is what DecodeAlpha makes.
	FormAlpha
)

// Size is the bytes of a pixel.
func (f Form) Size() int { return [...]int{4, 1, 2, 4}[f] }

// DecodeForm decodes a file to a form. Some are appended to buf[:0], others take memory of their own. h is what Probe said
// of it.
func DecodeForm(f Form, data []byte, h Header, buf []byte) ([]byte, error) {
	switch f {
	case FormIndices:
		return DecodeIndices(data, h, buf)
	case FormWide:
		w, err := DecodeWide(data, h)
		return w.Pix, err
	case FormAlpha:
		return DecodeAlpha(data, h)
	case FormColor:
	}
	return Decode(data, h, buf)
}
