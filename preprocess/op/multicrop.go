package op

import (
	"context"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/op/imagekernel"
)

// multiCrop is torchvision's FiveCrop and TenCrop: each row becomes five, the crops at the corners and in the centre, or
// ten, followed by those of the flipped image. The other fields are repeated, and so are sample and key: random operators
// after it draw the same for all crops of a sample.
type multiCrop struct {
	info  Info
	field string
	h, w  int
	// flip and flop say whether a second five are of the mirrored, or upended, image.
	flip, flop bool
}

func buildFiveCrop(_ int, a *args) (Operator, error) { return buildMultiCrop(a, false) }

func buildTenCrop(_ int, a *args) (Operator, error) { return buildMultiCrop(a, true) }

func buildMultiCrop(a *args, ten bool) (Operator, error) {
	o := &multiCrop{field: a.field("field")}
	o.h, o.w = a.cropSize()
	if ten {
		o.flop = a.boolean("vertical_flip", false)
		o.flip = !o.flop
	}
	if err := a.done(); err != nil {
		return nil, err
	}
	o.info = cpuInfo(a.operator, 1, a.canon)
	o.info.KeepsRows, o.info.ChangesPixelsOnly, o.info.Fanout = false, false, int64(o.fan())
	return o, nil
}

func (o *multiCrop) Info() Info { return o.info }

func (o *multiCrop) Schema(in Schema) (Schema, error) {
	i, err := in.Lookup(o.info.Name, o.field)
	if err != nil {
		return nil, err
	}
	t, ok := imageTypeOf(in[i])
	if !ok {
		return nil, errkind.Errorf(errkind.Invalid, "%s: field %q holds no images; it is %s", o.info.Name, o.field, in[i])
	}
	out, err := t.sized(o.info.Name, o.field, o.h, o.w)
	if err != nil {
		return nil, err
	}
	return in.with(i, out.field(o.field)), nil
}

// fan is how many rows one becomes.
func (o *multiCrop) fan() int {
	if o.flip || o.flop {
		return 10
	}
	return 5
}

func (o *multiCrop) Apply(ctx context.Context, env *Env, in *Batch, emit func(*Batch) error) error {
	at, err := in.column(o.info.Name, o.field)
	if err != nil {
		return err
	}
	schema, err := o.Schema(in.Schema())
	if err != nil {
		return err
	}
	n := o.fan()
	out := in.repeat(env, n, at)
	c := Column{Field: schema[at]}
	c.Tensor = env.alloc(out.NumRows * c.RowBytes())
	for row := range in.NumRows {
		if err := ctx.Err(); err != nil {
			return err
		}
		image := in.Columns[at].image(row)
		if image.W < o.w || image.H < o.h {
			err := errkind.Errorf(errkind.BadData, "image of %dx%d pixels is smaller than the crop of %dx%d", image.W, image.H, o.w, o.h)
			return sampleError(in, row, o.info.Name, err)
		}
		for i := range n {
			o.crop(c.TensorRow(row*n+i), image, o.corner(i%5, image), i >= 5)
		}
	}
	out.Columns[at] = c
	return emit(out)
}

// image is row i of a column of images, with the bytes of a pixel as its channels.
func (c *Column) image(i int) Image {
	if c.Kind == KindImage {
		m := c.Images[i]
		m.C *= c.DType.Size()
		return m
	}
	return Image{H: int(c.Shape[0]), W: int(c.Shape[1]), C: int(c.Shape[2]) * c.DType.Size(), Pix: c.TensorRow(i)}
}

// corner is the rectangle of crop i.
func (o *multiCrop) corner(i int, m Image) imagekernel.Rect {
	r := imagekernel.Rect{W: o.w, H: o.h}
	switch i {
	case 1:
		r.X = m.W - o.w
	case 2:
		r.Y = m.H - o.h
	case 3:
		r.X, r.Y = m.W-o.w, m.H-o.h
	case 4:
		r.X, r.Y = centerOffset(m.W, o.w), centerOffset(m.H, o.h)
	}
	return r
}

// crop copies a rectangle of m, or of m flipped, to dst.
func (o *multiCrop) crop(dst []byte, m Image, r imagekernel.Rect, flipped bool) {
	size := r.W * m.C
	for y := range r.H {
		from := r.Y + y
		if flipped && o.flop {
			from = m.H - 1 - from
		}
		line := m.Pix[from*m.W*m.C : (from+1)*m.W*m.C]
		out := dst[y*size : (y+1)*size]
		if !flipped || !o.flip {
			copy(out, line[r.X*m.C:])
			continue
		}
		for x := range r.W {
			copy(out[x*m.C:(x+1)*m.C], line[(m.W-1-r.X-x)*m.C:])
		}
	}
}

// repeat is b with every row n times, without the column except.
func (b *Batch) repeat(env *Env, n, except int) *Batch {
	out := &Batch{NumRows: b.NumRows * n, Samples: repeat(b.Samples, n), Keys: repeat(b.Keys, n), Columns: make([]Column, len(b.Columns))}
	if b.Origin != nil {
		out.Origin = func(i int) Origin { return b.Origin(i / n) }
	}
	for i := range b.Columns {
		c := &b.Columns[i]
		to := Column{Field: c.Field}
		switch {
		case i == except:
		case c.Kind == KindTensor:
			size := c.RowBytes()
			to.Tensor = env.alloc(out.NumRows * size)
			for row := range out.NumRows {
				copy(to.Tensor[row*size:(row+1)*size], c.TensorRow(row/n))
			}
		case c.Kind == KindImage:
			to.Images = repeat(c.Images, n)
			for row := range to.Images {
				pix := env.alloc(len(to.Images[row].Pix))
				copy(pix, to.Images[row].Pix)
				to.Images[row].Pix = pix
			}
		default:
			to.Bytes, to.Ints, to.Floats = repeat(c.Bytes, n), repeat(c.Ints, n), repeat(c.Floats, n)
		}
		out.Columns[i] = to
	}
	return out
}

// repeat is list with every element n times, nil if it is empty.
func repeat[T any](list []T, n int) []T {
	if len(list) == 0 {
		return nil
	}
	out := make([]T, 0, len(list)*n)
	for _, v := range list {
		for range n {
			out = append(out, v)
		}
	}
	return out
}
