package sheet

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/millrace/millrace/preprocess/op"
)

// valueText is row i of a column that is no image, as text.
func valueText(c *op.Column, i int) string {
	const longest = 200
	switch c.Kind {
	case op.KindInt64:
		return strconv.FormatInt(c.Ints[i], 10)
	case op.KindFloat64:
		return strconv.FormatFloat(c.Floats[i], 'g', -1, 64)
	case op.KindBytes, op.KindText:
		if b := c.Bytes[i]; !utf8.Valid(b) {
			return fmt.Sprintf("%d bytes", len(b))
		} else if len(b) > longest {
			return string(b[:longest]) + "…"
		}
		return string(c.Bytes[i])
	case op.KindTensor:
		return tensorText(c, i)
	case op.KindImage, op.KindInvalid:
	}
	return c.String()
}

// tensorText is a small tensor's numbers, or the largest of a long one.
func tensorText(c *op.Column, i int) string {
	const few = 8
	n, row := int(c.NumElements()), c.TensorRow(i)
	if n == 1 {
		return fmt.Sprintf("%g", element(row, c.DType, 0))
	}
	text := strings.Builder{}
	shown := 0
	for k := range n {
		v := element(row, c.DType, k)
		switch {
		case n <= few:
			_, _ = fmt.Fprintf(&text, " %.4g", v)
		case v != 0 && shown < few: // class probabilities, say
			_, _ = fmt.Fprintf(&text, " [%d]=%.4g", k, v)
			shown++
		}
	}
	return c.String() + text.String()
}
