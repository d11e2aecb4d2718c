package flight

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/millrace/millrace/feed/session"
	"github.com/millrace/millrace/internal/errkind"
)

// ListFlights lists the open jobs.
func (s *Server) ListFlights(_ *flight.Criteria, stream flight.FlightService_ListFlightsServer) error {
	members := s.cfg.Table.Members()
	for len(members) > 0 {
		n := 1
		for n < len(members) && members[n].Job.Name == members[0].Job.Name {
			n++
		}
		info, err := flightInfo([]string{members[0].Job.Name}, members[:n])
		if err != nil {
			return err
		}
		if err := stream.Send(info); err != nil {
			return err
		}
		members = members[n:]
	}
	return nil
}

// GetFlightInfo describes a job, path [job], with one endpoint for each of its ranks here, or one rank of it, path
// [job, rank], with one endpoint.
func (s *Server) GetFlightInfo(_ context.Context, descriptor *flight.FlightDescriptor) (*flight.FlightInfo, error) {
	path, members, err := s.find(descriptor)
	if err != nil {
		return nil, err
	}
	return flightInfo(path, members)
}

// GetSchema gives the schema of a job's batches.
func (s *Server) GetSchema(_ context.Context, descriptor *flight.FlightDescriptor) (*flight.SchemaResult, error) {
	_, members, err := s.find(descriptor)
	if err != nil {
		return nil, err
	}
	return &flight.SchemaResult{Schema: flight.SerializeSchema(members[0].Job.Schema, memory.DefaultAllocator)}, nil
}

// find is the open sessions that a descriptor names, at least one.
func (s *Server) find(descriptor *flight.FlightDescriptor) ([]string, []session.Member, error) {
	path := descriptor.GetPath()
	if descriptor.GetType() != flight.DescriptorPATH || len(path) < 1 || len(path) > 2 {
		return nil, nil, errkind.Errorf(errkind.Invalid, "a descriptor is a path: [job] or [job, rank]")
	}
	rank := -1
	if len(path) == 2 {
		n, err := strconv.Atoi(path[1])
		if err != nil || n < 0 {
			return nil, nil, errkind.Errorf(errkind.Invalid, "%q is not a rank", path[1])
		}
		rank = n
	}
	var found []session.Member
	for _, m := range s.cfg.Table.Members() {
		if m.Job.Name == path[0] && (rank < 0 || m.Rank == rank) {
			found = append(found, m)
		}
	}
	switch {
	case len(found) > 0:
		return path, found, nil
	case rank < 0:
		return nil, nil, errkind.Errorf(errkind.NotFound, "there is no job %q here; open it first", path[0])
	}
	return nil, nil, errkind.Errorf(errkind.NotFound, "rank %d of job %q has no open session here", rank, path[0])
}

// flightInfo describes sessions of one job. Their numbers of rows are not known: a stream has the rest of one epoch.
func flightInfo(path []string, members []session.Member) (*flight.FlightInfo, error) {
	info := &flight.FlightInfo{
		Schema:           flight.SerializeSchema(members[0].Job.Schema, memory.DefaultAllocator),
		FlightDescriptor: &flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: path},
		TotalRecords:     -1,
		TotalBytes:       -1,
	}
	for _, m := range members {
		ticket, err := json.Marshal(ticketBody{
			Job: m.Job.Name, Rank: &m.Rank, positionBody: positionBody{Epoch: m.Start.Epoch, Step: m.Start.Step, Row: m.Start.Row},
		})
		if err != nil {
			return nil, errkind.With(errkind.Internal, fmt.Errorf("writing a ticket of job %q: %w", m.Job.Name, err))
		}
		info.Endpoint = append(info.Endpoint, &flight.FlightEndpoint{Ticket: &flight.Ticket{Ticket: ticket}})
	}
	return info, nil
}
