package partition

import (
	"slices"
	"strings"
	"sync"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/lineage"
)

// Store keeps finished partitions in memory by job and identity. It is safe for concurrent use.
type Store struct {
	name  string
	hooks Hooks

	mu     sync.Mutex
	jobs   map[string]map[lineage.ID]held
	stats  StoreStats
	closed bool
}

// StoreStats is what a Store holds.
type StoreStats struct {
	// Partitions and HeldBytes are what can be acquired.
	Partitions int
	HeldBytes  int64
	// LiveBytes are HeldBytes and what was freed but is still being read by someone.
	LiveBytes int64
}

// held is one partition of the store, with the generation of the task that made it.
type held struct {
	generation uint64
	partition  *Partition
}

// Held describes a partition of a Store.
type Held struct {
	Job        string
	Generation uint64
	ID         lineage.ID
	Attempt    uint32
	Rows       int64
	Bytes      int64
	Hash       [16]byte
}

// Hooks tell what happens to the partitions of a Store. They may be nil and must not block.
type Hooks struct {
	// Taken is called when a reader acquires a partition.
	Taken func(job string, id lineage.ID)
	// Freed is called after the memory of a partition is given up, which is later than Free while someone still
	// reads it. replaced says that it was not the store's partition of that identity any more, or never was.
	Freed func(job string, id lineage.ID, bytes int64, replaced bool)
}

// NewStore returns an empty Store. name is the worker's, for errors.
func NewStore(name string, hooks Hooks) *Store {
	return &Store{name: name, hooks: hooks, jobs: map[string]map[lineage.ID]held{}}
}

// Put takes over the caller's reference to p, which must be the only one. A partition of the same identity is
// replaced, unless it comes from a later attempt or the same one: then p is given up and Put returns false, as it
// does when the store is closed.
func (s *Store) Put(job string, generation uint64, p *Partition) bool {
	bytes := p.Bytes()
	p.gone = func() { s.freed(job, p) }
	s.mu.Lock()
	s.stats.LiveBytes += bytes
	old, exists := s.jobs[job][p.id]
	if s.closed || exists && old.partition.attempt >= p.attempt {
		p.replaced = true
		s.mu.Unlock()
		p.Release()
		return false
	}
	if s.jobs[job] == nil {
		s.jobs[job] = map[lineage.ID]held{}
	}
	s.jobs[job][p.id] = held{generation: generation, partition: p}
	s.stats.Partitions++
	s.stats.HeldBytes += bytes
	if exists {
		s.uncount(old.partition)
		old.partition.replaced = true
	}
	s.mu.Unlock()
	if exists {
		old.partition.Release()
	}
	return true
}

// freed is called once the memory of a partition is given up.
func (s *Store) freed(job string, p *Partition) {
	s.mu.Lock()
	s.stats.LiveBytes -= p.bytes
	replaced := p.replaced
	s.mu.Unlock()
	if s.hooks.Freed != nil {
		s.hooks.Freed(job, p.id, p.bytes, replaced)
	}
}

// uncount takes p out of what is held. s.mu is held.
func (s *Store) uncount(p *Partition) {
	s.stats.Partitions--
	s.stats.HeldBytes -= p.bytes
}

// Acquire is the partition of that identity and attempt, with a reference for the caller. If there is none, the error
// is of kind NotFound and names partition and worker.
func (s *Store) Acquire(job string, id lineage.ID, attempt uint32) (*Partition, error) {
	p, err := s.find(job, id, attempt)
	if err == nil && s.hooks.Taken != nil {
		s.hooks.Taken(job, id)
	}
	return p, err
}

// find is Acquire without telling anyone.
func (s *Store) find(job string, id lineage.ID, attempt uint32) (*Partition, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found, ok := s.jobs[job][id]
	if !ok {
		return nil, errkind.Errorf(errkind.NotFound, "worker %s does not hold partition %s of job %s", s.name, id, job)
	}
	if found.partition.attempt != attempt {
		return nil, errkind.Errorf(errkind.NotFound, "worker %s holds partition %s of job %s from attempt %d, not %d", s.name, id, job, found.partition.attempt, attempt)
	}
	found.partition.Retain()
	return found.partition, nil
}

// Free drops partitions of a job. Those the store does not have are passed over.
func (s *Store) Free(job string, ids ...lineage.ID) {
	s.mu.Lock()
	var dropped []*Partition
	for _, id := range ids {
		if found, ok := s.jobs[job][id]; ok {
			dropped = append(dropped, found.partition)
			s.remove(job, id)
		}
	}
	s.mu.Unlock()
	release(dropped)
}

// DropJob drops all partitions of a job.
func (s *Store) DropJob(job string) {
	s.drop(job, func(held) bool { return true })
}

// DropBelow drops the partitions of a job that tasks of a generation below the given one made.
func (s *Store) DropBelow(job string, generation uint64) {
	s.drop(job, func(h held) bool { return h.generation < generation })
}

// DropSources drops the partitions of a job that were made of some source partitions.
func (s *Store) DropSources(job string, sources ...lineage.ID) {
	if len(sources) == 0 {
		return
	}
	s.drop(job, func(h held) bool {
		id := h.partition.id
		return slices.Contains(sources, lineage.SourceID(id.Epoch, id.Source))
	})
}

func (s *Store) drop(job string, match func(held) bool) {
	s.mu.Lock()
	dropped := s.take(job, match)
	s.mu.Unlock()
	release(dropped)
}

// take removes the partitions of a job that match, whose references are the caller's now. s.mu is held.
func (s *Store) take(job string, match func(held) bool) []*Partition {
	var taken []*Partition
	for id, h := range s.jobs[job] {
		if match(h) {
			taken = append(taken, h.partition)
			s.remove(job, id)
		}
	}
	return taken
}

// remove takes one partition out of the index. s.mu is held.
func (s *Store) remove(job string, id lineage.ID) {
	s.uncount(s.jobs[job][id].partition)
	delete(s.jobs[job], id)
	if len(s.jobs[job]) == 0 {
		delete(s.jobs, job)
	}
}

// release runs without the store's lock, since it may give memory back to the system and call hooks.
func release(partitions []*Partition) {
	for _, p := range partitions {
		p.Release()
	}
}

// Held lists all partitions, by job and in stream order: what a worker reports when it registers again.
func (s *Store) Held() []Held {
	s.mu.Lock()
	out := make([]Held, 0, s.stats.Partitions)
	for job, partitions := range s.jobs {
		for id, h := range partitions {
			p := h.partition
			out = append(out, Held{
				Job: job, Generation: h.generation,
				ID: id, Attempt: p.attempt, Rows: p.NumRows(), Bytes: p.bytes, Hash: p.hash,
			})
		}
	}
	s.mu.Unlock()
	slices.SortFunc(out, func(a, b Held) int {
		if c := strings.Compare(a.Job, b.Job); c != 0 {
			return c
		}
		return a.ID.Compare(b.ID)
	})
	return out
}

// Stats is what the store holds now.
func (s *Store) Stats() StoreStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

// Bytes is the memory of all partitions that are held or still being read, see [DataBytes].
func (s *Store) Bytes() int64 { return s.Stats().LiveBytes }

// Close drops everything; later calls of Put give up what they are given. Partitions that are being read go when
// their readers are done.
func (s *Store) Close() {
	s.mu.Lock()
	s.closed = true
	var dropped []*Partition
	for job := range s.jobs {
		dropped = append(dropped, s.take(job, func(held) bool { return true })...)
	}
	s.mu.Unlock()
	release(dropped)
}
