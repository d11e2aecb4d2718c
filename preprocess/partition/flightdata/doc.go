// Package flightdata reads and writes the messages of Arrow Flight, FlightData, without copying what they carry more
// than once. What it writes is valid protobuf that every Flight implementation reads, and it reads what any of them
// writes.
//
// An [Outgoing] message refers to the buffers of a record batch; they are given back when gRPC has written them. The
// body of an [Incoming] message is read straight into a buffer of the receiver's, aligned as its allocator aligns, and
// its checksum is taken on the way. A gRPC server uses [ServerOptions], a client [CallOption]; other messages of the
// same server or connection are not affected.
package flightdata
