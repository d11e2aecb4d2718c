package op

import (
	"fmt"

	"github.com/millrace/millrace/preprocess/op/imagekernel"
)

// span is the range that a parameter is drawn from. A zero span that is not on draws nothing.
type span struct {
	lo, hi float64
	on     bool
}

// around reads a number v, which stands for [center-v, center+v] cut at least, or [lo, hi]. A span of center alone is off.
func (a *args) around(name string, center, least, most float64) span {
	v, ok := a.get(name)
	if !ok {
		v = 0.0
	}
	s := span{lo: center, hi: center}
	f, isNumber := toFloat(v)
	list, isList := toList(v)
	switch {
	case isNumber && f >= 0 && center+f <= most:
		s.lo, s.hi = max(center-f, least), center+f
	case isList && len(list) == 2:
		lo, loOK := toFloat(list[0])
		hi, hiOK := toFloat(list[1])
		if !loOK || !hiOK || lo < least || hi > most || lo > hi {
			a.fail(name, fmt.Sprintf("[least, greatest] from %v to %v", least, most), v)
			break
		}
		s.lo, s.hi = lo, hi
	default:
		a.fail(name, fmt.Sprintf("a number from 0 to %v, or [least, greatest] from %v to %v", most-center, least, most), v)
	}
	s.on = s.lo != center || s.hi != center
	a.canon[name] = []any{s.lo, s.hi}
	return s
}

// angles reads a number v ≥ 0, which stands for [-v, v], or a list of one of lengths; nil when it isn't there.
func (a *args) angles(name string, required bool, lengths ...int) []float64 {
	const most = 360
	v, ok := a.get(name)
	if !ok {
		a.canon[name] = nil
		if required {
			a.required(name)
		}
		return nil
	}
	if f, isNumber := toFloat(v); isNumber {
		if f < 0 || f > most {
			a.fail(name, fmt.Sprintf("a number from 0 to %d, or a list", most), v)
		}
		a.canon[name] = []any{-f, f}
		return []float64{-f, f}
	}
	list := a.numbers(name, nil, lengths, -most, most)
	for i := 0; i+1 < len(list); i += 2 {
		if list[i] > list[i+1] {
			a.fail(name, "pairs of [least, greatest]", v)
		}
	}
	return list
}

// pair reads a pair of numbers, nil when it isn't there.
func (a *args) pair(name string, least, most float64) []float64 {
	if v, ok := a.given[name]; !ok || v == nil {
		a.known = append(a.known, name)
		a.canon[name] = nil
		return nil
	}
	return a.numbers(name, nil, []int{2}, least, most)
}

// whole reads an integer in [lo, hi] with a default.
func (a *args) whole(name string, def, lo, hi int64) int {
	n, ok := a.integer(name, lo, hi)
	if !ok {
		n = def
		a.canon[name] = def
	}
	return int(n)
}

// warpFilter reads the parameter interpolation of an operator that moves pixels about.
func (a *args) warpFilter(def string) imagekernel.Filter {
	switch a.text("interpolation", def, "nearest", "bilinear", "bicubic") {
	case "bilinear":
		return imagekernel.Bilinear
	case "bicubic":
		return imagekernel.Bicubic
	}
	return imagekernel.Nearest
}
