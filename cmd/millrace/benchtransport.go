package main

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/bench/transport"
	"github.com/millrace/millrace/internal/errkind"
)

func (a *app) benchTransportCmd() *cobra.Command {
	var name string
	var seconds float64
	o := transport.Options{WarmUp: time.Second, Log: a.err}
	c := &cobra.Command{
		Use:   "transport",
		Short: "Move batches between two processes, beside stock Arrow Flight",
		Long: "Move ready batches from one process to another as Millrace does, with stock Arrow Flight of Go on the same batches\n" +
			"beside it, in turns; or hand them over to a Python trainer. CPU seconds of all processes are counted. Without\n" +
			"--scenario all are run, one JSON line each.",
		Args: usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			todo := transport.Scenarios()
			if name != "" {
				s, err := transport.Find(name)
				if err != nil {
					return usageError{err}
				}
				todo = []transport.Scenario{s}
			}
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("finding this program to start both sides: %w", err)
			}
			o.Program, o.Args, o.Window = self, []string{"bench", "transport", "side"}, time.Duration(seconds*float64(time.Second))
			if o.Env, o.Python, err = a.benchPython(o.Python); err != nil {
				return err
			}
			for _, s := range todo {
				r, err := transport.Run(c.Context(), s, o)
				if errkind.Of(err) == errkind.Invalid {
					return usageError{err}
				}
				if err != nil {
					return err
				}
				if err := json.NewEncoder(a.out).Encode(r); err != nil {
					return err
				}
			}
			return nil
		},
	}
	c.Flags().StringVar(&name, "scenario", "", "tcp_38mb, uds_38mb, tcp_1mb, ring, ring_copy or e2e_virtual")
	c.Flags().IntVar(&o.Rounds, "rounds", 3, "turns of each side")
	c.Flags().Float64Var(&seconds, "seconds", 4, "length of a measured window")
	c.Flags().BoolVar(&o.TLS, "tls", false, "encrypt the connections of both sides, but for Unix sockets")
	c.Flags().BoolVar(&o.Flight, "flight", false, "keep to Flight on our side too, without the channel of workers")
	c.Flags().StringVar(&o.Python, "python", "", "interpreter of trainers (default: that of make setup-test, else python3)")
	c.AddCommand(a.benchTransportSideCmd())
	return c
}

func (a *app) benchTransportSideCmd() *cobra.Command {
	var s transport.Side
	c := &cobra.Command{
		Use: "side", Short: "Be one process of bench transport", Hidden: true, Args: usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error { return s.Run(c.Context(), a.in, a.out) },
	}
	f := c.Flags()
	f.StringVar(&s.Kind, "kind", "", "ours or stock")
	f.StringVar(&s.Role, "role", "", "server or client")
	f.StringVar(&s.Network, "network", "", "tcp or unix")
	f.StringVar(&s.Dir, "dir", "", "directory of sockets")
	f.StringVar(&s.Address, "address", "", "address of the server")
	f.IntVar(&s.Rows, "rows", 0, "rows of a batch")
	f.BoolVar(&s.Hash, "hash", false, "hash what arrives")
	f.BoolVar(&s.TLS, "tls", false, "encrypt")
	f.BoolVar(&s.Flight, "flight", false, "no channel")
	return c
}
