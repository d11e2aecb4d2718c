package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/bench/executor"
	"github.com/millrace/millrace/bench/transport"
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/exec"
)

func (a *app) benchExecutorCmd() *cobra.Command {
	var name, policy, ray string
	var frames []int64
	var workers []int
	o := executor.Options{Log: a.err}
	c := &cobra.Command{
		Use:   "executor",
		Short: "Run plans of virtual operators in little memory, beside the least time that their slots allow",
		Long: "Run plans whose stages sleep or spin, in real worker processes that are killed when they pass their memory, beside the\n" +
			"least time in which their slots could do the work. One JSON line each run. Without --scenario all are run.",
		Args: usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			if policy != "" {
				if _, err := exec.ParsePolicy(policy); err != nil {
					return usageError{err}
				}
			}
			if name == executor.NameDispatch {
				return a.benchDispatch(c.Context(), workers)
			}
			if name == transport.NameMove {
				return a.benchMove(c.Context())
			}
			todo := executor.Scenarios()
			if name != "" {
				s, err := executor.Find(name)
				if err != nil {
					return usageError{err}
				}
				todo = []executor.Scenario{s}
			}
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("finding this program to start the roles: %w", err)
			}
			o.Program = self
			for _, s := range todo {
				for _, v := range executor.Variants(s, policy, frames) {
					r, err := executor.Run(c.Context(), s, v, o)
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
			}
			if ray != "" {
				return a.benchRay(c.Context(), ray, frames, o)
			}
			return nil
		},
	}
	c.Flags().StringVar(&name, "scenario", "", "M1 to M8, dispatch or move")
	c.Flags().StringVar(&policy, "policy", "", "streaming, staged or static (default: those of the scenario)")
	c.Flags().Int64SliceVar(&frames, "frames", nil, "budgets of a worker, in frames (default: those of the scenario)")
	c.Flags().StringVar(&ray, "ray", "", "Python interpreter that has ray: run M1 on stock Ray Data too")
	c.Flags().Float64Var(&o.Scale, "scale", 0.1, "scale of time; at 1 stages take the seconds of the paper")
	c.Flags().IntSliceVar(&workers, "workers", []int{10, 100, 1000}, "virtual workers of the scenario dispatch")
	return c
}

func (a *app) benchDispatch(ctx context.Context, workers []int) error {
	for _, n := range workers {
		r, err := executor.Dispatch(ctx, n)
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
}

// benchMove moves partitions of several sizes between processes of this host.
func (a *app) benchMove(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program to start both sides: %w", err)
	}
	o := transport.Options{
		Program: self, Args: []string{"bench", "transport", "side"}, Log: a.err,
		Rounds: 1, WarmUp: time.Second, Window: 2 * time.Second,
	}
	for _, network := range []string{"unix", "tcp"} {
		for _, rows := range transport.MoveRows() {
			r, err := transport.Move(ctx, network, rows, o)
			if err != nil {
				return err
			}
			if err := json.NewEncoder(a.out).Encode(r); err != nil {
				return err
			}
		}
	}
	return nil
}

// benchRay runs M1 on Ray Data, with the budgets that are given or else those of ours.
func (a *app) benchRay(ctx context.Context, python string, frames []int64, o executor.Options) error {
	m1, err := executor.Find("M1")
	if err != nil {
		return err
	}
	if _, err := io.WriteString(a.err, executor.RayCaveats); err != nil {
		return fmt.Errorf("writing what to bear in mind: %w", err)
	}
	for _, v := range executor.Variants(m1, executor.PolicyRay, frames) {
		r, err := executor.RunRay(ctx, m1, v.Frames, python, o)
		if err != nil {
			return err
		}
		if err := json.NewEncoder(a.out).Encode(r); err != nil {
			return err
		}
	}
	return nil
}
