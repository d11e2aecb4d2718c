package partition_test

import (
	"net"
	"testing"

	"github.com/millrace/millrace/preprocess/partition"
)

// One that hangs up before it has said what it wants, or says something else, ends its own channel and nothing more.
func TestABrokenGreetingEndsTheChannelAlone(t *testing.T) {
	store := partition.NewStore("w", partition.Hooks{})
	defer store.Close()
	server := partition.NewServer(store)
	for _, greeting := range []string{"", "mr", "GET / HTTP/1.1 or so, which is no greeting"} {
		ours, theirs := net.Pipe()
		ended := make(chan struct{})
		go func() { defer close(ended); server.HandleChannel(t.Context(), theirs, nil) }()
		go func() { _, _ = ours.Write([]byte(greeting)); _ = ours.Close() }()
		<-ended
	}
}
