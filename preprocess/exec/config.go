package exec

import (
	"maps"
	"math"
	"slices"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/lineage"
)

// Unlimited is a node's BudgetBytes where something else bounds its memory.
const Unlimited int64 = math.MaxInt64 / 4

// Defaults of Config.
const (
	DefaultMaxUnread     = 2
	DefaultReplayReserve = 0.1
)

// maxSlots bounds slots and what a task takes of them, so that sums cannot overflow.
const maxSlots = 1 << 30

// StageSpec describes one stage of the plan.
type StageSpec struct {
	// Name is unique in the plan.
	Name string
	// Resources is how many slots of each resource one task takes, at least one slot in all.
	Resources map[string]int
	// ExpectBytes is the expected output of one task, in bytes, until some were measured; 0 is "not known": then a
	// task of the first stage is taken to fill its slot's share of half the node's budget, and one of a later stage
	// to make as many bytes as it gets.
	ExpectBytes int64
	// MaxOutputBytes is the size that no output partition passes, in bytes: the target size. A running task is
	// charged for one more output of this size, so budgets hold however wrong the estimates are. 0 is "not known":
	// then a task that passes its estimate is charged for outputs of mean size.
	MaxOutputBytes int64
}

// Policy says how the next launch is chosen.
type Policy uint8

const (
	// PolicyStreaming runs all stages at the same time and gives each slot to the stage that needs it most.
	PolicyStreaming Policy = iota + 1
	// PolicyStaged finishes one stage for all that was offered before it begins the next: the batch model.
	PolicyStaged
	// PolicyStatic gives each stage a fixed share of the slots and of the budget: the stream model.
	PolicyStatic
)

// String is the name of p, as in metrics and flags.
func (p Policy) String() string {
	switch p {
	case PolicyStreaming:
		return "streaming"
	case PolicyStaged:
		return "staged"
	case PolicyStatic:
		return "static"
	}
	return "unknown"
}

// ParsePolicy is the policy of that name. Errors are of kind Invalid.
func ParsePolicy(name string) (Policy, error) {
	for p := PolicyStreaming; p <= PolicyStatic; p++ {
		if p.String() == name {
			return p, nil
		}
	}
	return 0, errkind.Errorf(errkind.Invalid, "policy %q is unknown; use streaming, staged or static", name)
}

// Config is what a Core is made from.
type Config struct {
	// Stages is the plan, in order: 1 to lineage.MaxDepth stages.
	Stages []StageSpec
	// Policy is PolicyStreaming where it is zero.
	Policy Policy
	// MaxUnread is how many outputs that nobody took yet a task may have once it has produced more than was
	// expected of it; 0 is DefaultMaxUnread.
	MaxUnread int
	// ReplayReserve is the share of each budget, in [0, 1), that is kept for replays and awaited source
	// partitions; 0 is DefaultReplayReserve.
	ReplayReserve float64
	// AttemptsBefore is how many attempts of any task may have been made before this core knew of them: its own have
	// higher numbers.
	AttemptsBefore uint32
}

// check fills the defaults of cfg in. Errors are of kind Invalid.
func (cfg Config) check() (Config, error) {
	if n := len(cfg.Stages); n < 1 || n > lineage.MaxDepth {
		return cfg, errkind.Errorf(errkind.Invalid, "plan has %d stages; a plan has 1 to %d", n, lineage.MaxDepth)
	}
	if cfg.Policy == 0 {
		cfg.Policy = PolicyStreaming
	}
	if cfg.Policy > PolicyStatic {
		return cfg, errkind.Errorf(errkind.Invalid, "policy %d is unknown; use streaming, staged or static", cfg.Policy)
	}
	if cfg.MaxUnread == 0 {
		cfg.MaxUnread = DefaultMaxUnread
	}
	if cfg.MaxUnread < 0 {
		return cfg, errkind.Errorf(errkind.Invalid, "%d unread outputs a task: give at least 1", cfg.MaxUnread)
	}
	if cfg.ReplayReserve == 0 {
		cfg.ReplayReserve = DefaultReplayReserve
	}
	if !(cfg.ReplayReserve > 0 && cfg.ReplayReserve < 1) {
		return cfg, errkind.Errorf(errkind.Invalid, "replay reserve is %v of the budget; give a share above 0 and under 1", cfg.ReplayReserve)
	}
	seen := make(map[string]bool, len(cfg.Stages))
	for i, s := range cfg.Stages {
		if s.Name == "" || seen[s.Name] {
			return cfg, errkind.Errorf(errkind.Invalid, "stage %d has name %q; names are unique and not empty", i, s.Name)
		}
		seen[s.Name] = true
		if err := s.check(); err != nil {
			return cfg, err
		}
	}
	return cfg, nil
}

func (s StageSpec) check() error {
	if s.ExpectBytes < 0 || s.ExpectBytes > Unlimited || s.MaxOutputBytes < 0 || s.MaxOutputBytes > Unlimited {
		return errkind.Errorf(errkind.Invalid, "stage %q expects %d bytes a task and %d an output; give 0 or more", s.Name, s.ExpectBytes, s.MaxOutputBytes)
	}
	total := 0
	for _, name := range slices.Sorted(maps.Keys(s.Resources)) {
		n := s.Resources[name]
		if n < 0 || n > maxSlots {
			return errkind.Errorf(errkind.Invalid, "stage %q takes %d slots of %q; give 0 to %d", s.Name, n, name, maxSlots)
		}
		total += n
	}
	if total == 0 {
		return errkind.Errorf(errkind.Invalid, "stage %q takes no slots; a task takes at least one", s.Name)
	}
	return nil
}
