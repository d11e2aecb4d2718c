package op

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/rng"
	"github.com/millrace/millrace/preprocess/op/imagekernel"
)

// mixing is torchvision's MixUp and CutMix, by key: each row is mixed with another of its partition, chosen, like the
// share that it keeps (from a Beta distribution), by the row's own random key. torchvision draws one share per batch
// and mixes with the row before. Labels become class probabilities, float32.
type mixing struct {
	info         Info
	at           int
	field, label string
	alpha        float64
	classes      int
	cut          bool
}

func buildMixUp(index int, a *args) (Operator, error) { return buildMixing(index, a, false) }

func buildCutMix(index int, a *args) (Operator, error) { return buildMixing(index, a, true) }

func buildMixing(index int, a *args, cut bool) (Operator, error) {
	const maxClasses = 1 << 20
	o := &mixing{at: index, cut: cut, field: a.field("field"), label: a.text("label", "label"), alpha: a.number("alpha", 1, 1e-3, 1e3)}
	classes, _ := a.integer("num_classes", 1, maxClasses)
	o.classes = int(classes)
	if err := a.done(); err != nil {
		return nil, err
	}
	o.info = cpuInfo(a.operator, 1, a.canon)
	// A row depends on all others, so that all have to be there: the rows are kept, but none can be made alone.
	o.info.KeepsRows, o.info.ChangesPixelsOnly = false, false
	return o, nil
}

func (o *mixing) Info() Info { return o.info }

func (o *mixing) Schema(in Schema) (Schema, error) {
	i, err := in.Lookup(o.info.Name, o.field)
	if err != nil {
		return nil, err
	}
	f := in[i]
	if f.Kind != KindTensor || !o.cut && f.DType != DTypeFloat32 && f.DType != DTypeUint8 {
		return nil, errkind.Errorf(errkind.Invalid, "%s: field %q is %s; it must be a tensor of one size, float32 or uint8 (put to_tensor before it)", o.info.Name, o.field, f)
	}
	if _, ok := imageTypeOf(f); o.cut && !ok {
		return nil, errkind.Errorf(errkind.Invalid, "%s: field %q holds no images; it is %s", o.info.Name, o.field, f)
	}
	at, err := in.Lookup(o.info.Name, o.label)
	if err != nil {
		return nil, err
	}
	label, err := o.labelField(in[at])
	if err != nil {
		return nil, err
	}
	return in.with(at, label), nil
}

// labelField is the type of the mixed labels.
func (o *mixing) labelField(in Field) (Field, error) {
	switch {
	case in.Kind == KindInt64 && o.classes == 0:
		return Field{}, errkind.Errorf(errkind.Invalid, "%s needs the parameter \"num_classes\": field %q holds class numbers", o.info.Name, in.Name)
	case in.Kind == KindInt64:
		return Field{Name: in.Name, Kind: KindTensor, DType: DTypeFloat32, Shape: []int64{int64(o.classes)}}, nil
	case in.Kind == KindTensor && in.DType == DTypeFloat32 && len(in.Shape) == 1:
		return in, nil
	}
	return Field{}, errkind.Errorf(errkind.Invalid, "%s: field %q is %s; labels are class numbers (int64) or probabilities (float32)", o.info.Name, in.Name, in)
}

// partner is what row i of n is mixed with and the share that it keeps; box is the rectangle that is not kept, if it is
// an image that is cut.
func (o *mixing) partner(s *rng.Source, n int, t imageType) (other int, keep float64, box imagekernel.Rect) {
	other = int(s.IntN(int64(n)))
	var weights [2]float64
	dirichlet(s, o.alpha, weights[:])
	if keep = weights[0]; !o.cut {
		return other, keep, box
	}
	w, h := int(t.w), int(t.h)
	x, y := int(s.IntN(int64(w))), int(s.IntN(int64(h)))
	r := float64(0.5 * math.Sqrt(1-keep))
	halfW, halfH := int(float64(r*float64(w))), int(float64(r*float64(h)))
	box = imagekernel.Rect{X: max(x-halfW, 0), Y: max(y-halfH, 0)}
	box.W, box.H = min(x+halfW, w)-box.X, min(y+halfH, h)-box.Y
	return other, 1 - float64(box.W*box.H)/float64(w*h), box
}

func (o *mixing) Apply(ctx context.Context, env *Env, in *Batch, emit func(*Batch) error) error {
	at, err := in.column(o.info.Name, o.field)
	if err != nil {
		return err
	}
	labelAt, err := in.column(o.info.Name, o.label)
	if err != nil {
		return err
	}
	src, label := &in.Columns[at], &in.Columns[labelAt]
	to, err := o.labelField(label.Field)
	if err != nil {
		return err
	}
	t, _ := imageTypeOf(src.Field)
	out, labels := Column{Field: src.Field}, Column{Field: to}
	out.Tensor = env.alloc(len(src.Tensor))
	labels.Tensor = env.alloc(in.NumRows * labels.RowBytes())
	for i := range in.NumRows {
		if err := ctx.Err(); err != nil {
			return err
		}
		s := rng.Key{Seed: env.Seed, Epoch: env.Epoch, Sample: in.Samples[i], Op: uint32(o.at)}.Source() //nolint:gosec // Build checks that the index is small and not negative.
		other, keep, box := o.partner(&s, in.NumRows, t)
		if env.Drawn != nil {
			env.Drawn(i, o.info.Name, fmt.Sprintf(`{"other":%q,"kept":%v}`, in.label(other), keep))
		}
		if o.cut {
			copy(out.TensorRow(i), src.TensorRow(i))
			t.paste(out.TensorRow(i), src.TensorRow(other), box)
		} else {
			mixRows(out.TensorRow(i), src.TensorRow(i), src.TensorRow(other), keep, src.DType)
		}
		if err := mixLabels(labels.TensorRow(i), label, i, other, keep); err != nil {
			return sampleError(in, i, o.info.Name, err)
		}
	}
	return emit(in.with(at, out).with(labelAt, labels))
}

// mixRows writes keep×a + (1-keep)×b.
func mixRows(dst, a, b []byte, keep float64, d DType) {
	if d == DTypeUint8 {
		const one = 1 << 16
		k := uint32(float64(keep*one) + 0.5)
		for i, v := range a {
			dst[i] = byte((uint32(v)*k + uint32(b[i])*(one-k) + one/2) >> 16) //nolint:gosec // The weights sum to 65,536.
		}
		return
	}
	own, rest := float32(keep), float32(1-keep)
	for i := 0; i < len(a); i += 4 {
		x := float32(readFloat(b[i:])*rest) + float32(readFloat(a[i:])*own)
		binary.LittleEndian.PutUint32(dst[i:], math.Float32bits(x))
	}
}

func readFloat(p []byte) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(p)) }

// mixLabels writes the class probabilities of row i, mixed with those of other.
func mixLabels(dst []byte, c *Column, i, other int, keep float64) error {
	if c.Kind == KindTensor {
		mixRows(dst, c.TensorRow(i), c.TensorRow(other), keep, DTypeFloat32)
		return nil
	}
	clear(dst)
	for _, part := range []struct {
		row   int
		share float32
	}{{other, float32(1 - keep)}, {i, float32(keep)}} {
		class := c.Ints[part.row]
		if class < 0 || class >= int64(len(dst)/4) {
			return errkind.Errorf(errkind.BadData, "class %d is not below num_classes, %d", class, len(dst)/4)
		}
		at := dst[4*class:]
		binary.LittleEndian.PutUint32(at, math.Float32bits(readFloat(at)+part.share))
	}
	return nil
}

// paste copies a rectangle of an image to the same place of another.
func (t imageType) paste(dst, src []byte, r imagekernel.Rect) {
	size, w := t.dtype.Size(), int(t.w)
	planes, step := 1, int(t.channels)*size
	if t.planar {
		planes, step = int(t.channels), size
	}
	for p := range planes {
		for y := range r.H {
			at := ((p*int(t.h)+r.Y+y)*w + r.X) * step
			copy(dst[at:at+r.W*step], src[at:])
		}
	}
}
