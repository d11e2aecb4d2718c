// Package errkind classes errors by what the caller should do next.
//
// A Kind travels with an error through wrapping ([Of] finds it with errors.As) and is mapped once, at
// the rim, to a gRPC status code and to a Python exception. The text of an error is for people: one line
// that says what happened to which object, and what to do.
package errkind

import (
	"context"
	"errors"
	"fmt"
)

// Kind says what the caller should do about an error.
type Kind uint8

const (
	// Unknown is the zero Kind: the error was not classed. Treat it as Internal.
	Unknown Kind = iota
	// Invalid says that the request itself is wrong; change it.
	Invalid
	// NotFound says that the named object does not exist.
	NotFound
	// Conflict says that the request contradicts the present state (another rank's settings, a cursor of another recipe).
	Conflict
	// Unavailable says that something needed is away for now; trying again may help.
	Unavailable
	// BadData says that a sample, shard or index is damaged.
	BadData
	// Exhausted says that a limit or budget would be passed.
	Exhausted
	// Internal says that a law of the program is broken; report it.
	Internal
	// Canceled says that the caller gave up or its deadline passed.
	Canceled
)

// String is the lower-case name of k, as used on the wire and in metrics.
func (k Kind) String() string {
	switch k {
	case Invalid:
		return "invalid"
	case NotFound:
		return "not_found"
	case Conflict:
		return "conflict"
	case Unavailable:
		return "unavailable"
	case BadData:
		return "bad_data"
	case Exhausted:
		return "exhausted"
	case Internal:
		return "internal"
	case Canceled:
		return "canceled"
	case Unknown:
	}
	return "unknown"
}

// Parse is the kind of that name, Unknown where there is none.
func Parse(name string) Kind {
	for k := Unknown; k <= Canceled; k++ {
		if k.String() == name {
			return k
		}
	}
	return Unknown
}

type kindError struct {
	kind Kind
	err  error
}

func (e *kindError) Error() string { return e.err.Error() }
func (e *kindError) Unwrap() error { return e.err }

// Errorf is fmt.Errorf with a Kind. %w works as usual.
func Errorf(kind Kind, format string, args ...any) error {
	return &kindError{kind: kind, err: fmt.Errorf(format, args...)}
}

// With gives err the Kind kind; nil stays nil.
func With(kind Kind, err error) error {
	if err == nil {
		return nil
	}
	return &kindError{kind: kind, err: err}
}

// Of is the outermost Kind in err's chain: Canceled for context errors without one, Unknown when there is none.
func Of(err error) Kind {
	if k, ok := errors.AsType[*kindError](err); ok {
		return k.kind
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return Canceled
	}
	return Unknown
}
