package session

import (
	"cmp"
	"maps"
	"slices"

	"github.com/millrace/millrace/feed/session/deal"
	"github.com/millrace/millrace/internal/errkind"
)

// RankStream begins a stream of the open session of a rank, that of the first of its peers here.
func (t *Table) RankStream(job string, rank int, pos deal.Position, conn *Connection) (*Stream, error) {
	t.mu.Lock()
	var s *session
	for _, other := range t.sessions {
		if other.job.description.Name == job && other.job.rankOf(other.seat) == rank && (s == nil || other.seat < s.seat) {
			s = other
		}
	}
	t.mu.Unlock()
	if s == nil {
		return nil, errkind.Errorf(errkind.NotFound, "rank %d of job %q has no open session here", rank, job)
	}
	return t.Stream(s.name, pos, conn)
}

// Member is an open session, for discovery.
type Member struct {
	// Job describes the job, Rank is the rank, Start where its cursor led.
	Job   Description
	Rank  int
	Start deal.Position
}

// Members lists the ranks with an open session by job and rank. Peers of a rank are listed once.
func (t *Table) Members() []Member {
	t.mu.Lock()
	defer t.mu.Unlock()
	members := make([]Member, 0, len(t.sessions))
	sessions := slices.SortedFunc(maps.Values(t.sessions), func(a, b *session) int {
		return cmp.Or(cmp.Compare(a.job.description.Name, b.job.description.Name), cmp.Compare(a.seat, b.seat))
	})
	for _, s := range sessions {
		m := Member{Job: s.job.description, Rank: s.job.rankOf(s.seat), Start: s.job.startOf(s.seat)}
		if n := len(members); n == 0 || members[n-1].Job.Name != m.Job.Name || members[n-1].Rank != m.Rank {
			members = append(members, m)
		}
	}
	return members
}

func (j *Job) startOf(seat int) deal.Position {
	j.mu.Lock()
	defer j.mu.Unlock()
	if m := j.members[seat]; m != nil {
		return m.start
	}
	return deal.Position{}
}
