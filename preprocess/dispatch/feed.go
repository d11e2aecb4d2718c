package dispatch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/grpcerr"
	"github.com/millrace/millrace/preprocess/dispatch/journal"
	"github.com/millrace/millrace/preprocess/dispatch/ledger"
	feedv1 "github.com/millrace/millrace/proto/millrace/feed/v1"
	workerv1 "github.com/millrace/millrace/proto/millrace/worker/v1"
)

// sidecar is one sidecar's stream for one job.
type sidecar struct {
	name       string
	out        *outbox[*feedv1.AttachResponse]
	generation uint64 // the one it was told of
}

type feedService struct {
	feedv1.UnimplementedFeedServiceServer
	d *Dispatcher
}

// OpenJob plans a job or joins the one of that name, for one rank.
func (s *feedService) OpenJob(ctx context.Context, req *feedv1.OpenJobRequest) (*feedv1.OpenJobResponse, error) {
	resp, err := s.d.openJob(ctx, req)
	return resp, grpcerr.ToStatus(err)
}

func (d *Dispatcher) openJob(ctx context.Context, req *feedv1.OpenJobRequest) (*feedv1.OpenJobResponse, error) {
	if req.GetJob() == "" || len(req.GetJob()) > 200 {
		return nil, errkind.Errorf(errkind.Invalid, "a job needs a name of 1 to 200 bytes, not %d", len(req.GetJob()))
	}
	if req.GetRank() >= req.GetWorldSize() {
		return nil, errkind.Errorf(errkind.Invalid, "rank %d is not below the world size %d", req.GetRank(), req.GetWorldSize())
	}
	if req.GetPeer() >= max(1, req.GetPeers()) {
		return nil, errkind.Errorf(errkind.Invalid, "peer %d is not below the %d peers of a rank", req.GetPeer(), req.GetPeers())
	}
	s, err := d.newSpec(ctx, req)
	if err != nil {
		return nil, err
	}
	start, err := d.position(s, req.GetCursor(), req.GetContinueOnMismatch())
	if err != nil {
		return nil, err
	}
	d.keepFacts(s)
	if err := d.keepManifest(ctx, s); err != nil {
		return nil, err
	}
	logged := make(chan struct{})
	resp, err := d.joinJob(req, s, start, logged)
	if err != nil {
		return nil, err
	}
	var over <-chan struct{}
	if d.book != nil {
		over = d.book.ended
	}
	select {
	case <-logged: // what a rank was told is never forgotten
		return resp, nil
	case <-over:
		return nil, errGoingAway
	case <-ctx.Done():
		return nil, errkind.With(errkind.Canceled, fmt.Errorf("job %q: waiting for the log: %w", req.GetJob(), ctx.Err()))
	}
}

// joinJob is openJob with everything read; logged is closed once the log has it.
func (d *Dispatcher) joinJob(req *feedv1.OpenJobRequest, s *spec, start ledger.Position, logged chan struct{}) (*feedv1.OpenJobResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.checkOffers(s); err != nil {
		return nil, err
	}
	j := d.jobs[req.GetJob()]
	if j == nil || (!j.hasRanks() && j.spec.disagreement(s) != "") {
		if j != nil {
			d.stopJob(j, nil)
		}
		j = d.newJob(req.GetJob(), s)
		d.jobs[j.name] = j
	}
	seat := int(req.GetRank())*s.peers + int(req.GetPeer())
	if err := j.admit(s, seat, req.GetAttempt()); err != nil {
		return nil, err
	}
	j.shipFunctions(seat, s)
	r := j.ranks[seat]
	r.joined, r.attempt, r.opened = true, req.GetAttempt(), &start
	d.manifests[s.manifestID] = s.manifest
	j.note(logged)
	return &feedv1.OpenJobResponse{
		Job: j.name, OrderDigest: s.orderDigest[:], PixelsDigest: s.pixelsDigest[:], Schema: s.schema,
		Rows: s.rows(), Steps: s.steps(), Start: wirePosition(start),
		Samples: s.layout.NumSamples, Manifest: s.manifestID[:],
	}, nil
}

// admit says whether a rank may join with its settings.
func (j *job) admit(s *spec, index int, attempt uint64) error {
	if what := s.disagreement(j.spec); what != "" {
		others := j.names(j.joinedRanks(index))
		verb := "use"
		if !strings.Contains(others, "ranks") {
			verb = "uses"
		}
		if others == "" {
			others, verb = "the job", "uses"
		}
		if strings.HasPrefix(what, "with another recipe") {
			what = fmt.Sprintf(what, others)
		} else {
			what = fmt.Sprintf(what, others+" "+verb)
		}
		return errkind.Errorf(errkind.Conflict, "%s joined job %q %s. All ranks of a job must agree", s.name(index), j.name, what)
	}
	r := j.ranks[index]
	if attempt < r.attempt {
		return errkind.Errorf(errkind.Conflict, "%s of job %q is at restart %d; restart %d is stale", s.name(index), j.name, r.attempt, attempt)
	}
	if r.sidecar != nil && attempt == r.attempt {
		return errkind.Errorf(errkind.Conflict, "%s of job %q is already being served; give the other loader another job name, or close it first", s.name(index), j.name)
	}
	return nil
}

// joinedRanks lists the ranks that have joined, without one.
func (j *job) joinedRanks(without int) []int {
	var list []int
	for _, r := range j.ranks {
		if r.joined && r.index != without {
			list = append(list, r.index)
		}
	}
	return list
}

// Attach runs a sidecar's stream for one job.
func (s *feedService) Attach(stream feedv1.FeedService_AttachServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	hello := first.GetHello()
	if hello == nil {
		return status.Error(codes.InvalidArgument, "the first message of a sidecar must be Hello")
	}
	side := &sidecar{name: hello.GetSidecar(), out: newOutbox[*feedv1.AttachResponse]()}
	j, err := s.d.attach(hello, side)
	if err != nil {
		return grpcerr.ToStatus(err)
	}
	defer s.d.detach(j, side)

	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	go func() { cancel(s.receive(stream, j, side)) }()
	err = side.out.run(ctx, stream.Send)
	if errors.Is(err, context.Canceled) {
		if err = context.Cause(ctx); errors.Is(err, io.EOF) {
			return nil
		}
	}
	return grpcerr.ToStatus(err)
}

func (s *feedService) receive(stream feedv1.FeedService_AttachServer, j *job, side *sidecar) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		if err := s.d.handleSidecar(j, side, m); err != nil {
			return err
		}
	}
}

func (d *Dispatcher) attach(hello *feedv1.Hello, side *sidecar) (*job, error) {
	name := hello.GetJob()
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.checkTerm("sidecar "+side.name, hello.GetTerm()); err != nil {
		return nil, err
	}
	j := d.jobs[name]
	if j == nil {
		return nil, errkind.Errorf(errkind.NotFound, "there is no job %q; open it first", name)
	}
	if old := j.sidecars[side.name]; old != nil {
		old.out.close(errkind.Errorf(errkind.Conflict, "sidecar %s has attached to job %q anew", side.name, name))
		j.drop(old)
	}
	j.sidecars[side.name] = side
	side.out.put(&feedv1.AttachResponse{Message: &feedv1.AttachResponse_Welcome{Welcome: &feedv1.Welcome{Term: d.term}}})
	side.out.put(&feedv1.AttachResponse{Message: &feedv1.AttachResponse_Beat{Beat: d.sign()}})
	return j, nil
}

func (d *Dispatcher) detach(j *job, side *sidecar) {
	d.mu.Lock()
	defer d.mu.Unlock()
	j.drop(side)
}

// drop forgets a sidecar's stream. Its ranks stay joined: they may come back.
func (j *job) drop(side *sidecar) {
	if j.sidecars[side.name] == side {
		delete(j.sidecars, side.name)
	}
	for _, r := range j.ranks {
		if r.sidecar == side {
			r.sidecar, r.want = nil, nil
		}
	}
}

func (d *Dispatcher) handleSidecar(j *job, side *sidecar, m *feedv1.AttachRequest) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.jobs[j.name] != j || j.sidecars[side.name] != side {
		return errkind.Errorf(errkind.NotFound, "job %q has ended", j.name)
	}
	switch {
	case m.GetSeek() != nil:
		return j.handleSeek(side, m.GetSeek())
	case m.GetConsumed() != nil:
		c := m.GetConsumed()
		r, err := j.rank(c.GetSeat())
		if err != nil {
			return err
		}
		if j.core != nil && c.GetGeneration() == j.generation {
			j.consumed(r, c.GetEpoch(), c.GetStep())
		}
	case m.GetLeave() != nil:
		r, err := j.rank(m.GetLeave().GetSeat())
		if err != nil {
			return err
		}
		j.leave(r)
	}
	return nil
}

func (j *job) handleSeek(side *sidecar, seek *feedv1.Seek) error {
	r, err := j.rank(seek.GetSeat())
	if err != nil {
		return err
	}
	refuse := func(err error) error {
		side.out.put(failedMessage(err, []uint32{seek.GetSeat()}))
		return nil
	}
	switch {
	case !r.joined:
		return refuse(errkind.Errorf(errkind.Conflict, "%s has not joined job %q, or has left it; open it first", j.spec.name(r.index), j.name))
	case seek.GetAttempt() < r.attempt:
		return refuse(errkind.Errorf(errkind.Conflict, "%s of job %q is at restart %d; restart %d is stale", j.spec.name(r.index), j.name, r.attempt, seek.GetAttempt()))
	}
	p, err := j.resolve(r, seek)
	if err != nil {
		return refuse(err)
	}
	j.seek(r, side, p, seek.GetGeneration())
	return nil
}

// resolve finds the source partition of a position that a rank asks for.
func (j *job) resolve(r *rank, seek *feedv1.Seek) (ledger.Position, error) {
	p := seek.GetPosition()
	out := ledger.Position{Epoch: p.GetEpoch(), Step: p.GetStep(), Row: p.GetRow()}
	if out.Step < 0 || out.Row < 0 {
		return out, errkind.Errorf(errkind.Invalid, "step %d, row %d of epoch %d is not a position", out.Step, out.Row, out.Epoch)
	}
	if out.Row == 0 {
		return j.spec.normalize(out)
	}
	if j.spec.plan.KeepsRows {
		out.Partition, out.RowInPartition = out.Row/j.spec.layout.PartitionSamples, out.Row%j.spec.layout.PartitionSamples
		if out.Row >= j.spec.layout.NumSamples {
			out.Partition, out.RowInPartition = j.spec.numPartitions(), 0
		}
		return j.spec.normalize(out)
	}
	if o := r.opened; o != nil && o.Epoch == out.Epoch && o.Step == out.Step && o.Row == out.Row {
		return *o, nil
	}
	if c, err := j.d.position(j.spec, seek.GetCursor(), true); err == nil && seek.GetCursor() != "" &&
		c.Epoch == out.Epoch && c.Step == out.Step && c.Row == out.Row {
		return c, nil
	}
	if s := j.start; s.Epoch == out.Epoch && s.Step == out.Step && s.Row == out.Row {
		return s, nil
	}
	if j.ledger != nil {
		if found, ok := j.ledger.Find(out.Epoch, out.Step, out.Row); ok {
			return j.spec.normalize(found)
		}
	}
	return out, errkind.Errorf(errkind.NotFound, "step %d of epoch %d is not remembered; open the job with a saved state", out.Step, out.Epoch)
}

func (j *job) rank(index uint32) (*rank, error) {
	if int64(index) >= int64(len(j.ranks)) {
		return nil, errkind.Errorf(errkind.Invalid, "job %q has %d ranks of %d peers; there is no %s", j.name, j.spec.world, j.spec.peers, j.spec.name(int(index)))
	}
	return j.ranks[index], nil
}

// StopJob ends a job.
func (s *feedService) StopJob(_ context.Context, req *feedv1.StopJobRequest) (*feedv1.StopJobResponse, error) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	j, err := s.d.known(req.GetJob())
	if err != nil {
		return nil, grpcerr.ToStatus(err)
	}
	s.d.stopJob(j, errkind.Errorf(errkind.Canceled, "job %q was stopped", j.name))
	return &feedv1.StopJobResponse{}, nil
}

// stopJob removes a job; ranks that still read it are told why.
func (d *Dispatcher) stopJob(j *job, why error) {
	j.end()
	for _, w := range d.workers {
		if w.jobs[j.name] {
			delete(w.jobs, j.name)
			w.out.put(&workerv1.ConnectResponse{Message: &workerv1.ConnectResponse_EndJob{EndJob: &workerv1.EndJob{Job: j.name}}})
		}
	}
	for _, s := range j.sidecars {
		s.out.close(why)
	}
	delete(d.jobs, j.name)
	d.book.put(nil, journal.Record{Ended: j.name})
	for _, other := range d.jobs {
		if other.spec.manifestID == j.spec.manifestID {
			return
		}
	}
	delete(d.manifests, j.spec.manifestID)
}

// tell sends a sidecar what changed in the account.
func (j *job) tell(s *sidecar, eff ledger.Effects) {
	if s.generation != j.generation {
		return
	}
	if len(eff.Placed) > 0 {
		placed := &feedv1.Placed{Generation: j.generation}
		for _, p := range eff.Placed {
			address := ""
			if w := j.d.workers[p.Worker]; w != nil {
				address = w.address
			}
			placed.Placements = append(placed.Placements, wirePlacement(p, address))
		}
		s.out.put(&feedv1.AttachResponse{Message: &feedv1.AttachResponse_Placed{Placed: placed}})
	}
	for _, b := range eff.Sealed {
		s.out.put(&feedv1.AttachResponse{Message: &feedv1.AttachResponse_Sealed{Sealed: &feedv1.Sealed{
			Generation: j.generation, Position: wirePosition(b.Begin), Rows: b.Rows, Cursor: j.spec.cursor(j.name, b.End),
		}}})
	}
	for _, e := range eff.Ended {
		s.out.put(&feedv1.AttachResponse{Message: &feedv1.AttachResponse_EpochEnd{EpochEnd: &feedv1.EpochEnd{
			Generation: j.generation, Epoch: e.Epoch, Rows: e.Rows, Steps: e.Steps,
			Last: j.spec.epochs > 0 && e.Epoch+1 >= j.spec.epochs,
		}}})
	}
}

// name is a seat for people.
func (s *spec) name(seat int) string {
	if s.peers == 1 {
		return fmt.Sprintf("rank %d", seat)
	}
	return fmt.Sprintf("peer %d of rank %d", seat%s.peers, seat/s.peers)
}

// names writes seats for people: ranks all of whose peers are among them as ranks.
func (j *job) names(seats []int) string {
	n := j.spec.peers
	if n == 1 {
		return rankList(seats)
	}
	slices.Sort(seats)
	var whole []int
	var parts []string
	for i := 0; i < len(seats); {
		k := i + 1
		for k < len(seats) && seats[k]/n == seats[i]/n {
			k++
		}
		if rank := seats[i] / n; k-i == n {
			whole = append(whole, rank)
		} else {
			for _, seat := range seats[i:k] {
				parts = append(parts, j.spec.name(seat))
			}
		}
		i = k
	}
	if len(whole) > 0 {
		parts = append([]string{rankList(whole)}, parts...)
	}
	return strings.Join(parts, ", ")
}

// rankList writes ranks for people: "rank 3", "ranks 0–2, 5".
func rankList(ranks []int) string {
	if len(ranks) == 0 {
		return ""
	}
	slices.Sort(ranks)
	var parts []string
	for i := 0; i < len(ranks); {
		k := i
		for k+1 < len(ranks) && ranks[k+1] == ranks[k]+1 {
			k++
		}
		switch k - i {
		case 0:
			parts = append(parts, fmt.Sprint(ranks[i]))
		case 1:
			parts = append(parts, fmt.Sprint(ranks[i]), fmt.Sprint(ranks[k]))
		default:
			parts = append(parts, fmt.Sprintf("%d–%d", ranks[i], ranks[k]))
		}
		i = k + 1
	}
	word := "ranks "
	if len(ranks) == 1 {
		word = "rank "
	}
	return word + strings.Join(parts, ", ")
}
