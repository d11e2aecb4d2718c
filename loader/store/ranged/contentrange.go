package ranged

import (
	"fmt"
	"strconv"
	"strings"
)

// ParseContentRange reads "bytes 0-99/1234"; size is -1 where the server does not know it ("*").
func ParseContentRange(s string) (off, length, size int64, err error) {
	fail := fmt.Errorf("the server answered with the content range %.60q", s)
	span, total, ok := strings.Cut(strings.TrimPrefix(s, "bytes "), "/")
	first, last, ok2 := strings.Cut(span, "-")
	if !ok || !ok2 {
		return 0, 0, 0, fail
	}
	a, err1 := strconv.ParseInt(first, 10, 64)
	z, err2 := strconv.ParseInt(last, 10, 64)
	size = -1
	var err3 error
	if total != "*" {
		size, err3 = strconv.ParseInt(total, 10, 64)
	}
	if err1 != nil || err2 != nil || err3 != nil || a < 0 || z < a || total != "*" && z >= size {
		return 0, 0, 0, fail
	}
	return a, z - a + 1, size, nil
}
