package op

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/nearest"
)

// args reads an operator's parameters, remembers the first error and collects the canonical form.
type args struct {
	operator string
	given    map[string]any
	known    []string
	canon    map[string]any
	err      error
}

func newArgs(operator string, given map[string]any) *args {
	return &args{operator: operator, given: given, canon: map[string]any{}}
}

// done is the first error: unknown parameters before wrong ones, since a misspelt one also goes missing.
func (a *args) done() error {
	unknown := make([]string, 0)
	for name := range a.given {
		if !slices.Contains(a.known, name) {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		return errkind.Errorf(errkind.Invalid, "unknown parameter %q of %s%s", unknown[0], a.operator, nearest.Hint(unknown[0], a.known))
	}
	return a.err
}

func (a *args) get(name string) (any, bool) {
	a.known = append(a.known, name)
	v, ok := a.given[name]
	return v, ok && v != nil
}

func (a *args) fail(name, want string, got any) {
	if a.err == nil {
		a.err = errkind.Errorf(errkind.Invalid, "parameter %q of %s must be %s, not %s", name, a.operator, want, show(got))
	}
}

func (a *args) reject(format string, v ...any) {
	if a.err == nil {
		a.err = errkind.Errorf(errkind.Invalid, "%s: %s", a.operator, fmt.Sprintf(format, v...))
	}
}

func show(v any) string {
	if s, ok := v.(string); ok {
		return fmt.Sprintf("%q", s)
	}
	text := fmt.Sprint(v)
	if len(text) > 60 {
		text = text[:60] + "…"
	}
	return text
}

// field reads a required name.
func (a *args) field(name string) string {
	v, ok := a.get(name)
	s, isText := v.(string)
	switch {
	case !ok:
		if a.err == nil {
			a.err = errkind.Errorf(errkind.Invalid, "%s needs the parameter %q", a.operator, name)
		}
	case !isText || s == "":
		a.fail(name, "the name of a field", v)
	}
	a.canon[name] = s
	return s
}

// text reads a string; with allowed given it must be one of those.
func (a *args) text(name, def string, allowed ...string) string {
	s := def
	if v, ok := a.get(name); ok {
		given, isText := v.(string)
		if !isText {
			a.fail(name, "a string", v)
		}
		s = given
		if len(allowed) > 0 && !slices.Contains(allowed, s) && a.err == nil {
			a.err = errkind.Errorf(errkind.Invalid, "parameter %q of %s can't be %s%s", name, a.operator, show(v), nearest.Hint(s, allowed))
		}
	}
	a.canon[name] = s
	return s
}

func (a *args) boolean(name string, def bool) bool {
	b := def
	if v, ok := a.get(name); ok {
		given, isBool := v.(bool)
		if !isBool {
			a.fail(name, "true or false", v)
		}
		b = given
	}
	a.canon[name] = b
	return b
}

// number reads a float in [lo, hi].
func (a *args) number(name string, def, lo, hi float64) float64 {
	f := def
	if v, ok := a.get(name); ok {
		given, isNumber := toFloat(v)
		if !isNumber || given < lo || given > hi {
			a.fail(name, fmt.Sprintf("a number from %v to %v", lo, hi), v)
		}
		f = given
	}
	a.canon[name] = f
	return f
}

// integer reads an optional integer in [lo, hi]; ok says whether it was given.
func (a *args) integer(name string, lo, hi int64) (value int64, ok bool) {
	v, ok := a.get(name)
	if !ok {
		a.canon[name] = nil
		return 0, false
	}
	n, isInt := toInt(v)
	if !isInt || n < lo || n > hi {
		a.fail(name, fmt.Sprintf("an integer from %d to %d", lo, hi), v)
	}
	a.canon[name] = n
	return n, true
}

// integers reads an integer or a list of one of the given lengths; nil when it isn't there.
func (a *args) integers(name, want string, lo, hi int64, lengths ...int) []int64 {
	v, ok := a.get(name)
	if !ok {
		a.canon[name] = nil
		return nil
	}
	var list []int64
	if n, isInt := toInt(v); isInt {
		list = []int64{n}
	} else if items, isList := toList(v); isList {
		for _, item := range items {
			n, isInt := toInt(item)
			if !isInt {
				a.fail(name, want, v)
				return nil
			}
			list = append(list, n)
		}
	}
	if !slices.Contains(lengths, len(list)) || slices.ContainsFunc(list, func(n int64) bool { return n < lo || n > hi }) {
		a.fail(name, fmt.Sprintf("%s, each from %d to %d", want, lo, hi), v)
		return nil
	}
	canon := make([]any, len(list))
	for i, n := range list {
		canon[i] = n
	}
	a.canon[name] = canon
	return list
}

// numbers reads a list of min to max floats in [lo, hi]; a single number stands for a list of one if allowed.
func (a *args) numbers(name string, def []float64, lengths []int, lo, hi float64) []float64 {
	list := def
	if v, ok := a.get(name); ok {
		list = nil
		items, isList := toList(v)
		if f, isNumber := toFloat(v); isNumber {
			items, isList = []any{f}, true
		}
		good := isList && slices.Contains(lengths, len(items))
		for _, item := range items {
			f, isNumber := toFloat(item)
			good = good && isNumber && f >= lo && f <= hi
			list = append(list, f)
		}
		if !good {
			a.fail(name, fmt.Sprintf("a list of %s numbers from %v to %v", lengthsText(lengths), lo, hi), v)
			return make([]float64, lengths[len(lengths)-1])
		}
	} else if def == nil && a.err == nil {
		a.err = errkind.Errorf(errkind.Invalid, "%s needs the parameter %q", a.operator, name)
	}
	canon := make([]any, len(list))
	for i, f := range list {
		canon[i] = f
	}
	a.canon[name] = canon
	return list
}

// names reads a list of strings.
func (a *args) names(name string) []string {
	v, _ := a.get(name)
	var list []string
	items, isList := toList(v)
	if s, isText := v.(string); isText {
		items, isList = []any{s}, true
	}
	for _, item := range items {
		s, isText := item.(string)
		isList = isList && isText && s != ""
		list = append(list, s)
	}
	if !isList || len(list) == 0 {
		a.fail(name, "a list of field names", v)
	}
	canon := make([]any, len(list))
	for i, s := range list {
		canon[i] = s
	}
	a.canon[name] = canon
	return list
}

func lengthsText(lengths []int) string {
	texts := make([]string, len(lengths))
	for i, n := range lengths {
		texts[i] = fmt.Sprint(n)
	}
	return strings.Join(texts, " or ")
}

func toFloat(v any) (float64, bool) {
	switch n := v.(type) {
	case float64:
		return n, !math.IsNaN(n) && !math.IsInf(n, 0)
	case float32:
		return toFloat(float64(n))
	}
	n, ok := toInt(v)
	return float64(n), ok
}

func toInt(v any) (int64, bool) {
	switch n := v.(type) {
	case int:
		return int64(n), true
	case int64:
		return n, true
	case int32:
		return int64(n), true
	case uint64:
		return int64(n), n <= math.MaxInt64 //nolint:gosec // Checked in the same line.
	case float64:
		return int64(n), n == math.Trunc(n) && math.Abs(n) < 1<<53
	}
	return 0, false
}

func toList(v any) ([]any, bool) {
	switch l := v.(type) {
	case []any:
		return l, true
	case []int:
		return anys(l), true
	case []int64:
		return anys(l), true
	case []float64:
		return anys(l), true
	case []string:
		return anys(l), true
	}
	return nil, false
}

func anys[T any](list []T) []any {
	out := make([]any, len(list))
	for i, v := range list {
		out[i] = v
	}
	return out
}
