package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/nearest"
)

// usageError is a command line that makes no sense.
type usageError struct{ error }

// usage turns a mistake in the arguments into a usage error.
func usage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if err := check(c, args); err != nil {
			return usageError{fmt.Errorf("%w; write %s", err, c.UseLine())}
		}
		return nil
	}
}

// known refuses an argument where a subcommand is expected, and names the nearest one.
func known(what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		var names []string
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() {
				names = append(names, sub.Name())
			}
		}
		return usageError{errkind.Errorf(errkind.Invalid, "unknown %s %q%s", what, args[0], nearest.Hint(args[0], names))}
	}
}

// flagError names the nearest flag where one is unknown.
func flagError(c *cobra.Command, err error) error {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok || len(unknown.GetSpecifiedName()) < 2 {
		return usageError{err}
	}
	var names []string
	c.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return usageError{fmt.Errorf("%w%s", err, nearest.Hint(unknown.GetSpecifiedName(), names))}
}

// oneLine joins the lines that some libraries break their errors into.
func oneLine(err error) string {
	lines := strings.Split(err.Error(), "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.Join(lines, " ")
}
