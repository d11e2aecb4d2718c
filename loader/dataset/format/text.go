package format

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// AppendFloat appends a number as Float64 has it: as short as brings back the same number of that many bits.
func AppendFloat(b []byte, v float64, bits int) []byte {
	switch {
	case math.IsNaN(v):
		return append(b, "NaN"...)
	case math.IsInf(v, 1):
		return append(b, "Infinity"...)
	case math.IsInf(v, -1):
		return append(b, "-Infinity"...)
	}
	return strconv.AppendFloat(b, v, 'g', -1, bits)
}

// AppendJSONFloat appends a number as it stands in JSON.
func AppendJSONFloat(b []byte, v float64, bits int) []byte {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return append(AppendFloat(append(b, '"'), v, bits), '"')
	}
	return AppendFloat(b, v, bits)
}

// AppendDecimal appends v/10^scale with all its decimals.
func AppendDecimal(b []byte, v *big.Int, scale int) []byte {
	digits := new(big.Int).Abs(v).String()
	if len(digits) <= scale {
		digits = strings.Repeat("0", scale-len(digits)+1) + digits
	}
	if v.Sign() < 0 {
		b = append(b, '-')
	}
	b = append(b, digits[:len(digits)-scale]...)
	if scale > 0 {
		b = append(append(b, '.'), digits[len(digits)-scale:]...)
	}
	return b
}

// AppendBool appends a truth value as Int64 has it.
func AppendBool(b []byte, v bool) []byte {
	if v {
		return append(b, '1')
	}
	return append(b, '0')
}

// AppendJSONText appends a JSON string. What is no UTF-8 becomes U+FFFD.
func AppendJSONText(b, s []byte) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for len(s) > 0 {
		c := s[0]
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ':
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		case c < utf8.RuneSelf:
			b = append(b, c)
		default:
			r, n := utf8.DecodeRune(s)
			b = utf8.AppendRune(b, r)
			s = s[n:]
			continue
		}
		s = s[1:]
	}
	return append(b, '"')
}
