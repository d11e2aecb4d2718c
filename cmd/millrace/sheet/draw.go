package sheet

import (
	"image"
	"image/color"
)

// Measures of a sheet, pixels.
const (
	columns = 3
	side    = 200 // of the square that a picture is fitted into
	gap     = 12
	line    = 15
	cellW   = 2*side + 3*gap
	inner   = 2*side + gap
)

var (
	paper  = color.RGBA{0xe9, 0xec, 0xf0, 0xff}
	white  = color.RGBA{0xff, 0xff, 0xff, 0xff}
	ink    = color.RGBA{0x1a, 0x20, 0x28, 0xff}
	faint  = color.RGBA{0x6b, 0x76, 0x84, 0xff}
	ground = color.RGBA{0xd5, 0xda, 0xe0, 0xff}
	red    = color.RGBA{0xb4, 0x23, 0x18, 0xff}
	pink   = color.RGBA{0xfd, 0xec, 0xea, 0xff}
	mark   = color.RGBA{0xff, 0xd4, 0x00, 0xff}
)

// Heading is what stands above the samples.
type Heading struct {
	Title, Below string
	// CropOfWhole says that the first crop that was drawn is one of the image as it is read, so that it can be marked there.
	CropOfWhole bool
}

// Draw draws the samples. Equal samples give equal pictures.
func Draw(h Heading, samples []*Sample) (*image.RGBA, error) {
	faces, err := openFaces()
	if err != nil {
		return nil, err
	}
	cells := make([]cell, len(samples))
	for i, s := range samples {
		cells[i] = layOut(faces, s, h.CropOfWhole)
	}
	cols := min(columns, max(1, len(samples)))
	top := gap + 2*line + gap
	height := top
	for i := 0; i < len(cells); i += cols {
		height += rowHeight(cells[i:min(i+cols, len(cells))]) + gap
	}
	s := &surface{RGBA: image.NewRGBA(image.Rect(0, 0, gap+cols*(cellW+gap), height)), faces: faces}
	s.fill(s.Bounds(), paper)
	s.text(faces.bold, gap, gap+line-3, s.Bounds().Dx()-2*gap, h.Title, ink)
	s.text(faces.small, gap, gap+2*line, s.Bounds().Dx()-2*gap, h.Below, faint)
	y := top
	for i := 0; i < len(cells); i += cols {
		row := cells[i:min(i+cols, len(cells))]
		tall := rowHeight(row)
		for j := range row {
			x := gap + j*(cellW+gap)
			s.fill(image.Rect(x, y, x+cellW, y+tall), white)
			row[j].draw(s, x+gap, y+gap)
		}
		y += tall + gap
	}
	return s.RGBA, nil
}

func rowHeight(cells []cell) int {
	tall := 0
	for i := range cells {
		tall = max(tall, cells[i].height)
	}
	return tall
}
