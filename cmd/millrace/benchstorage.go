package main

import (
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/bench/storage"
)

func (a *app) benchStorageCmd() *cobra.Command {
	var name string
	o := storage.Options{Log: a.err}
	c := &cobra.Command{
		Use:   "storage",
		Short: "Read over S3, from a server that it starts, through faults and without",
		Long: "Read data sets over S3 as a worker does, from versitygw on the loopback address, where need be behind a proxy that\n" +
			"fails by rule. Without --scenario all are run, one JSON line each.",
		Args: usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			todo := storage.Scenarios()
			if name != "" {
				s, err := storage.Find(name)
				if err != nil {
					return usageError{err}
				}
				todo = []storage.Scenario{s}
			}
			if o.Server == "" {
				o.Server = builtServer("versitygw")
			}
			for _, s := range todo {
				result, err := storage.Run(c.Context(), s, o)
				if err != nil {
					return err
				}
				if err := json.NewEncoder(a.out).Encode(result); err != nil {
					return err
				}
			}
			return nil
		},
	}
	c.Flags().StringVar(&name, "scenario", "", "one of those that bench/README.md lists")
	c.Flags().StringVar(&o.Server, "server", "", "the program versitygw (default: as .ci/setup-servers builds it)")
	c.Flags().Int64Var(&o.Scale, "scale", 1, "take only one in so many samples, for a quick look")
	return c
}

// builtServer is a server that .ci/setup-servers has built beside this binary; empty if it is not there.
func builtServer(name string) string {
	self, err := os.Executable()
	if err != nil {
		return ""
	}
	path := filepath.Join(filepath.Dir(filepath.Dir(self)), ".cache/servers/bin", name)
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}
