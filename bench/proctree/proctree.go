// Package proctree measures a process and all that descend from it, from what the kernel says in /proc.
package proctree

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// Process is one row of the process table.
type Process struct {
	// PID is the process's id and Parent that of the process that waits for it.
	PID, Parent int
	// CPU is the time that it and the children it has waited for spent on a core, in user and kernel mode.
	CPU time.Duration
	// Zombie says that it has ended and nobody has waited for it yet.
	Zombie bool
}

// Table is a mounted /proc.
type Table struct{ root string }

// New is the table at root, which is "/proc" but for tests.
func New(root string) Table { return Table{root: root} }

// Tree is the process pid, first, and all its descendants, parents before children. It is an error if pid is gone.
func (t Table) Tree(pid int) ([]Process, error) {
	entries, err := os.ReadDir(t.root)
	if err != nil {
		return nil, fmt.Errorf("listing processes: %w", err)
	}
	var tree []Process
	children := map[int][]Process{}
	for _, e := range entries {
		number, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		p, err := t.process(number)
		switch {
		case gone(err):
			continue
		case err != nil:
			return nil, err
		case p.PID == pid:
			tree = append(tree, p)
		default:
			children[p.Parent] = append(children[p.Parent], p)
		}
	}
	if len(tree) == 0 {
		return nil, fmt.Errorf("process %d: %w", pid, os.ErrProcessDone)
	}
	for i := 0; i < len(tree); i++ {
		parent := tree[i].PID
		tree = append(tree, children[parent]...)
		delete(children, parent) // a table read while processes come and go may hold a circle
	}
	return tree, nil
}

func (t Table) process(pid int) (Process, error) {
	text, err := os.ReadFile(filepath.Join(t.root, strconv.Itoa(pid), "stat"))
	if err != nil {
		return Process{}, fmt.Errorf("reading about process %d: %w", pid, err)
	}
	p, err := ParseStat(text)
	if err != nil {
		return Process{}, fmt.Errorf("process %d: %w", pid, err)
	}
	return p, nil
}

// CPU is the processor time of processes together. Of a whole tree it includes those that have ended and were waited for.
func CPU(processes []Process) time.Duration {
	var sum time.Duration
	for _, p := range processes {
		sum += p.CPU
	}
	return sum
}

// PSS is the proportional set size of processes together, in bytes: a page that n processes share counts 1/n for each.
// Processes that have ended meanwhile count nothing.
func (t Table) PSS(processes []Process) (int64, error) {
	var sum int64
	for _, p := range processes {
		text, err := os.ReadFile(filepath.Join(t.root, strconv.Itoa(p.PID), "smaps_rollup"))
		if gone(err) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("reading the memory of process %d: %w", p.PID, err)
		}
		if len(bytes.TrimSpace(text)) == 0 {
			continue // a kernel thread, or a process that is just ending
		}
		n, err := ParsePSS(text)
		if err != nil {
			return 0, fmt.Errorf("process %d: %w", p.PID, err)
		}
		sum += n
	}
	return sum, nil
}

// PeakResident is the largest resident memory that a process had so far, in bytes.
func (t Table) PeakResident(pid int) (int64, error) {
	text, err := os.ReadFile(filepath.Join(t.root, strconv.Itoa(pid), "status"))
	if err != nil {
		return 0, fmt.Errorf("reading the memory of process %d: %w", pid, err)
	}
	n, err := ParsePeakResident(text)
	if err != nil {
		return 0, fmt.Errorf("process %d: %w", pid, err)
	}
	return n, nil
}

// Busy is the time that all cores together were not idle since the machine started, with the time a hypervisor took away.
func (t Table) Busy() (time.Duration, error) {
	text, err := os.ReadFile(filepath.Join(t.root, "stat"))
	if err != nil {
		return 0, fmt.Errorf("reading the time of all cores: %w", err)
	}
	return ParseBusy(text)
}

// gone says that a process ended between being listed and being read.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH)
}
