package exec

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/lineage"
)

// TestScripts plays the scripts in testdata: events in, decisions out. Run with -rewrite to write the output anew.
//
//	new [policy=p] [unread=n] [reserve=x]   a core with the stages of the lines "name resource=slots… [expect=b] [max=b]"
//	apply                                   events, one a line (see script.event), then the decisions
//	waiting, status, next-tick              what waits and why; nodes and stages; when time alone may change that
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		t.Helper()
		s := script{t: t}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			t.Helper()
			s.t = t
			switch d.Cmd {
			case "new":
				return s.create(d)
			case "apply":
				return s.apply(d)
			case "waiting":
				return s.waiting()
			case "status":
				return s.status()
			case "next-tick":
				if at, ok := s.core.NextTick(); ok {
					return at.String()
				}
				return "none"
			}
			d.Fatalf(t, "unknown directive %q", d.Cmd)
			return ""
		})
	})
}

type script struct {
	t    *testing.T
	core *Core
	cfg  Config
}

// line is a line of a script: words, and values given as name=value.
type line struct {
	words  []string
	values map[string]string
}

func parseLine(text string) line {
	l := line{values: map[string]string{}}
	for f := range strings.FieldsSeq(text) {
		if name, value, ok := strings.Cut(f, "="); ok {
			l.values[name] = value
			continue
		}
		l.words = append(l.words, f)
	}
	return l
}

func (s *script) number(l line, name string) int64 {
	text, ok := l.values[name]
	delete(l.values, name)
	if !ok {
		return 0
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		s.t.Fatalf("%s=%s: %v", name, text, err)
	}
	return n
}

// slots are the values of l that were not asked for by name.
func (s *script) slots(l line) map[string]int {
	slots := map[string]int{}
	for name := range l.values {
		slots[name] = int(s.number(l, name))
	}
	return slots
}

func (s *script) id(text string) lineage.ID {
	id, err := lineage.ParseID(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return id
}

func (s *script) ids(text string) []lineage.ID {
	var ids []lineage.ID
	for f := range strings.SplitSeq(text, ",") {
		if f != "" {
			ids = append(ids, s.id(f))
		}
	}
	return ids
}

// task reads task.attempt.
func (s *script) task(text string) (TaskID, uint32) {
	var task TaskID
	var attempt uint32
	if _, err := fmt.Sscanf(text, "%d.%d", &task, &attempt); err != nil {
		s.t.Fatalf("%q is no task.attempt: %v", text, err)
	}
	return task, attempt
}

func (s *script) create(d *datadriven.TestData) string {
	s.cfg = Config{}
	for _, arg := range d.CmdArgs {
		switch arg.Key {
		case "policy":
			s.cfg.Policy = map[string]Policy{"streaming": PolicyStreaming, "staged": PolicyStaged, "static": PolicyStatic}[arg.Vals[0]]
		case "unread":
			arg.Scan(s.t, 0, &s.cfg.MaxUnread)
		case "reserve":
			reserve, err := strconv.ParseFloat(arg.Vals[0], 64)
			if err != nil {
				s.t.Fatal(err)
			}
			s.cfg.ReplayReserve = reserve
		default:
			d.Fatalf(s.t, "unknown argument %q", arg.Key)
		}
	}
	for text := range strings.Lines(d.Input) {
		l := parseLine(text)
		spec := StageSpec{Name: l.words[0], ExpectBytes: s.number(l, "expect"), MaxOutputBytes: s.number(l, "max")}
		spec.Resources = s.slots(l)
		s.cfg.Stages = append(s.cfg.Stages, spec)
	}
	var err error
	if s.core, err = New(s.cfg); err != nil {
		return errorLine(err)
	}
	return "ok"
}

func errorLine(err error) string { return fmt.Sprintf("%v error: %v\n", errkind.Of(err), err) }

// event reads the event of a line.
func (s *script) event(l line) Event {
	arg := func(i int) string {
		if i >= len(l.words) {
			s.t.Fatalf("%v: argument %d is missing", l.words, i)
		}
		return l.words[i]
	}
	switch l.words[0] {
	case "join": // join node resource=slots… budget=bytes
		budget := s.number(l, "budget")
		return NodeJoined{Node: NodeID(arg(1)), BudgetBytes: budget, Slots: s.slots(l)}
	case "drain": // drain node
		return NodeDraining{Node: NodeID(arg(1))}
	case "lose": // lose node
		return NodeLost{Node: NodeID(arg(1))}
	case "offer": // offer id [rows=n] [expect=bytes] [affinity=n] [skip=id,id] [replay]
		return Offered{
			ID: s.id(arg(1)), Rows: s.number(l, "rows"), ExpectBytes: s.number(l, "expect"), Affinity: uint64(s.number(l, "affinity")),
			Skip: s.ids(l.values["skip"]), Replay: slices.Contains(l.words, "replay"),
		}
	case "withdraw": // withdraw id,id
		return Withdrawn{Sources: s.ids(arg(1))}
	case "withdraw-from": // withdraw-from id
		return WithdrawnFrom{Source: s.id(arg(1))}
	case "out": // out task.attempt id bytes=n [rows=n]
		task, attempt := s.task(arg(1))
		return OutputReady{Task: task, Attempt: attempt, ID: s.id(arg(2)), Bytes: s.number(l, "bytes"), Rows: s.number(l, "rows")}
	case "blocked": // blocked task.attempt bytes=n
		task, attempt := s.task(arg(1))
		return OutputBlocked{Task: task, Attempt: attempt, Bytes: s.number(l, "bytes")}
	case "taken": // taken id
		return OutputTaken{ID: s.id(arg(1))}
	case "done": // done task.attempt outputs=n
		task, attempt := s.task(arg(1))
		return TaskDone{Task: task, Attempt: attempt, Outputs: int(s.number(l, "outputs"))}
	case "fail": // fail task.attempt [fatal]
		task, attempt := s.task(arg(1))
		return TaskFailed{Task: task, Attempt: attempt, Fatal: slices.Contains(l.words, "fatal")}
	case "freed": // freed id
		return Freed{ID: s.id(arg(1))}
	case "need": // need id
		return Needed{ID: s.id(arg(1))}
	case "tick": // tick duration
		now, err := time.ParseDuration(arg(1))
		if err != nil {
			s.t.Fatal(err)
		}
		return Tick{Now: now}
	}
	s.t.Fatalf("unknown event %q", l.words[0])
	return nil
}

func (s *script) apply(d *datadriven.TestData) string {
	var b strings.Builder
	for text := range strings.Lines(d.Input) {
		l := parseLine(text)
		if len(l.words) == 0 {
			continue
		}
		if err := s.core.Apply(s.event(l)); err != nil {
			b.WriteString(errorLine(err))
		}
	}
	for _, d := range s.core.Decide(nil) {
		b.WriteString(s.decision(d))
	}
	if err := audit(s.core); err != nil {
		s.t.Fatalf("%s: %v", d.Pos, err)
	}
	if b.Len() == 0 {
		return "nothing"
	}
	return b.String()
}

func (s *script) decision(d Decision) string {
	switch d := d.(type) {
	case Launch:
		text := fmt.Sprintf("launch %d.%d %s %s on %s", d.Task, d.Attempt, s.cfg.Stages[d.Stage].Name, d.Input, d.Node)
		if d.InputNode != "" && d.InputNode != d.Node {
			text += fmt.Sprintf(" from %s", d.InputNode)
		}
		if d.Replay {
			text += " replay"
		}
		if len(d.Skip) > 0 {
			text += fmt.Sprintf(" skip %v", d.Skip)
		}
		return text + "\n"
	case Cancel:
		return fmt.Sprintf("cancel %d.%d on %s\n", d.Task, d.Attempt, d.Node)
	case Pause:
		return fmt.Sprintf("pause %d.%d on %s\n", d.Task, d.Attempt, d.Node)
	case Resume:
		return fmt.Sprintf("resume %d.%d on %s\n", d.Task, d.Attempt, d.Node)
	case FreeInput:
		return fmt.Sprintf("free input %s on %s\n", d.ID, d.Node)
	case Discard:
		return fmt.Sprintf("discard %s of %d.%d on %s\n", d.ID, d.Task, d.Attempt, d.Node)
	}
	return fmt.Sprintf("%T?\n", d)
}

func (s *script) waiting() string {
	var b strings.Builder
	for _, w := range s.core.Waiting() {
		at := "anywhere"
		if w.Node != "" {
			at = "on " + string(w.Node)
		}
		fmt.Fprintf(&b, "%s %s: %d for %s\n", s.cfg.Stages[w.Stage].Name, at, w.Count, w.Reason)
	}
	if b.Len() == 0 {
		return "nothing"
	}
	return b.String()
}

func (s *script) status() string {
	var b strings.Builder
	snap := s.core.Snapshot()
	fmt.Fprintf(&b, "%d source partitions, %d partitions\n", snap.Sources, snap.Partitions)
	for _, n := range snap.Nodes {
		fmt.Fprintf(&b, "node %s: slots %v of %v, charged %d of %d, held %d in %d, tasks %d, paused %d", n.Node, n.SlotsUsed, n.SlotsTotal, n.BytesCharged, n.BudgetBytes, n.BytesHeld, n.Held, n.Tasks, n.Paused)
		if n.Draining {
			b.WriteString(", draining")
		}
		b.WriteString("\n")
	}
	for _, st := range snap.Stages {
		fmt.Fprintf(&b, "stage %s: queued %d, running %d, done %d, held %d in %d, unread %d, mean %d bytes %gs\n", st.Name, st.Queued, st.Running, st.Done, st.Bytes, st.Outputs, st.UnreadBytes, st.MeanBytes, st.MeanSeconds)
	}
	return b.String()
}
