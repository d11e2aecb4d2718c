//go:build !avif || !cgo || purego

package imagekernel

import "github.com/millrace/millrace/internal/errkind"

// ReadsAVIF says whether AVIF is among the formats that are read: builds with -tags avif, which need libavif.
const ReadsAVIF = false

func errNoAVIF() error {
	return errkind.Errorf(errkind.Invalid, "the image is AVIF, which this build of millrace does not read; build it with -tags avif, for which libavif is needed")
}

func probeAVIF([]byte) (Header, error) { return Header{}, errNoAVIF() }

func decodeAVIF(_, _ []byte, _ Header) error { return errNoAVIF() }
