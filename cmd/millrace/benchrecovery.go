package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/bench/recovery"
)

func (a *app) benchRecoveryCmd() *cobra.Command {
	var name string
	o := recovery.Options{Log: a.err}
	c := &cobra.Command{
		Use:   "recovery",
		Short: "Kill, freeze and slow down processes while two ranks read",
		Long: "Kill, freeze and slow down worker processes while two ranks read, and compare what they got, and how long they waited, with an\n" +
			"undisturbed run. One JSON line each case: with a consumer that takes what comes and with one at 80 % of that rate.",
		Args: usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			todo := recovery.Names()
			if name != "" {
				todo = []string{name}
			}
			for _, s := range todo {
				if err := recovery.Check(s, o); err != nil {
					return usageError{err}
				}
			}
			var err error
			if o.Program, err = os.Executable(); err != nil {
				return fmt.Errorf("finding this program to start the roles: %w", err)
			}
			for _, s := range todo {
				if err := recovery.Run(c.Context(), s, o, func(r *recovery.Result) error { return json.NewEncoder(a.out).Encode(r) }); err != nil {
					return err
				}
			}
			return nil
		},
	}
	c.Flags().StringVar(&name, "scenario", "", strings.Join(recovery.Names(), ", ")+" (default: all)")
	c.Flags().Float64Var(&o.Seconds, "seconds", 20, "length of an undisturbed epoch")
	return c
}
