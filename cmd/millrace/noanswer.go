package main

import (
	"errors"
	"regexp"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/millrace/millrace/internal/errkind"
)

// dead says whether a connection over the network could not be made.
func dead(conn grpc.ClientConnInterface) bool {
	c, ok := conn.(*grpc.ClientConn)
	return ok && c.GetState() == connectivity.TransientFailure
}

// noAnswer is the error of a connection that could not be made. What gRPC says is only told where it is more than that
// nobody listens.
func noAnswer(endpoint string, err error) error {
	reason := ""
	if err != nil {
		reason = err.Error()
	}
	if m := regexp.MustCompile(`desc = "(?:transport: )?(?:error reading server preface: |authentication handshake failed: )(.*?)"`).FindStringSubmatch(reason); m != nil {
		return errkind.With(errkind.Unavailable, errors.New("no connection to "+endpoint+": "+strings.ReplaceAll(m[1], `\"`, `"`)))
	}
	return errkind.Errorf(errkind.Unavailable, "nothing answers at %s; is it running?", endpoint)
}
