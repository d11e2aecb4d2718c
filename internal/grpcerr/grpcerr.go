// Package grpcerr carries errors with a kind over gRPC: the code tells programs, the text people, and a suffix of the
// text gives the kind back exactly, since several kinds share no code with a Python exception.
package grpcerr

import (
	"errors"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/internal/errkind"
)

var kindCodes = [...]struct {
	kind errkind.Kind
	code codes.Code
}{
	{errkind.Invalid, codes.InvalidArgument},
	{errkind.NotFound, codes.NotFound},
	{errkind.Conflict, codes.FailedPrecondition},
	{errkind.Unavailable, codes.Unavailable},
	{errkind.BadData, codes.DataLoss},
	{errkind.Exhausted, codes.ResourceExhausted},
	{errkind.Internal, codes.Internal},
	{errkind.Canceled, codes.Canceled},
	{errkind.Unknown, codes.Unknown},
}

// Code is the gRPC code of a kind.
func Code(k errkind.Kind) codes.Code {
	for _, c := range kindCodes {
		if c.kind == k {
			return c.code
		}
	}
	return codes.Unknown
}

// ToStatus is err as a gRPC status whose text ends in " [kind=KIND]". Nil and errors that are a status already stay as
// they are.
func ToStatus(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[carrier](err); ok {
		return err
	}
	kind := errkind.Of(err)
	return status.Error(Code(kind), err.Error()+" [kind="+kind.String()+"]")
}

// carrier is an error that is a status.
type carrier interface {
	error
	GRPCStatus() *status.Status
}

// FromStatus is the inverse of ToStatus: an error with the kind, the text without its suffix. What a library wrapped
// around the status is left out; errors without a status stay as they are.
func FromStatus(err error) error {
	found, ok := errors.AsType[carrier](err)
	if !ok {
		return err
	}
	s := found.GRPCStatus()
	text, kind := s.Message(), errkind.Unknown
	if i := strings.LastIndex(text, " [kind="); i >= 0 && strings.HasSuffix(text, "]") {
		kind = errkind.Parse(text[i+len(" [kind=") : len(text)-1])
		text = text[:i]
	}
	if kind == errkind.Unknown {
		kind = kindOfCode(s.Code())
	}
	return errkind.With(kind, &wireError{text: text, err: err})
}

func kindOfCode(code codes.Code) errkind.Kind {
	if code == codes.DeadlineExceeded {
		return errkind.Canceled
	}
	for _, c := range kindCodes {
		if c.code == code {
			return c.kind
		}
	}
	return errkind.Unknown
}

// wireError has the text for people; what it wraps is hidden from errors.As so that ToStatus makes a new status.
type wireError struct {
	text string
	err  error
}

func (e *wireError) Error() string { return e.text }

// Is lets errors.Is see through to the status.
func (e *wireError) Is(target error) bool { return errors.Is(e.err, target) }
