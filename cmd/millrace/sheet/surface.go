package sheet

import (
	"image"
	"image/color"
	"math"

	"golang.org/x/image/draw"
	"golang.org/x/image/font"
	"golang.org/x/image/math/fixed"
)

// surface is what is drawn on.
type surface struct {
	*image.RGBA
	faces *faces
}

func (s *surface) fill(r image.Rectangle, c color.Color) {
	draw.Draw(s, r, image.NewUniform(c), image.Point{}, draw.Src)
}

// picture fits m into r, and says where it came to lie. Small pictures grow by whole factors, so that their pixels show.
func (s *surface) picture(r image.Rectangle, m image.Image) image.Rectangle {
	w, h := m.Bounds().Dx(), m.Bounds().Dy()
	var scaler draw.Scaler = draw.CatmullRom
	if n := min(r.Dx()/w, r.Dy()/h); n >= 1 {
		w, h, scaler = w*n, h*n, draw.NearestNeighbor
	} else {
		f := math.Min(float64(r.Dx())/float64(w), float64(r.Dy())/float64(h))
		w, h = max(1, int(float64(w)*f)), max(1, int(float64(h)*f))
	}
	at := r.Min.Add(image.Pt((r.Dx()-w)/2, (r.Dy()-h)/2))
	to := image.Rectangle{Min: at, Max: at.Add(image.Pt(w, h))}
	scaler.Scale(s, to, m, m.Bounds(), draw.Over, nil)
	return to
}

// frame marks part of a picture of size whole that is shown at to.
func (s *surface) frame(to, part, whole image.Rectangle) {
	if part.Empty() || whole.Empty() {
		return
	}
	part = part.Intersect(whole)
	scale := func(v, from, size int) int { return v * size / from }
	r := image.Rect(
		to.Min.X+scale(part.Min.X, whole.Dx(), to.Dx()), to.Min.Y+scale(part.Min.Y, whole.Dy(), to.Dy()),
		to.Min.X+scale(part.Max.X, whole.Dx(), to.Dx()), to.Min.Y+scale(part.Max.Y, whole.Dy(), to.Dy()),
	)
	for i, c := range []color.Color{ink, mark} { // dark and light, so that one of them shows
		in := r.Inset(i)
		for _, side := range []image.Rectangle{
			image.Rect(in.Min.X, in.Min.Y, in.Max.X, in.Min.Y+1), image.Rect(in.Min.X, in.Max.Y-1, in.Max.X, in.Max.Y),
			image.Rect(in.Min.X, in.Min.Y, in.Min.X+1, in.Max.Y), image.Rect(in.Max.X-1, in.Min.Y, in.Max.X, in.Max.Y),
		} {
			s.fill(side, c)
		}
	}
}

// text writes one line that begins at x with its base at y; what goes beyond width is cut.
func (s *surface) text(face font.Face, x, y, width int, text string, c color.Color) {
	if font.MeasureString(face, text).Ceil() > width {
		text = head(face, text, width)
	}
	d := font.Drawer{Dst: s, Src: image.NewUniform(c), Face: face, Dot: fixed.P(x, y)}
	d.DrawString(text)
}
