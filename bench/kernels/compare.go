package kernels

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"github.com/millrace/millrace/internal/errkind"
)

// compare holds every result of all passes against the peer's, and says how they compare.
func (r *Runner) compare(ctx context.Context, b *bench) (string, error) {
	file := filepath.Join(r.dir, "pixels")
	if err := r.peers[0].pixels(b.id, file); err != nil {
		return "", err
	}
	want, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("reading the peer's pixels: %w", err)
	}
	_ = os.Remove(file)
	var got []byte
	for epoch := range b.with.passes {
		if err := b.with.pass(ctx, epoch); err != nil {
			return "", err
		}
		got = append(got, b.with.last...)
	}
	if len(want) != len(got) {
		return "", errkind.Errorf(errkind.BadData, "the peer made %d bytes, Millrace %d", len(want), len(got))
	}
	same := b.same
	if same == nil {
		same = equal
	}
	return same(want, got)
}

// judge says how pixels compare, or that they are too different.
type judge func(want, got []byte) (string, error)

func equal(want, got []byte) (string, error) {
	if !bytes.Equal(want, got) {
		count, most := difference(want, got)
		return "", errkind.Errorf(errkind.BadData, "%d of %d bytes differ, by up to %d", count, len(want), most)
	}
	return "equal", nil
}

// almost allows what float sums in another order may do: see gaussian_blur.
func almost(want, got []byte) (string, error) {
	count, most := difference(want, got)
	if most > 1 || count*10_000 > len(want) {
		return "", errkind.Errorf(errkind.BadData, "%d of %d bytes differ, by up to %d", count, len(want), most)
	}
	return fmt.Sprintf("%d of %d bytes differ by 1", count, len(want)), nil
}

// alike allows a coarser decoder, but not another picture.
func alike(want, got []byte) (string, error) {
	const least = 25 // dB
	sum := 0.0
	for i, w := range want {
		d := float64(w) - float64(got[i])
		sum += d * d
	}
	db := math.Inf(1)
	if sum > 0 {
		db = 10 * math.Log10(255*255*float64(len(want))/sum)
	}
	if db < least {
		return "", errkind.Errorf(errkind.BadData, "the pictures are %.1f dB apart", db)
	}
	return fmt.Sprintf("PSNR %.1f dB", db), nil
}

// difference is how many bytes differ, and the most by which one does.
func difference(want, got []byte) (count, most int) {
	for i, w := range want {
		d := int(w) - int(got[i])
		d = max(d, -d)
		if d > 0 {
			count++
		}
		most = max(most, d)
	}
	return count, most
}
