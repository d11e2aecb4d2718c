// Package feedtest stands in for the rest of the service in tests of the sidecar: a dispatcher that places the same
// partitions again and again, and workers that hold them.
package feedtest
