package service

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/nearest"
)

// EnvPrefix begins the environment variables that set flags: --budget-bytes is MILLRACE_BUDGET_BYTES.
const EnvPrefix = "MILLRACE_"

// ConfigFlag is the flag that names the configuration file.
const ConfigFlag = "config"

// Configure sets the flags that were not given on the command line from the environment, then from the file that
// --config names: flags win over the environment, that over the file. Keys of the file are names of flags; an unknown
// one is an error that names the nearest.
func Configure(flags *pflag.FlagSet, lookup func(string) (string, bool)) error {
	given := map[string]bool{}
	flags.Visit(func(f *pflag.Flag) { given[f.Name] = true })
	var failed error
	flags.VisitAll(func(f *pflag.Flag) {
		name := EnvPrefix + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		value, ok := lookup(name)
		if !ok || given[f.Name] || failed != nil {
			return
		}
		if err := flags.Set(f.Name, value); err != nil {
			failed = errkind.Errorf(errkind.Invalid, "%s=%q: %w", name, value, err)
		}
		given[f.Name] = true
	})
	if failed != nil {
		return failed
	}
	config := flags.Lookup(ConfigFlag)
	if config == nil || config.Value.String() == "" {
		return nil
	}
	return configureFromFile(flags, given, config.Value.String())
}

func configureFromFile(flags *pflag.FlagSet, given map[string]bool, path string) error {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return errkind.Errorf(errkind.NotFound, "configuration %s does not exist", path)
	}
	if err != nil {
		return fmt.Errorf("reading configuration %s: %w", path, err)
	}
	var values map[string]any
	if err := yaml.Unmarshal(text, &values); err != nil {
		return errkind.Errorf(errkind.Invalid, "configuration %s is not a YAML mapping: %w", path, err)
	}
	var known []string
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Name != ConfigFlag {
			known = append(known, f.Name)
		}
	})
	for key, value := range values {
		name := strings.ReplaceAll(key, "_", "-")
		if !slices.Contains(known, name) {
			return errkind.Errorf(errkind.Invalid, "configuration %s: unknown key %q%s", path, key, nearest.Hint(name, known))
		}
		if given[name] {
			continue
		}
		if err := flags.Set(name, fileValue(value)); err != nil {
			return errkind.Errorf(errkind.Invalid, "configuration %s: %s: %w", path, key, err)
		}
	}
	return nil
}

// fileValue writes a YAML value as a flag's text; lists are joined by commas.
func fileValue(v any) string {
	list, ok := v.([]any)
	if !ok {
		return fmt.Sprint(v)
	}
	parts := make([]string, len(list))
	for i, item := range list {
		parts[i] = fmt.Sprint(item)
	}
	return strings.Join(parts, ",")
}
