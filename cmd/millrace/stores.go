package main

import (
	"fmt"

	"github.com/spf13/pflag"
	"golang.org/x/sync/semaphore"

	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/loader/store"
	"github.com/millrace/millrace/loader/store/diskcache"
	"github.com/millrace/millrace/loader/store/filestore"
	"github.com/millrace/millrace/loader/store/httpstore"
	"github.com/millrace/millrace/loader/store/ranged"
	"github.com/millrace/millrace/loader/store/s3store"
)

// storeFlags say how stores are reached; the URI of a source may say otherwise for its own.
type storeFlags struct {
	s3       s3store.Options
	inFlight int
	blocks   service.Bytes
	disk     string
	diskSize service.Bytes
}

// readBytes is what all reads of remote stores of this process may have in flight.
const readBytes = 256 << 20

func (s *storeFlags) register(f *pflag.FlagSet) {
	f.StringVar(&s.s3.Endpoint, "s3-endpoint", "", "URL of a server that speaks S3 (default: that of AWS or AWS_ENDPOINT_URL)")
	f.StringVar(&s.s3.Region, "s3-region", "", "region of buckets (default: AWS_REGION, else that of the bucket)")
	f.StringVar(&s.s3.Profile, "s3-profile", "", "profile of the AWS configuration files")
	f.BoolVar(&s.s3.Anonymous, "s3-anonymous", false, "read public buckets without credentials")
	f.BoolVar(&s.s3.VirtualHost, "s3-virtual-host", false, "put the bucket into the host name even at --s3-endpoint")
	f.BoolVar(&s.s3.RequesterPays, "s3-requester-pays", false, "agree to pay for requests")
	s.blocks = 768 << 20
	s.diskSize = 64 << 30
	f.StringVar(&s.disk, "disk-cache", "", "local directory that keeps what is read from S3 and HTTP, for later epochs and other processes")
	f.Var(&s.diskSize, "disk-cache-size", "bytes that the directory may hold, of all processes together")
	f.Var(&s.blocks, "block-budget", "bytes of shards on S3 and HTTP that a worker may hold until their samples are used; 0: it asks for each sample")
	f.IntVar(&s.inFlight, "store-requests", 128, "requests to S3 and HTTP stores at a time, for each prefix of a bucket")
}

// args are the flags as a worker process takes them.
func (s *storeFlags) args() []string {
	return []string{
		"--s3-endpoint", s.s3.Endpoint, "--s3-region", s.s3.Region, "--s3-profile", s.s3.Profile,
		fmt.Sprintf("--s3-anonymous=%t", s.s3.Anonymous), fmt.Sprintf("--s3-virtual-host=%t", s.s3.VirtualHost),
		fmt.Sprintf("--s3-requester-pays=%t", s.s3.RequesterPays), "--store-requests", fmt.Sprint(s.inFlight),
		"--block-budget", s.blocks.String(), "--disk-cache", s.disk, "--disk-cache-size", s.diskSize.String(),
	}
}

// newResolver opens the stores that this binary knows.
func (a *app) newResolver() *store.Resolver {
	read := ranged.Options{InFlight: a.stores.inFlight, Bytes: semaphore.NewWeighted(readBytes), BytesLimit: readBytes}
	s3 := a.stores.s3
	s3.Read = read
	kept := func(name string, open store.OpenFunc) store.OpenFunc {
		if a.stores.disk == "" {
			return open
		}
		return diskcache.Within(a.stores.disk, int64(a.stores.diskSize), name, open)
	}
	return store.NewResolver(map[string]store.OpenFunc{
		"file":  filestore.Open,
		"s3":    kept("s3 "+s3.Endpoint, s3store.New(s3).Open),
		"http":  kept("http", httpstore.Opener("http", read)),
		"https": kept("https", httpstore.Opener("https", read)),
	})
}
