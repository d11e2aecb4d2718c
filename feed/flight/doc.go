// Package flight serves the sessions of a sidecar to trainers over Arrow Flight, as docs/formats/session.md says: any
// Flight client can open a job, read the batches of a rank and acknowledge them.
//
// Batches are sent without copying them: gRPC is given their buffers, which return to their pool once they are written.
// A stream whose last batch was sent ends when the client has acknowledged it or has closed its end, so that the
// consumed mark of the rank is right at the end of an epoch too.
package flight
