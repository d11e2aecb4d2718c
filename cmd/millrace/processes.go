package main

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/preprocess/isolate"
	"github.com/millrace/millrace/preprocess/op"
	"github.com/millrace/millrace/preprocess/plan"
	"github.com/millrace/millrace/preprocess/pypool"
)

// processOptions are the flags of everything that runs operators: what of them runs in other processes.
type processOptions struct {
	python  pythonOptions
	isolate string
}

func (o *processOptions) register(c *cobra.Command) {
	o.python.register(c)
	c.Flags().StringVar(&o.isolate, "isolate", string(isolate.Off), "images that are decoded in processes without files, network and other rights: off (none), format (all but JPEG), all")
}

// check says what is wrong with the flags.
func (o *processOptions) check() error {
	if _, err := isolate.ParseMode(o.isolate); err != nil {
		return fmt.Errorf("--isolate: %w", err)
	}
	return o.python.check()
}

// processes are the pools, nil where their processes are not wanted.
type processes struct {
	python   *pypool.Pool
	isolated *isolate.Pool
}

func (p processes) close() {
	if p.python != nil {
		p.python.Close()
	}
	if p.isolated != nil {
		p.isolated.Close()
	}
}

// pools makes the pools for a worker with these slots, and adds to them what processes have.
func (o *processOptions) pools(slots map[string]int, log *slog.Logger) (p processes, err error) {
	if err := o.check(); err != nil {
		return p, err
	}
	if p.isolated, err = o.decoders(slots["cpu"], log); err != nil {
		return processes{}, err
	}
	if p.python, err = o.python.pool(slots, log); err != nil {
		p.close()
		return processes{}, err
	}
	return p, nil
}

// decoders is the pool of decoders, nil where all is decoded in this process.
func (o *processOptions) decoders(slots int, log *slog.Logger) (*isolate.Pool, error) {
	mode, err := isolate.ParseMode(o.isolate)
	if err != nil || mode == isolate.Off {
		return nil, err
	}
	return isolate.New(isolate.Config{Mode: mode, Slots: slots, Libraries: os.Getenv("LD_LIBRARY_PATH"), Logger: log})
}

// session is what a command takes that runs a plan sample by sample, until done is called; both are nil where the plan, or
// the flags, ask for none.
func (o *processOptions) session(p *plan.Plan, log *slog.Logger) (python op.Python, outside op.Outside, done func(), err error) {
	python, pythonDone, err := o.python.session(p, log)
	if err != nil {
		return nil, nil, nil, err
	}
	pool, err := o.decoders(1, log)
	if err != nil {
		pythonDone()
		return nil, nil, nil, err
	}
	if pool == nil {
		return python, nil, pythonDone, nil
	}
	return python, pool.Join(func(int64) {}), func() { pythonDone(); pool.Close() }, nil
}

// args are the flags as a worker process of this one takes them, with its part of the processes.
func (o *processOptions) args(python int) []string {
	return append(o.python.args(python), "--isolate", o.isolate)
}
