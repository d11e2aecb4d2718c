package main

import (
	"fmt"
	"log/slog"
	"runtime"
	"slices"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/nearest"
	"github.com/millrace/millrace/preprocess/op"
	"github.com/millrace/millrace/preprocess/plan"
	"github.com/millrace/millrace/preprocess/pypool"
)

// pythonOptions are the flags of everything that can run functions of users.
type pythonOptions struct {
	allow, executable string
	processes         int
}

func (o *pythonOptions) register(c *cobra.Command) {
	c.Flags().StringVar(&o.allow, "allow-python", op.AllowNone,
		"functions of users that may run: none, imports (what is installed here), shipped (also what comes with a recipe)")
	c.Flags().IntVar(&o.processes, "python", runtime.NumCPU(), "processes for functions of users, where they are allowed")
	c.Flags().StringVar(&o.executable, "python-executable", "python3", "Python interpreter that has the package millrace and what functions import")
}

// allowed says whether any function of users may run.
func (o *pythonOptions) allowed() bool { return o.allow != op.AllowNone }

// check says what is wrong with the flags.
func (o *pythonOptions) check() error {
	if known := []string{op.AllowNone, op.AllowImports, op.AllowShipped}; !slices.Contains(known, o.allow) {
		return errkind.Errorf(errkind.Invalid, "--allow-python %q%s", o.allow, nearest.Hint(o.allow, known))
	}
	if o.processes < 1 || o.executable == "" {
		return errkind.Errorf(errkind.Invalid, "--python is at least 1 and --python-executable is a program, not %d and %q", o.processes, o.executable)
	}
	return nil
}

// pool is the pool of processes, nil where no function may run. It adds its slots to those of a worker.
func (o *pythonOptions) pool(slots map[string]int, log *slog.Logger) (*pypool.Pool, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if !o.allowed() {
		return nil, nil
	}
	slots[op.PythonResource] = o.processes
	return pypool.New(pypool.Config{Executable: o.executable, Slots: o.processes, Logger: log}), nil
}

// session runs the functions of a plan for a command, until done is called; nil where it has none. One that is not allowed
// is an error.
func (o *pythonOptions) session(p *plan.Plan, log *slog.Logger) (_ op.Python, done func(), err error) {
	functions := p.PythonFunctions()
	if len(functions) == 0 {
		return nil, func() {}, nil
	}
	if err := op.PythonAllowed(o.allow, functions); err != nil {
		return nil, nil, err
	}
	pool, err := o.pool(map[string]int{}, log)
	if err != nil {
		return nil, nil, err
	}
	s := pool.Join(func(int64) {})
	return s, func() { s.Close(); pool.Close() }, nil
}

// args are the flags as a worker process of this one takes them, with its part of the processes.
func (o *pythonOptions) args(processes int) []string {
	return []string{"--allow-python", o.allow, "--python", fmt.Sprint(processes), "--python-executable", o.executable}
}
