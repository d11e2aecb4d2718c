package imagekernel

import (
	"bytes"
	"encoding/binary"
	"math"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/errkind"
)

// anyJob is a random job on decoded pixels: crops at edges, windows that lie partly or wholly outside, all filters.
func anyJob(t *rapid.T) *Job {
	size := rapid.IntRange(1, 40)
	j := &Job{W: size.Draw(t, "w"), H: size.Draw(t, "h"), C: rapid.SampledFrom([]int{1, 3, 4}).Draw(t, "c")}
	j.PlanarPix = j.C != 4 && rapid.Bool().Draw(t, "planes")
	j.Pix = make([]byte, j.W*j.H*j.C)
	noise := rapid.Uint64().Draw(t, "noise")
	for i := range j.Pix {
		noise = noise*6364136223846793005 + 1442695040888963407
		j.Pix[i] = byte(noise >> 56)
	}
	j.Orient, j.Gray, j.Flip = rapid.Bool().Draw(t, "orient"), rapid.Bool().Draw(t, "gray"), rapid.Bool().Draw(t, "flip")
	j.Flop = rapid.Bool().Draw(t, "flop")
	j.Header.Orientation = rapid.IntRange(1, 8).Draw(t, "orientation")
	w, h := j.W, j.H
	if j.orientation() >= 5 {
		w, h = h, w
	}
	j.Crop.W, j.Crop.H = rapid.IntRange(1, w).Draw(t, "crop w"), rapid.IntRange(1, h).Draw(t, "crop h")
	j.Crop.X, j.Crop.Y = rapid.IntRange(0, w-j.Crop.W).Draw(t, "crop x"), rapid.IntRange(0, h-j.Crop.H).Draw(t, "crop y")
	j.ResizeW, j.ResizeH = size.Draw(t, "resize w"), size.Draw(t, "resize h")
	j.Filter = Filter(rapid.IntRange(0, int(Lanczos)).Draw(t, "filter"))
	j.Order = Order(rapid.IntRange(0, 1).Draw(t, "order"))
	edge := rapid.IntRange(-9, 30)
	j.Window = Rect{X: edge.Draw(t, "x"), Y: edge.Draw(t, "y"), W: size.Draw(t, "window w"), H: size.Draw(t, "window h")}
	j.Visible = Rect{X: edge.Draw(t, "visible x"), Y: edge.Draw(t, "visible y"), W: size.Draw(t, "visible w"), H: size.Draw(t, "visible h")}
	j.Fill = [3]uint8{1, 2, 3}
	j.Channels = rapid.SampledFrom([]int{1, 3}).Draw(t, "channels")
	j.Planar = rapid.Bool().Draw(t, "planar")
	j.Element = Element(rapid.IntRange(0, 2).Draw(t, "element"))
	j.Table = &Table{}
	for c := range j.Table {
		for v := range j.Table[c] {
			j.Table[c][v] = uint32(c)<<24 | uint32(v)*257
		}
	}
	return j
}

// The C loops, with vector instructions and without, give the bytes of the Go loops, and write nothing past the end.
func TestEngineEqualsPortable(t *testing.T) {
	vector, scalar, portable := New(DefaultLimits()), New(DefaultLimits()), New(DefaultLimits())
	scalar.Scalar(true)
	defer vector.Close()
	defer scalar.Close()
	defer portable.Close()
	rapid.Check(t, func(t *rapid.T) {
		j := anyJob(t)
		n := j.Window.W * j.Window.H * j.Channels * j.Element.size()
		want := make([]byte, n)
		j.Dst = want
		visible, err := portable.prepare(j)
		if err != nil {
			t.Fatal(err)
		}
		portable.runPixels(j, j.Pix, j.W, j.H, j.C, visible)
		for name, k := range map[string]*Kernel{"vector": vector, "scalar": scalar} {
			guarded := bytes.Repeat([]byte{0xA5}, n+64)
			j.Dst = guarded[:n:n]
			if err := k.Run(j); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(j.Dst, want) {
				t.Errorf("%s: bytes differ", name)
			}
			if !bytes.Equal(guarded[n:], bytes.Repeat([]byte{0xA5}, 64)) {
				t.Errorf("%s: wrote past the end", name)
			}
		}
	})
}

// Jobs that don't add up are refused before any pixel is touched.
func TestImpossibleJobs(t *testing.T) {
	good := func() *Job {
		return &Job{
			Pix: make([]byte, 12), W: 2, H: 2, C: 3, Crop: Rect{W: 2, H: 2}, ResizeW: 1, ResizeH: 1,
			Window: Rect{W: 1, H: 1}, Visible: Rect{W: 1, H: 1}, Channels: 3, Dst: make([]byte, 3),
		}
	}
	k := New(DefaultLimits())
	defer k.Close()
	if err := k.Run(good()); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Job){
		"short pixels":  func(j *Job) { j.Pix = j.Pix[:11] },
		"crop outside":  func(j *Job) { j.Crop.X = 1 },
		"negative crop": func(j *Job) { j.Crop.Y = -1 },
		"empty crop":    func(j *Job) { j.Crop.W = 0 },
		"huge crop":     func(j *Job) { j.Crop.W = math.MaxInt },
		"no resize":     func(j *Job) { j.ResizeH = 0 },
		"empty window":  func(j *Job) { j.Window.W = 0 },
		"short output":  func(j *Job) { j.Dst = j.Dst[:2] },
		"two channels":  func(j *Job) { j.Channels = 2 },
		"no table":      func(j *Job) { j.Element, j.Dst = Table16, make([]byte, 6) },
	} {
		j := good()
		spoil(j)
		if err := k.Run(j); errkind.Of(err) != errkind.Internal {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// The filters' own sine and cosine are within an ulp or so of the library's.
func TestSinCos(t *testing.T) {
	for i := range 200_000 {
		x := (float64(i) - 100_000) / 10_000
		sin, cos := sinCos(x)
		for _, pair := range [][2]float64{{sin, math.Sin(x)}, {cos, math.Cos(x)}} {
			if math.Abs(pair[0]-pair[1]) > 3e-16 {
				t.Fatalf("at %v: got %v, want %v", x, pair[0], pair[1])
			}
		}
	}
}

// The weights of an output sum to one, up to their rounding, and lie within the source.
func TestTapsSumToOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in, out := rapid.IntRange(1, 3000).Draw(t, "in"), rapid.IntRange(1, 3000).Draw(t, "out")
		filter := Filter(rapid.IntRange(0, int(Lanczos)).Draw(t, "filter"))
		var taps taps
		taps.fill(filter, in, out, 0, out)
		for i := range out {
			from, n := int(taps.bounds[2*i]), int(taps.bounds[2*i+1])
			if from < 0 || n < 1 || from+n > in {
				t.Fatalf("output %d reads %d+%d of %d", i, from, n, in)
			}
			sum := 0
			for _, w := range taps.weights[i*taps.stride : (i+1)*taps.stride] {
				sum += int(w)
			}
			if diff := sum - 1<<precisionBits; diff < -n || diff > n {
				t.Fatalf("weights of output %d sum to %d", i, sum)
			}
		}
	})
}

// Kernels of several goroutines don't disturb each other.
func TestKernelsAreIndependent(t *testing.T) {
	var group sync.WaitGroup
	results := make([][]byte, 4)
	for g := range results {
		group.Go(func() {
			k := New(DefaultLimits())
			defer k.Close()
			for range 20 {
				j := &Job{
					Pix: bytes.Repeat([]byte{1, 200, 90, 3, 77}, 600), W: 50, H: 20, C: 3, Crop: Rect{W: 50, H: 20}, ResizeW: 17, ResizeH: 9,
					Window: Rect{W: 17, H: 9}, Visible: Rect{W: 17, H: 9}, Channels: 3, Dst: make([]byte, 17*9*3),
				}
				if err := k.Run(j); err != nil {
					t.Error(err)
				}
				results[g] = j.Dst
			}
		})
	}
	group.Wait()
	for _, r := range results[1:] {
		if !bytes.Equal(r, results[0]) {
			t.Error("results differ")
		}
	}
}

// exifBlock is a TIFF block with one entry.
func exifBlock(order binary.AppendByteOrder, mark string, tag, kind uint16, count uint32, value []byte) []byte {
	b := []byte(mark)
	b = order.AppendUint32(b, 8)
	b = order.AppendUint16(b, 1)
	b = order.AppendUint16(b, tag)
	b = order.AppendUint16(b, kind)
	b = order.AppendUint32(b, count)
	return append(b, value...)
}

// The orientation is read in both byte orders and as both integer types; anything odd counts as none.
func TestExifOrientation(t *testing.T) {
	big, little := binary.BigEndian, binary.LittleEndian
	cases := []struct {
		block []byte
		want  int
	}{
		{exifBlock(little, "II*\x00", 0x112, 3, 1, []byte{6, 0, 0, 0}), 6},
		{exifBlock(big, "MM\x00*", 0x112, 3, 1, []byte{0, 8, 0, 0}), 8},
		{exifBlock(big, "MM\x00*", 0x112, 4, 1, []byte{0, 0, 0, 3}), 3},
		{exifBlock(little, "II*\x00", 0x112, 3, 1, []byte{9, 0, 0, 0}), 0},
		{exifBlock(little, "II*\x00", 0x112, 3, 2, []byte{6, 0, 0, 0}), 0},
		{exifBlock(little, "II*\x00", 0x111, 3, 1, []byte{6, 0, 0, 0}), 0},
		{exifBlock(little, "XX*\x00", 0x112, 3, 1, []byte{6, 0, 0, 0}), 0},
		{exifBlock(little, "II*\x00", 0x112, 3, 1, []byte{6}), 0},
		{[]byte("II*\x00\xff\xff\xff\xff"), 0},
		{nil, 0},
	}
	for i, c := range cases {
		if got := orientationOf(c.block, nil); got != max(c.want, 1) {
			t.Errorf("case %d: got %d, want %d", i, got, c.want)
		}
	}
}
