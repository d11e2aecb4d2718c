package worker

import (
	"log/slog"
	"maps"
	"time"

	"google.golang.org/grpc"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/loader/store"
	"github.com/millrace/millrace/preprocess/exec"
	"github.com/millrace/millrace/preprocess/isolate"
	"github.com/millrace/millrace/preprocess/partition"
	"github.com/millrace/millrace/preprocess/pypool"
)

// Bounds of a Config, as the dispatcher has them.
const (
	maxName  = 253
	maxSlots = 1 << 16
)

// Config says what a worker is.
type Config struct {
	// Name is unique among live workers.
	Name string
	// DataAddress is where sidecars fetch partitions: "host:port", "unix:/path" or "local:name" inside one process.
	DataAddress string
	// Slots is how many slots of each resource the worker has, such as {"cpu": 8}.
	Slots map[string]int
	// BudgetBytes is what its partitions may take.
	BudgetBytes int64
	// ResidentLimit is the resident memory of the process above which the worker gives all idle memory back and says so;
	// 0: it does not look.
	ResidentLimit int64
	// Policy is how the stages of a plan share slots and bytes; 0 is streaming, others are for comparison.
	Policy exec.Policy
	// Fingerprint names the versions of operators and codecs, with the hash of their self-test.
	Fingerprint string
	// Version is that of the program.
	Version string
	// Scalar keeps image kernels from using SIMD; the bytes are the same.
	Scalar bool
	// AllowPython says which functions of users the worker runs, as [op.PythonAllowed] has them; empty: none. Others than
	// none need the pool in Deps, and slots of [op.PythonResource].
	AllowPython string
	// BlockBytes is what blocks of shards may take that were read for a shuffle's windows and wait for their other
	// samples, beside BudgetBytes; 0: stores are asked for each sample.
	BlockBytes int64
	// Dataset bounds what reading takes.
	Dataset dataset.OpenOptions
}

// Deps is what a worker works with. All fields are needed, but Cache, Python and Isolated.
type Deps struct {
	// Dispatcher is the connection to the dispatcher.
	Dispatcher grpc.ClientConnInterface
	// Resolver opens the stores that manifests name.
	Resolver *store.Resolver
	// Cache keeps the indexes of shards between runs.
	Cache *dataset.Cache
	// Pool gives the memory of partitions. It is the caller's to close, after Run and after everyone who reads.
	Pool *partition.Pool
	// Python runs functions of users. It is the caller's to close, after Run.
	Python *pypool.Pool
	// Isolated decodes images in other processes, whose memory counts towards the budget; nil: all are decoded in this one. It is
	// the caller's to close, after Run.
	Isolated *isolate.Pool
	Logger   *slog.Logger
}

// Validate says what is wrong with c, as an error of kind Invalid.
func (c *Config) Validate() error {
	if c.Name == "" || len(c.Name) > maxName {
		return errkind.Errorf(errkind.Invalid, "worker name %.40q: give 1 to %d characters", c.Name, maxName)
	}
	if c.DataAddress == "" {
		return errkind.Errorf(errkind.Invalid, "worker %s has no data address; say where sidecars can fetch partitions", c.Name)
	}
	if c.BudgetBytes <= 0 {
		return errkind.Errorf(errkind.Invalid, "worker %s has a budget of %d bytes; give more than 0", c.Name, c.BudgetBytes)
	}
	if len(c.Slots) == 0 {
		return errkind.Errorf(errkind.Invalid, "worker %s has no slots; give at least one, such as cpu=1", c.Name)
	}
	for name, n := range c.Slots {
		if name == "" || n < 1 || n > maxSlots {
			return errkind.Errorf(errkind.Invalid, "worker %s has %d slots of %q; give 1 to %d", c.Name, n, name, maxSlots)
		}
	}
	return nil
}

// clone is c with a map of its own.
func (c *Config) clone() Config {
	out := *c
	out.Slots = maps.Clone(c.Slots)
	return out
}

// Paces of a worker.
const (
	// gather is how long events are gathered after some were sent: the first one of a quiet time goes at once.
	gather = 2 * time.Millisecond
	// firstBackoff and maxBackoff bound the pause before the next try to connect, which doubles from try to try.
	firstBackoff = 100 * time.Millisecond
	maxBackoff   = 500 * time.Millisecond
	// defaultHeartbeat is the pause between heartbeats until the dispatcher says otherwise.
	defaultHeartbeat = time.Second
	// trimEvery is the pace at which idle memory is given back to the system.
	trimEvery = 5 * time.Second
)
