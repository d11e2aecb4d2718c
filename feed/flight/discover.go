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

// ListFlights lists the open jobs; criteria name one of them.
func (s *Server) ListFlights(criteria *flight.Criteria, stream flight.FlightService_ListFlightsServer) error {
	members := s.cfg.Table.Members()
	for len(members) > 0 {
		n := 1
		for n < len(members) && members[n].Job.Name == members[0].Job.Name {
			n++
		}
		job := members[0].Job.Name
		if only := string(criteria.GetExpression()); only == "" || only == job {
			info, err := flightInfo(&flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: []string{job}}, members[:n], DefaultBatchBytes)
			if err != nil {
				return err
			}
			if err := stream.Send(info); err != nil {
				return err
			}
		}
		members = members[n:]
	}
	return nil
}

// GetFlightInfo describes a job, with one endpoint for each of its ranks here, or one rank of it, with one endpoint.
func (s *Server) GetFlightInfo(_ context.Context, descriptor *flight.FlightDescriptor) (*flight.FlightInfo, error) {
	d, err := parseDescriptor(descriptor)
	if err != nil {
		return nil, err
	}
	members, err := s.find(d)
	if err != nil {
		return nil, err
	}
	return flightInfo(descriptor, members, d.BatchBytes)
}

// GetSchema gives the schema of a job's batches.
func (s *Server) GetSchema(_ context.Context, descriptor *flight.FlightDescriptor) (*flight.SchemaResult, error) {
	d, err := parseDescriptor(descriptor)
	if err != nil {
		return nil, err
	}
	members, err := s.find(d)
	if err != nil {
		return nil, err
	}
	return &flight.SchemaResult{Schema: flight.SerializeSchema(canonical(members[0].Job.Schema), memory.DefaultAllocator)}, nil
}

// parseDescriptor reads a path, [job] or [job, rank], or a command, which says the same in JSON.
func parseDescriptor(descriptor *flight.FlightDescriptor) (*descriptorBody, error) {
	d := &descriptorBody{BatchBytes: DefaultBatchBytes}
	path := descriptor.GetPath()
	switch {
	case descriptor.GetType() == flight.DescriptorCMD:
		if err := decode("the command of a descriptor", descriptor.GetCmd(), d); err != nil {
			return nil, err
		}
	case descriptor.GetType() == flight.DescriptorPATH && (len(path) == 1 || len(path) == 2):
		d.Job = path[0]
		if len(path) == 2 {
			n, err := strconv.Atoi(path[1])
			if err != nil {
				return nil, errkind.Errorf(errkind.Invalid, "%q is not a rank", path[1])
			}
			d.Rank = &n
		}
	default:
		return nil, errkind.Errorf(errkind.Invalid, "a descriptor is a path, [job] or [job, rank], or a command in JSON")
	}
	switch {
	case d.Rank != nil && *d.Rank < 0:
		return nil, errkind.Errorf(errkind.Invalid, "%d is not a rank", *d.Rank)
	case d.BatchBytes < 0 || d.BatchBytes > maxBatchBytes:
		return nil, errkind.Errorf(errkind.Invalid, "batch_bytes is %d; choose 1 to %d, or 0 for whole batches", d.BatchBytes, maxBatchBytes)
	}
	return d, nil
}

// find is the open sessions that a descriptor names, at least one.
func (s *Server) find(d *descriptorBody) ([]session.Member, error) {
	var found []session.Member
	for _, m := range s.cfg.Table.Members() {
		if m.Job.Name == d.Job && (d.Rank == nil || m.Rank == *d.Rank) {
			found = append(found, m)
		}
	}
	switch {
	case len(found) > 0:
		return found, nil
	case d.Rank == nil:
		return nil, errkind.Errorf(errkind.NotFound, "there is no job %q here; open it first", d.Job)
	}
	return nil, errkind.Errorf(errkind.NotFound, "rank %d of job %q has no open session here", *d.Rank, d.Job)
}

// flightInfo describes sessions of one job. Their numbers of rows are not known: a stream has the rest of one epoch.
func flightInfo(descriptor *flight.FlightDescriptor, members []session.Member, batchBytes int64) (*flight.FlightInfo, error) {
	info := &flight.FlightInfo{
		Schema:           flight.SerializeSchema(canonical(members[0].Job.Schema), memory.DefaultAllocator),
		FlightDescriptor: descriptor,
		TotalRecords:     -1,
		TotalBytes:       -1,
	}
	for _, m := range members {
		ticket, err := json.Marshal(ticketBody{
			Job: m.Job.Name, Rank: &m.Rank, positionBody: positionBody{Epoch: m.Start.Epoch, Step: m.Start.Step, Row: m.Start.Row},
			BatchBytes: batchBytes,
		})
		if err != nil {
			return nil, errkind.With(errkind.Internal, fmt.Errorf("writing a ticket of job %q: %w", m.Job.Name, err))
		}
		info.Endpoint = append(info.Endpoint, &flight.FlightEndpoint{Ticket: &flight.Ticket{Ticket: ticket}})
	}
	return info, nil
}
