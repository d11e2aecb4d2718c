package dataset

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset/index"
	"github.com/millrace/millrace/loader/store"
)

// Rules by which neighbouring fields are read together.
const (
	// bridged is the gap that is always read along: less than any request costs, and the headers and
	// padding between the members of a tar are such gaps.
	bridged = 4 << 10
	// maxGap is the largest gap that is read along.
	maxGap = 256 << 10
	// A run of bytes may hold maxWaste of what is wanted in larger gaps.
	maxWaste = 0.15
)

// piece is one wanted field, or one range of a unit.
type piece struct {
	off, length   int64
	sample, field int
	row           int64     // of the shard
	part          int       // which field of the shard's row it is, wanted or not
	unit          *unitRead // nil for a field, else field is the number of the range
}

// run is a stretch of bytes of one object that is read as a whole.
type run struct {
	object      object
	shard       int
	archive     int64 // the size of the shard after decompression; 0 where it is not compressed
	off, length int64
	pieces      []piece
}

// shardPlan is what a read takes from one shard.
type shardPlan struct {
	shard int
	order []int // positions in the samples of the read, by rising ordinal
	runs  []run
	units []*unitRead // of shards in formats other than tar
	index *shardIndex
	bytes int64 // sum of the lengths of runs
	kept  keptPieces
}

// shardPlans groups the samples of a read by shard, in file order.
func (d *Dataset) shardPlans(ordinals []int64) ([]*shardPlan, error) {
	order := make([]int, len(ordinals))
	for i, o := range ordinals {
		if o < 0 || o >= d.NumSamples() {
			return nil, errkind.Errorf(errkind.Invalid, "there is no sample %d; the dataset has %d", o, d.NumSamples())
		}
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(ordinals[a], ordinals[b]) })
	var plans []*shardPlan
	for len(order) > 0 {
		shard, _ := d.Locate(ordinals[order[0]])
		end := d.starts[shard+1]
		n := 1
		for n < len(order) && ordinals[order[n]] < end {
			n++
		}
		plans = append(plans, &shardPlan{shard: shard, order: order[:n]})
		order = order[n:]
	}
	return plans, nil
}

// plan fills in the samples of one shard, all but their data, and the runs that bring it, beside what blocks of the
// window w hold, if that is not nil.
func (d *Dataset) plan(ctx context.Context, p *shardPlan, w *window, ordinals []int64, samples []Sample, want func(string) bool) error {
	x, err := d.index(ctx, p.shard)
	if err != nil {
		return err
	}
	s := &d.manifest.Shards[p.shard]
	o, err := openObject(ctx, d.resolver, s.URI, s.Pin, s.Size)
	if err != nil {
		return err
	}
	p.index = x
	names := x.Names()
	wanted := make([]bool, len(names))
	for i, name := range names {
		wanted[i] = want(name)
	}
	var pieces []piece
	switch {
	case x.shard != nil:
		pieces, err = d.planUnits(p, o, wanted, ordinals, samples)
	case d.manifest.Format == FormatList:
		err = d.planList(ctx, p, x.members, o, wanted, ordinals, samples, want)
	case isFolder(d.manifest.Format):
		d.planFolder(p, x.members, o, wanted, ordinals, samples, want)
	default:
		pieces = d.planTar(p, x.members, o, wanted, ordinals, samples)
	}
	if err == nil {
		pieces, err = d.planKept(p, w, o, wanted, pieces)
	}
	if err != nil {
		return fmt.Errorf("shard %s: %w", s.URI, err)
	}
	d.planRuns(p, o, pieces)
	for i := range p.runs {
		p.bytes += p.runs[i].length
	}
	if p.bytes > d.opts.ReadBytes {
		return tooMuch(samples[p.order[0]].Key, p.bytes, d.opts.ReadBytes)
	}
	return nil
}

func tooMuch(key string, bytes, limit int64) error {
	return errkind.Errorf(errkind.Exhausted, "reading %s and others takes %d bytes, more than the limit of %d for one read; ask for fewer samples at once", key, bytes, limit)
}

// planRuns joins pieces to runs.
func (d *Dataset) planRuns(p *shardPlan, o object, pieces []piece) {
	if len(pieces) == 0 {
		return
	}
	p.runs = coalesce(pieces)
	for i := range p.runs {
		p.runs[i].object, p.runs[i].shard = o, p.shard
		if compressionOf(o.uri) != uncompressed {
			p.runs[i].archive = p.index.content
		}
	}
}

func (d *Dataset) planTar(p *shardPlan, x *index.Index, o object, wanted []bool, ordinals []int64, samples []Sample) []piece {
	base := store.Base(o.uri)
	var pieces []piece
	for _, at := range p.order {
		i := int(ordinals[at] - d.starts[p.shard])
		sample := &samples[at]
		*sample = Sample{Ordinal: ordinals[at], Key: base + "!" + x.Key(i), URI: o.uri}
		part := 0
		x.Fields(i, func(name int, f index.Field) {
			if wanted[name] {
				pieces = append(pieces, piece{off: f.Offset, length: f.Length, sample: at, field: len(sample.Fields), row: int64(i), part: part})
				sample.Fields = append(sample.Fields, Field{Name: f.Name, Offset: f.Offset, Length: f.Length})
			}
			part++
		})
	}
	return pieces
}

func (d *Dataset) planFolder(p *shardPlan, x *index.Index, dir object, wanted []bool, ordinals []int64, samples []Sample, want func(string) bool) {
	base := store.Base(dir.uri)
	for _, at := range p.order {
		i := int(ordinals[at] - d.starts[p.shard])
		rel := x.Key(i)
		file := object{bucket: dir.bucket, key: joinKey(dir.key, rel), uri: joinKey(dir.uri, rel)}
		sample := &samples[at]
		*sample = Sample{Ordinal: ordinals[at], Key: base + "/" + rel, URI: file.uri}
		p.wholeFile(x, i, at, file, wanted, sample)
		if len(d.manifest.Classes) == 0 {
			continue
		}
		for _, made := range []struct{ name, text string }{{fieldCls, strconv.Itoa(p.shard)}, {fieldClass, d.manifest.Classes[p.shard]}} {
			if want(made.name) {
				sample.Fields = append(sample.Fields, Field{Name: made.name, Data: []byte(made.text), Length: int64(len(made.text))})
			}
		}
	}
}

// wholeFile plans to read sample i of x, which is a file of its own, as the sample at of those that are asked for.
func (p *shardPlan) wholeFile(x *index.Index, i, at int, file object, wanted []bool, sample *Sample) {
	x.Fields(i, func(name int, f index.Field) {
		if !wanted[name] {
			return
		}
		file.pin, file.size = f.Pin, f.Length
		p.runs = append(p.runs, run{object: file, shard: p.shard, length: f.Length, pieces: []piece{{length: f.Length, sample: at}}})
		sample.Fields = append(sample.Fields, Field{Name: f.Name, Length: f.Length})
	})
}

// planList plans the files of a list, of which each is looked for where the list says.
func (d *Dataset) planList(ctx context.Context, p *shardPlan, x *index.Index, list object, wanted []bool, ordinals []int64, samples []Sample, want func(string) bool) error {
	base := store.Base(list.uri)
	for _, at := range p.order {
		i := int(ordinals[at] - d.starts[p.shard])
		file, label, err := d.listedFile(ctx, list, x.Key(i))
		if err != nil {
			return err
		}
		sample := &samples[at]
		*sample = Sample{Ordinal: ordinals[at], Key: base + "!" + strconv.Itoa(i), URI: file.uri}
		p.wholeFile(x, i, at, file, wanted, sample)
		if strings.Contains(x.Key(i), "\t") && want(fieldCls) {
			sample.Fields = append(sample.Fields, Field{Name: fieldCls, Data: []byte(label), Length: int64(len(label))})
		}
	}
	return nil
}

func joinKey(dir, rel string) string {
	if dir == "" || dir[len(dir)-1] == '/' {
		return dir + rel
	}
	return dir + "/" + rel
}

// coalesce sorts pieces by offset and joins neighbours into runs.
func coalesce(pieces []piece) []run {
	slices.SortFunc(pieces, func(a, b piece) int {
		return cmp.Or(cmp.Compare(a.off, b.off), cmp.Compare(a.length, b.length))
	})
	var runs []run
	var waste, useful int64 // of the last run, not counting bridged gaps
	for i, p := range pieces {
		if len(runs) > 0 {
			last := &runs[len(runs)-1]
			gap := p.off - (last.off + last.length)
			wider := float64(waste+gap) <= maxWaste*float64(useful+p.length)
			if gap <= bridged || gap <= maxGap && wider {
				if gap > bridged {
					waste += gap
				}
				useful += p.length
				last.length = max(last.length, p.off+p.length-last.off)
				last.pieces = append(last.pieces, p)
				continue
			}
		}
		waste, useful = 0, p.length
		runs = append(runs, run{off: p.off, length: p.length, pieces: pieces[i : i+1 : i+1]})
	}
	return runs
}
