package order

import (
	"encoding/hex"

	"github.com/millrace/millrace/internal/errkind"
)

// Digest is 128 bits of a hash over what something depends on.
type Digest [16]byte

// String is d as 32 hexadecimal digits, in lower case.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// ParseDigest reads what [Digest.String] writes. Its errors are of kind Invalid.
func ParseDigest(s string) (Digest, error) {
	var d Digest
	if len(s) != 2*len(d) {
		return Digest{}, errkind.Errorf(errkind.Invalid, "digest %.40q has %d characters, not %d", s, len(s), 2*len(d))
	}
	if _, err := hex.Decode(d[:], []byte(s)); err != nil {
		return Digest{}, errkind.Errorf(errkind.Invalid, "digest %q is not hexadecimal", s)
	}
	if d.String() != s {
		return Digest{}, errkind.Errorf(errkind.Invalid, "digest %q is not in lower case", s)
	}
	return d, nil
}
