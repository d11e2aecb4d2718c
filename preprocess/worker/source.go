package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/grpcerr"
	"github.com/millrace/millrace/loader/dataset"
	workerv1 "github.com/millrace/millrace/proto/millrace/worker/v1"
)

// maxManifestBytes bounds the encoded manifest that a worker accepts.
const maxManifestBytes = 1 << 30

// sources are the datasets that jobs read, each opened once.
type sources struct {
	client workerv1.WorkerServiceClient
	deps   *Deps
	opts   dataset.OpenOptions

	mu   sync.Mutex
	byID map[[16]byte]*source
}

// source is a dataset that is opened when it is first read.
type source struct {
	all  *sources
	id   [16]byte
	refs int // jobs; guarded by sources.mu
	// turn holds one token: who has it may look at data and fetch it.
	turn chan struct{}
	data *dataset.Dataset
}

// join is the source of a manifest, for one more job.
func (s *sources) join(id [16]byte) *source {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := s.byID[id]
	if found == nil {
		found = &source{all: s, id: id, turn: make(chan struct{}, 1)}
		found.turn <- struct{}{}
		s.byID[id] = found
	}
	found.refs++
	return found
}

// leave closes the dataset after the last job. No task of the job may read it any more.
func (s *source) leave() error {
	s.all.mu.Lock()
	s.refs--
	last := s.refs == 0
	if last {
		delete(s.all.byID, s.id)
	}
	s.all.mu.Unlock()
	if !last || s.data == nil {
		return nil
	}
	if err := s.data.Close(); err != nil {
		return fmt.Errorf("closing the dataset of manifest %x: %w", s.id, err)
	}
	return nil
}

// open is the dataset, fetching its manifest from the dispatcher if nobody did so before. An error is not kept: the
// next task tries again.
func (s *source) open(ctx context.Context) (*dataset.Dataset, error) {
	select {
	case <-s.turn:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { s.turn <- struct{}{} }()
	if s.data != nil {
		return s.data, nil
	}
	m, err := s.fetch(ctx)
	if err != nil {
		return nil, err
	}
	s.data, err = dataset.Open(m, s.all.deps.Resolver, s.all.deps.Cache, s.all.opts)
	if err != nil {
		return nil, fmt.Errorf("opening the dataset of manifest %x: %w", s.id, err)
	}
	return s.data, nil
}

func (s *source) fetch(ctx context.Context) (*dataset.Manifest, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := s.all.client.GetManifest(ctx, &workerv1.GetManifestRequest{Manifest: s.id[:]})
	if err != nil {
		return nil, fmt.Errorf("asking for manifest %x: %w", s.id, grpcerr.FromStatus(err))
	}
	var encoded []byte
	for {
		piece, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("receiving manifest %x: %w", s.id, grpcerr.FromStatus(err))
		}
		if len(encoded)+len(piece.GetData()) > maxManifestBytes {
			return nil, errkind.Errorf(errkind.Exhausted, "manifest %x has more than %d bytes", s.id, maxManifestBytes)
		}
		encoded = append(encoded, piece.GetData()...)
	}
	m, err := dataset.DecodeManifest(encoded)
	if err != nil {
		return nil, fmt.Errorf("manifest %x: %w", s.id, err)
	}
	if m.ID() != s.id {
		return nil, errkind.Errorf(errkind.Internal, "asked for manifest %x, and got %x", s.id, m.ID())
	}
	return m, nil
}
