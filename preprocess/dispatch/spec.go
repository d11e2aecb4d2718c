package dispatch

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/apache/arrow-go/v18/arrow/ipc"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/loader/order"
	"github.com/millrace/millrace/preprocess/plan"
	"github.com/millrace/millrace/preprocess/recipe"
	feedv1 "github.com/millrace/millrace/proto/millrace/feed/v1"
	recipev1 "github.com/millrace/millrace/proto/millrace/recipe/v1"
)

// maxSeats bounds the processes of a job.
const maxSeats = 1 << 22

// spec is what all ranks of a job agree on. It is immutable.
type spec struct {
	asked      *feedv1.OpenJobRequest // by the first rank
	recipe     *recipe.Recipe         // resolved
	wireRecipe *recipev1.Recipe
	plan       *plan.Plan
	layout     order.Layout
	manifest   *dataset.Manifest
	manifestID [16]byte

	seed         uint64
	tail         order.Tail
	globalBatch  int64
	accumulation int64
	epochs       uint64
	world        int
	peers        int // processes that share the batches of each rank

	onError        plan.OnError
	maxBad         int64   // in a row
	maxBadFraction float64 // of an epoch's samples

	orderDigest, pixelsDigest order.Digest
	schema                    []byte
	facts                     facts
}

// newSpec plans a job: it reads or builds the manifest, which may take long, and checks everything that can be checked
// before a sample is read.
func (d *Dispatcher) newSpec(ctx context.Context, req *feedv1.OpenJobRequest) (*spec, error) {
	return d.specOver(ctx, req, nil)
}

// specOver is newSpec over a manifest that is there already; nil: it is looked for.
func (d *Dispatcher) specOver(ctx context.Context, req *feedv1.OpenJobRequest, manifest *dataset.Manifest) (*spec, error) {
	r, err := recipe.Parse(req.GetRecipe())
	if err != nil {
		return nil, err
	}
	s := &spec{asked: req, world: int(req.GetWorldSize()), peers: int(max(1, req.GetPeers())), seed: req.GetSettings().GetSeed()}
	if err := s.readSettings(req.GetSettings()); err != nil {
		return nil, err
	}
	// Mistakes in the recipe are found before a long listing begins, as far as they can be.
	if _, err := plan.New(r); err != nil {
		return nil, err
	}
	if s.manifest = manifest; s.manifest == nil {
		if s.manifest, err = d.manifest(ctx, r.Source); err != nil {
			return nil, err
		}
	}
	s.manifestID = s.manifest.ID()
	if s.manifest.NumSamples() == 0 {
		return nil, errkind.Errorf(errkind.NotFound, "no samples in %s; its %d shards are empty", strings.Join(r.Source, ", "), len(s.manifest.Shards))
	}
	if s.plan, err = plan.For(ctx, r, s.manifest, d.cfg.Resolver, d.cfg.Cache); err != nil {
		return nil, err
	}
	if s.plan, err = s.plan.With(s.onError); err != nil {
		return nil, err
	}
	s.recipe = s.plan.Recipe
	if s.wireRecipe, err = s.recipe.ToProto(); err != nil {
		return nil, err
	}
	shuffle, err := order.ParseShuffle(req.GetSettings().GetShuffle())
	if err != nil {
		return nil, err
	}
	if s.layout, err = s.plan.Layout(s.manifest, shuffle); err != nil {
		return nil, err
	}
	return s, s.describe()
}

func (s *spec) readSettings(settings *feedv1.Settings) error {
	var err error
	if s.tail, err = order.ParseTail(settings.GetTail()); err != nil {
		return err
	}
	if err := s.readBadPolicy(settings); err != nil {
		return err
	}
	s.globalBatch, s.accumulation, s.epochs = settings.GetGlobalBatch(), settings.GetAccumulation(), settings.GetEpochs()
	if s.accumulation < 1 || s.accumulation > 1<<20 {
		return errkind.Errorf(errkind.Invalid, "accumulation is %d; a global batch is taken in at least one part", s.accumulation)
	}
	b := order.Batching{GlobalBatch: s.globalBatch, Tail: s.tail}
	if err := b.Validate(); err != nil {
		return err
	}
	if s.world < 1 || s.world > 1<<20 {
		return errkind.Errorf(errkind.Invalid, "world size is %d; it must be at least 1", s.world)
	}
	if s.peers > maxSeats/s.world {
		return errkind.Errorf(errkind.Invalid, "%d peers of each of %d ranks are more than %d processes", s.peers, s.world, maxSeats)
	}
	return b.CheckWorld(s.world * int(s.accumulation))
}

// defaultMaxBad and defaultMaxBadFraction are the limits of bad samples where a job names none.
const (
	defaultMaxBad         = 100
	defaultMaxBadFraction = 0.1
)

// readBadPolicy reads what becomes of bad samples.
func (s *spec) readBadPolicy(settings *feedv1.Settings) error {
	var err error
	if s.onError, err = plan.ParseOnError(settings.GetOnError()); err != nil {
		return err
	}
	s.maxBad, s.maxBadFraction = settings.GetMaxBad(), settings.GetMaxBadFraction()
	if s.maxBad < 0 {
		return errkind.Errorf(errkind.Invalid, "max_bad is %d; give the number of bad samples in a row that the job puts up with, or 0 for %d", s.maxBad, defaultMaxBad)
	}
	if !(s.maxBadFraction >= 0 && s.maxBadFraction <= 1) {
		return errkind.Errorf(errkind.Invalid, "max_bad_fraction is %v; give a part of an epoch's samples, 0 to 1", s.maxBadFraction)
	}
	s.maxBad = cmp.Or(s.maxBad, defaultMaxBad)
	s.maxBadFraction = cmp.Or(s.maxBadFraction, defaultMaxBadFraction)
	return nil
}

// describe fills in digests and schema.
func (s *spec) describe() error {
	pixels, err := s.plan.PixelsDigest()
	if err != nil {
		return err
	}
	extra := map[string]any{"manifest": fmt.Sprintf("%x", s.manifestID), "seed": s.seed, "layout": s.layout}
	if s.onError != plan.Raise { // else states are what they were before there were policies
		extra["on_error"] = s.onError.String()
	}
	rows, err := s.plan.OrderDigest(extra)
	if err != nil {
		return err
	}
	s.orderDigest, s.pixelsDigest = order.Digest(rows), order.Digest(pixels)
	schema, err := plan.ArrowSchema(s.plan.Schema)
	if err != nil {
		return err
	}
	var buf bytes.Buffer
	w := ipc.NewWriter(&buf, ipc.WithSchema(schema))
	if err := w.Close(); err != nil {
		return fmt.Errorf("encoding the schema of a job: %w", err)
	}
	s.schema = buf.Bytes()
	s.facts = factsOf(s)
	return nil
}

// rows and steps of a whole epoch, -1 when unknown.
func (s *spec) rows() int64 {
	if !s.plan.KeepsRows {
		return -1
	}
	return s.layout.NumSamples
}

func (s *spec) steps() int64 {
	return order.Batching{GlobalBatch: s.globalBatch, Tail: s.tail}.NumSteps(s.rows())
}

// disagreement says in what the settings of another rank differ, "" when they don't.
func (s *spec) disagreement(other *spec) string {
	for _, f := range []struct {
		name      string
		mine, had any
	}{
		{"world_size", s.world, other.world},
		{"peers", s.peers, other.peers},
		{"global batch", s.globalBatch, other.globalBatch},
		{"accumulation", s.accumulation, other.accumulation},
		{"seed", s.seed, other.seed},
		{"shuffle", s.layout.Shuffle, other.layout.Shuffle},
		{"tail", s.tail, other.tail},
		{"epochs", s.epochs, other.epochs},
		{"on_error", s.onError, other.onError},
		{"max_bad", s.maxBad, other.maxBad},
		{"max_bad_fraction", s.maxBadFraction, other.maxBadFraction},
		{"manifest", fmt.Sprintf("%x", s.manifestID[:6]), fmt.Sprintf("%x", other.manifestID[:6])},
	} {
		if f.mine != f.had {
			return fmt.Sprintf("with %s %v", f.name, f.mine) + "; %s " + fmt.Sprintf("%v", f.had)
		}
	}
	if s.orderDigest != other.orderDigest || s.pixelsDigest != other.pixelsDigest {
		what := other.facts.difference(s.facts)
		if what == "" {
			what = "it differs"
		}
		return "with another recipe (" + what + ") than %s"
	}
	return ""
}

// manifest reads the manifest of a source from the cache, or builds it; ranks that ask at once share the work.
func (d *Dispatcher) manifest(ctx context.Context, source []string) (*dataset.Manifest, error) {
	result, err, _ := d.indexing.Do(strings.Join(source, "\x00"), func() (any, error) {
		return dataset.BuildOrLoad(ctx, d.cfg.Resolver, source, d.cfg.Cache, dataset.BuildOptions{
			OnProgress: func(p dataset.Progress) {
				if d.cfg.OnIndexing != nil {
					d.cfg.OnIndexing(source, p)
				}
			},
		})
	})
	if err != nil {
		return nil, err
	}
	m, ok := result.(*dataset.Manifest)
	if !ok {
		return nil, errkind.Errorf(errkind.Internal, "indexing gave a %T", result)
	}
	return m, nil
}
