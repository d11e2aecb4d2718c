package sheet

import (
	"encoding/json"
	"fmt"
	"image"
	"math"
)

// pair is a field before and after.
type pair struct {
	field  string
	before *picture
	after  []picture
	crop   image.Rectangle // of the image before, empty for none
}

// cell is a sample with its texts broken into lines.
type cell struct {
	sample *Sample
	pairs  []pair
	lines  []string // below the pictures
	height int
}

func layOut(f *faces, s *Sample, cropOfWhole bool) cell {
	c := cell{sample: s}
	at := map[string]int{}
	of := func(field string) *pair {
		i, ok := at[field]
		if !ok {
			i = len(c.pairs)
			at[field] = i
			c.pairs = append(c.pairs, pair{field: field})
		}
		return &c.pairs[i]
	}
	for i := range s.before {
		of(s.before[i].field).before = &s.before[i]
	}
	for _, p := range s.after {
		q := of(p.field)
		q.after = append(q.after, p)
	}
	if len(c.pairs) == 0 {
		c.pairs = []pair{{}}
	}
	if cropOfWhole && len(s.Drawn) > 0 {
		c.pairs[0].crop = cropOf(s.Drawn[0])
	}
	for _, v := range s.Values {
		c.lines = append(c.lines, wrap(f.small, v.Field+": "+v.Text, inner)...)
	}
	for _, d := range s.Drawn {
		c.lines = append(c.lines, wrap(f.small, d.Operator+" "+plain(d.Values), inner)...)
	}
	c.height = gap + line + len(c.pairs)*(side+line+4) + len(c.lines)*line + gap + 4
	return c
}

// cropOf is the rectangle that a draw speaks of.
func cropOf(d Drawing) image.Rectangle {
	var r struct {
		I, J *int
		H, W int
	}
	if json.Unmarshal([]byte(d.Values), &r) != nil || r.I == nil || r.J == nil {
		return image.Rectangle{}
	}
	return image.Rect(*r.J, *r.I, *r.J+r.W, *r.I+r.H)
}

func (c *cell) draw(s *surface, x, y int) {
	s.text(s.faces.bold, x, y+line-4, inner, middle(s.faces.bold, c.sample.Key, inner), ink)
	y += line + 2
	for i := range c.pairs {
		c.drawPair(s, &c.pairs[i], x, y)
		y += side + line + 4
	}
	for _, text := range c.lines {
		s.text(s.faces.small, x, y+line-4, inner, text, ink)
		y += line
	}
}

func (c *cell) drawPair(s *surface, p *pair, x, y int) {
	left, right := image.Rect(x, y, x+side, y+side), image.Rect(x+side+gap, y, x+inner, y+side)
	note := p.field
	s.fill(left, ground)
	if p.before != nil {
		shown := s.picture(left, p.before.image)
		s.frame(shown, p.crop, p.before.image.Bounds())
		note += " " + p.before.note
	}
	s.text(s.faces.small, left.Min.X, y+side+line-2, side, note, faint)
	if c.sample.Error != "" {
		s.fill(right, pink)
		for i, text := range wrap(s.faces.small, c.sample.Error, side-gap) {
			if (i+1)*line > side-gap {
				break
			}
			s.text(s.faces.small, right.Min.X+gap/2, y+gap/2+(i+1)*line-3, side-gap, text, red)
		}
		return
	}
	s.fill(right, ground)
	if len(p.after) == 0 {
		return
	}
	n := int(math.Ceil(math.Sqrt(float64(len(p.after)))))
	part := side / n
	for i := range p.after {
		at := image.Pt(right.Min.X+i%n*part, y+i/n*part)
		s.picture(image.Rectangle{Min: at, Max: at.Add(image.Pt(part, part))}, p.after[i].image)
	}
	note = p.after[0].note
	if len(p.after) > 1 {
		note = fmt.Sprintf("%d rows of %s", len(p.after), note)
	}
	s.text(s.faces.small, right.Min.X, y+side+line-2, side, note, faint)
}
