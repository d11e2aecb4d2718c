package service

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/millrace/millrace/internal/errkind"
)

// Bytes is a flag for a number of bytes: "268435456", "256MiB", "1.5GB".
type Bytes int64

var byteUnits = []struct {
	suffix string
	factor float64
}{
	{"KiB", 1 << 10},
	{"MiB", 1 << 20},
	{"GiB", 1 << 30},
	{"TiB", 1 << 40},
	{"kB", 1e3},
	{"KB", 1e3},
	{"MB", 1e6},
	{"GB", 1e9},
	{"TB", 1e12},
	{"B", 1},
}

// Set reads a size.
func (b *Bytes) Set(text string) error {
	number, factor := strings.TrimSpace(text), 1.0
	for _, u := range byteUnits {
		if rest, ok := strings.CutSuffix(number, u.suffix); ok {
			number, factor = strings.TrimSpace(rest), u.factor
			break
		}
	}
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || !(v >= 0 && v*factor < 1<<62) {
		return errkind.Errorf(errkind.Invalid, "%q is not a size; write 256MiB, 2GB or a number of bytes", text)
	}
	*b = Bytes(v * factor)
	return nil
}

// String writes b with the largest unit that keeps it whole.
func (b *Bytes) String() string {
	v := int64(*b)
	for i := 3; i >= 0; i-- {
		unit := int64(byteUnits[i].factor)
		if v != 0 && v%unit == 0 {
			return fmt.Sprintf("%d%s", v/unit, byteUnits[i].suffix)
		}
	}
	return strconv.FormatInt(v, 10)
}

// Type names the kind of value in help texts.
func (b *Bytes) Type() string { return "size" }
