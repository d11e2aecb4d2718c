package dispatch

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/millrace/millrace/loader/order"
	"github.com/millrace/millrace/preprocess/plan"
)

// facts are what decides a job's stream, flattened to one text a setting, so that two jobs can be told apart by name:
// "random_resized_crop.size" → "224".
type facts map[string]string

func factsOf(s *spec) facts {
	f := facts{
		"seed": fmt.Sprint(s.seed), "manifest": fmt.Sprintf("%x", s.manifestID[:6]), "source": strings.Join(s.recipe.Source, ", "),
		"shuffle": s.layout.Shuffle.String(), "partition.samples": fmt.Sprint(s.layout.PartitionSamples),
		"block_samples": fmt.Sprint(s.layout.BlockSamples), "window_blocks": fmt.Sprint(s.layout.WindowBlocks),
		"lanes": fmt.Sprint(s.layout.Lanes), "target_bytes": fmt.Sprint(s.plan.TargetBytes),
	}
	if s.onError != plan.Raise {
		f["on_error"] = s.onError.String()
	}
	for _, field := range s.recipe.Fields {
		f["fields."+field.Name] = strings.Join(field.From, ", ")
	}
	seen := map[string]int{}
	var chain []string
	for _, o := range s.plan.Operators() {
		name := o.Name
		if seen[o.Name]++; seen[o.Name] > 1 {
			name = fmt.Sprintf("%s[%d]", o.Name, seen[o.Name]-1)
		}
		chain = append(chain, o.Name)
		f[name+".version"] = fmt.Sprint(o.Version)
		for key, value := range o.Params {
			text, err := json.Marshal(value)
			if err != nil {
				text = []byte(fmt.Sprint(value))
			}
			f[name+"."+key] = string(text)
		}
	}
	f["operators"] = strings.Join(chain, ", ")
	return f
}

// difference says what changed from f to now, at most three things, in words; "" when nothing did.
func (f facts) difference(now facts) string {
	if f["operators"] != now["operators"] {
		return fmt.Sprintf("operators were %s, are %s", f["operators"], now["operators"])
	}
	names := map[string]bool{}
	for k := range f {
		names[k] = true
	}
	for k := range now {
		names[k] = true
	}
	var changes []string
	for name := range names {
		if f[name] != now[name] {
			changes = append(changes, fmt.Sprintf("%s was %s, is %s", name, orNothing(f[name]), orNothing(now[name])))
		}
	}
	slices.Sort(changes)
	if len(changes) > 3 {
		changes = append(changes[:3], fmt.Sprintf("and %d more", len(changes)-3))
	}
	return strings.Join(changes, "; ")
}

func orNothing(s string) string {
	if s == "" {
		return "not set"
	}
	return s
}

func (d *Dispatcher) factsPath(ordering, pixels order.Digest) string {
	return filepath.Join(d.cfg.PlanDir, fmt.Sprintf("%s-%s.json", ordering, pixels))
}

// keepFacts writes the facts of a job for later messages; a failure to do so costs only clarity, so it is logged.
func (d *Dispatcher) keepFacts(s *spec) {
	if d.cfg.PlanDir == "" {
		return
	}
	path := d.factsPath(s.orderDigest, s.pixelsDigest)
	if _, err := os.Stat(path); err == nil {
		return
	}
	text, err := json.MarshalIndent(s.facts, "", " ")
	if err == nil {
		err = writeWhole(path, text)
	}
	if err != nil {
		d.cfg.Logger.Warn("the plan of a job could not be kept", "error", err)
	}
}

// writeWhole writes a file so that readers see all of it or nothing.
func writeWhole(path string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return fmt.Errorf("making the directory of %s: %w", path, err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".plan-*")
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	_, err = f.Write(text)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

// factsFor reads the facts of an earlier job, nil when they were not kept.
func (d *Dispatcher) factsFor(ordering, pixels order.Digest) facts {
	if d.cfg.PlanDir == "" {
		return nil
	}
	text, err := os.ReadFile(d.factsPath(ordering, pixels))
	if err != nil {
		return nil
	}
	var f facts
	if json.Unmarshal(text, &f) != nil {
		return nil
	}
	return f
}
