package store

import (
	"strconv"
	"strings"

	"github.com/millrace/millrace/internal/errkind"
)

// MaxExpansion is the largest number of URIs that one brace pattern may stand for.
const MaxExpansion = 1_000_000

// maxText bounds the bytes of all the URIs of a pattern, about.
const maxText = 1 << 30

// maxDepth bounds the nesting of braces, and with it the stack of the parser.
const maxDepth = 16

// Expand turns a brace pattern into the URIs it stands for, in order: ranges {000000..001281} keep
// their zeros, {0..10..2} has a step, {a..f} runs over letters, {train,val} lists, groups nest and
// multiply, the rightmost running fastest. A backslash takes the next character as it is. Braces that
// hold neither a comma nor ".." stay as they are, as in shells. Without any brace it is uri itself.
func Expand(uri string) ([]string, error) {
	if !strings.ContainsAny(uri, "{}") {
		return []string{uri}, nil
	}
	p := &pattern{text: uri}
	n, err := p.sequence(0)
	if err != nil {
		return nil, errkind.Errorf(errkind.Invalid, "pattern %s: %w", uri, err)
	}
	c := n.count()
	if c > MaxExpansion {
		return nil, errkind.Errorf(errkind.Invalid, "pattern %s stands for more than %d URIs; split it into several", uri, MaxExpansion)
	}
	if c > maxText/len(uri) {
		return nil, errkind.Errorf(errkind.Invalid, "a pattern of %d bytes that stands for %d URIs is too long; split it into several", len(uri), c)
	}
	var out []string
	n.generate("", func(s string) { out = append(out, s) })
	return out, nil
}

// node is a part of a pattern: literal text, a range, a choice, or a sequence of nodes.
type node interface {
	// count is the number of texts the node stands for, at most MaxExpansion+1.
	count() int
	// generate calls emit with prefix + each text of the node.
	generate(prefix string, emit func(string))
}

type literal string

func (l literal) count() int                                { return 1 }
func (l literal) generate(prefix string, emit func(string)) { emit(prefix + string(l)) }

type sequence []node

func (s sequence) count() int {
	total := 1
	for _, n := range s {
		total = min(total*n.count(), MaxExpansion+1)
	}
	return total
}

func (s sequence) generate(prefix string, emit func(string)) {
	if len(s) == 0 {
		emit(prefix)
		return
	}
	s[0].generate(prefix, func(p string) { s[1:].generate(p, emit) })
}

type choice []node

func (c choice) count() int {
	total := 0
	for _, n := range c {
		total = min(total+n.count(), MaxExpansion+1)
	}
	return total
}

func (c choice) generate(prefix string, emit func(string)) {
	for _, n := range c {
		n.generate(prefix, emit)
	}
}

// numbers is first, first+step, … up to last, padded with zeros to width.
type numbers struct {
	first, last, step int64
	width             int
	letters           bool
}

func (r numbers) count() int {
	return int(min(r.distance()/r.step, MaxExpansion)) + 1
}

func (r numbers) distance() int64 {
	if r.last < r.first {
		return r.first - r.last
	}
	return r.last - r.first
}

func (r numbers) generate(prefix string, emit func(string)) {
	step := r.step
	if r.last < r.first {
		step = -step
	}
	v := r.first
	for range r.count() {
		emit(prefix + r.format(v))
		v += step
	}
}

func (r numbers) format(v int64) string {
	if r.letters {
		return string([]byte{byte(v)}) //nolint:gosec // an ASCII letter
	}
	s := strconv.FormatInt(v, 10)
	sign := ""
	if v < 0 {
		sign, s = "-", s[1:]
	}
	if pad := r.width - len(s) - len(sign); pad > 0 {
		s = strings.Repeat("0", pad) + s
	}
	return sign + s
}

// pattern is a parser at position pos of text.
type pattern struct {
	text string
	pos  int
}

// sequence reads up to the end of the text or, inside braces, up to a comma or closing brace of its own level.
func (p *pattern) sequence(depth int) (sequence, error) {
	var out sequence
	var text strings.Builder
	flush := func() {
		if text.Len() > 0 {
			out = append(out, literal(text.String()))
			text.Reset()
		}
	}
	for p.pos < len(p.text) {
		c := p.text[p.pos]
		switch {
		case c == '\\' && p.pos+1 < len(p.text):
			text.WriteByte(p.text[p.pos+1])
			p.pos += 2
		case c == '{':
			n, err := p.braces(depth + 1)
			if err != nil {
				return nil, err
			}
			flush()
			out = append(out, n)
		case c == '}' && depth == 0:
			return nil, errkind.Errorf(errkind.Invalid, "closing brace at %d without an opening one; write \\} for a plain brace", p.pos)
		case (c == '}' || c == ',') && depth > 0:
			flush()
			return out, nil
		default:
			text.WriteByte(c)
			p.pos++
		}
	}
	if depth > 0 {
		return nil, errkind.Errorf(errkind.Invalid, "a brace is never closed; write \\{ for a plain brace")
	}
	flush()
	return out, nil
}

// braces reads one group, from its opening brace to behind its closing one.
func (p *pattern) braces(depth int) (node, error) {
	if depth > maxDepth {
		return nil, errkind.Errorf(errkind.Invalid, "braces nest deeper than %d", maxDepth)
	}
	p.pos++
	start := p.pos
	var items choice
	for {
		n, err := p.sequence(depth)
		if err != nil {
			return nil, err
		}
		items = append(items, n)
		end := p.text[p.pos]
		p.pos++
		if end == '}' {
			break
		}
	}
	if len(items) > 1 {
		return items, nil
	}
	body := p.text[start : p.pos-1]
	if strings.Contains(body, "..") && !strings.ContainsAny(body, `{}\`) {
		return rangeOf(body)
	}
	only, _ := items[0].(sequence)
	return append(append(sequence{literal("{")}, only...), literal("}")), nil
}

// rangeOf reads the inside of {first..last} or {first..last..step}.
func rangeOf(body string) (node, error) {
	parts := strings.Split(body, "..")
	r := numbers{step: 1}
	if len(parts) > 3 {
		return nil, errkind.Errorf(errkind.Invalid, "{%s} is not a range; write {first..last} or {first..last..step}", body)
	}
	if len(parts) == 3 {
		step, err := strconv.ParseInt(parts[2], 10, 32)
		if err != nil || step == 0 {
			return nil, errkind.Errorf(errkind.Invalid, "{%s}: step %q is not a whole number other than 0", body, parts[2])
		}
		r.step = max(step, -step)
	}
	first, last := parts[0], parts[1]
	if isLetter(first) && isLetter(last) {
		r.first, r.last, r.letters = int64(first[0]), int64(last[0]), true
		return r, nil
	}
	var err1, err2 error
	r.first, err1 = parseNumber(first)
	r.last, err2 = parseNumber(last)
	if err1 != nil || err2 != nil {
		return nil, errkind.Errorf(errkind.Invalid, "{%s} is not a range: both ends must be whole numbers of at most 18 digits, or single letters", body)
	}
	if padded(first) || padded(last) {
		r.width = max(len(first), len(last))
	}
	return r, nil
}

// parseNumber bounds the digits so that differences and steps of two numbers never overflow.
func parseNumber(s string) (int64, error) {
	if len(strings.TrimLeft(s, "-")) > 18 || strings.HasPrefix(s, "+") {
		return 0, strconv.ErrRange
	}
	return strconv.ParseInt(s, 10, 64)
}

func isLetter(s string) bool {
	return len(s) == 1 && ('a' <= s[0] && s[0] <= 'z' || 'A' <= s[0] && s[0] <= 'Z')
}

func padded(s string) bool {
	s = strings.TrimPrefix(s, "-")
	return len(s) > 1 && s[0] == '0'
}
