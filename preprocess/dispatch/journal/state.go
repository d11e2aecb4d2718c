package journal

import (
	"maps"
	"slices"

	"github.com/millrace/millrace/internal/errkind"
)

// State is what a log says, from its beginning to some entry.
type State struct {
	// Term of the dispatcher that wrote last, and its name; 0 in an empty log.
	Term   uint64 `json:"term"`
	Leader string `json:"leader"`
	// Jobs by name.
	Jobs map[string]*Job `json:"jobs,omitempty"`
	// Workers that were connected, by name.
	Workers []string `json:"workers,omitempty"`
}

// Job is what can't be derived of a job.
type Job struct {
	// Open is the request that opened it, as it came.
	Open []byte `json:"open"`
	// Manifest is the id of its manifest; Order and Pixels are its digests: all in hexadecimal.
	Manifest string `json:"manifest"`
	Order    string `json:"order"`
	Pixels   string `json:"pixels"`
	// Fingerprint of the workers that serve it; empty before the first.
	Fingerprint string `json:"fingerprint,omitempty"`
	// Generation under way or last over, and where it began.
	Generation uint64   `json:"generation,omitempty"`
	Start      Position `json:"start"`
	// Ranks by number.
	Ranks []Rank `json:"ranks"`
	// Mark is where the slowest rank was, at some time.
	Mark Position `json:"mark"`
}

// Rank is what is known of one rank.
type Rank struct {
	Joined  bool   `json:"joined,omitempty"`
	Attempt uint64 `json:"attempt,omitempty"`
}

// Position is a place in the stream at which global batches begin to be cut.
type Position struct {
	Epoch          uint64 `json:"epoch"`
	Step           int64  `json:"step"`
	Row            int64  `json:"row"`
	Partition      int64  `json:"partition"`
	RowInPartition int64  `json:"row_in_partition"`
}

// Record is one fact. Exactly one of its fields is set.
type Record struct {
	// Leads begins a term.
	Leads *Leads `json:"leads,omitempty"`
	// Job is a job as it now is.
	Job *Named `json:"job,omitempty"`
	// Ended is a job that is over.
	Ended string `json:"ended,omitempty"`
	// Mark says how far a job has come.
	Mark *Mark `json:"mark,omitempty"`
	// Workers are all that are connected.
	Workers *Workers `json:"workers,omitempty"`
}

// Leads says that a dispatcher has taken over.
type Leads struct {
	Term   uint64 `json:"term"`
	Leader string `json:"leader"`
}

// Named is a job with its name.
type Named struct {
	Name string `json:"name"`
	Job  *Job   `json:"job"`
}

// Mark is where the slowest rank of a job is.
type Mark struct {
	Job string   `json:"job"`
	At  Position `json:"at"`
}

// Workers are names, sorted.
type Workers struct {
	Names []string `json:"names"`
}

// Apply takes a record in. One that contradicts the state is an error of kind BadData and changes nothing.
func (s *State) Apply(r Record) error {
	switch {
	case r.Leads != nil:
		if r.Leads.Term <= s.Term {
			return errkind.Errorf(errkind.BadData, "term %d begins after term %d", r.Leads.Term, s.Term)
		}
		s.Term, s.Leader = r.Leads.Term, r.Leads.Leader
	case r.Job != nil:
		if r.Job.Name == "" || r.Job.Job == nil {
			return errkind.Errorf(errkind.BadData, "a record of a job has no name or no job")
		}
		if s.Jobs == nil {
			s.Jobs = map[string]*Job{}
		}
		s.Jobs[r.Job.Name] = r.Job.Job.clone()
	case r.Ended != "":
		delete(s.Jobs, r.Ended)
	case r.Mark != nil:
		if j := s.Jobs[r.Mark.Job]; j != nil {
			j.Mark = r.Mark.At
		}
	case r.Workers != nil:
		s.Workers = slices.Clone(r.Workers.Names)
	default:
		return errkind.Errorf(errkind.BadData, "a record says nothing that this version knows")
	}
	return nil
}

// Clone is a copy that shares nothing that changes.
func (s *State) Clone() *State {
	out := *s
	out.Workers = slices.Clone(s.Workers)
	out.Jobs = maps.Clone(s.Jobs)
	for name, j := range out.Jobs {
		out.Jobs[name] = j.clone()
	}
	return &out
}

func (j *Job) clone() *Job {
	out := *j
	out.Ranks = slices.Clone(j.Ranks)
	return &out
}
