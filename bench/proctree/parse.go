package proctree

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"
)

// tick is the unit of processor times in /proc: USER_HZ is 100 on every architecture that Go runs on.
const tick = time.Second / 100

// maxTicks keeps sums of a few times within a time.Duration.
const maxTicks = math.MaxInt64 / int64(tick) / 16

// ParseStat reads /proc/PID/stat.
func ParseStat(text []byte) (Process, error) {
	// The name of the program stands in parentheses and may hold anything, also parentheses and line ends.
	open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return Process{}, errors.New("stat has no program name")
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(text[:open])))
	if err != nil {
		return Process{}, fmt.Errorf("stat has no process id: %w", err)
	}
	fields := bytes.Fields(text[end+1:]) // from the third on: state, parent, …
	const state, parent, user, childSystem = 0, 1, 11, 14
	if len(fields) <= childSystem {
		return Process{}, fmt.Errorf("stat ends after %d fields", len(fields)+2)
	}
	p := Process{PID: pid, Zombie: fields[state][0] == 'Z'}
	if p.Parent, err = strconv.Atoi(string(fields[parent])); err != nil {
		return Process{}, fmt.Errorf("stat has no parent: %w", err)
	}
	p.CPU, err = sumTicks(fields[user : childSystem+1])
	if err != nil {
		return Process{}, fmt.Errorf("stat: %w", err)
	}
	return p, nil
}

// ParsePSS reads the proportional set size, in bytes, out of /proc/PID/smaps_rollup.
func ParsePSS(text []byte) (int64, error) { return parseKiB(text, "Pss:") }

// ParsePeakResident reads the largest resident memory that a process had so far, in bytes, out of /proc/PID/status.
func ParsePeakResident(text []byte) (int64, error) { return parseKiB(text, "VmHWM:") }

// parseKiB finds the line that begins with a name and a number of KiB.
func parseKiB(text []byte, name string) (int64, error) {
	for line := range bytes.Lines(text) {
		value, ok := bytes.CutPrefix(line, []byte(name))
		if !ok {
			continue
		}
		fields := bytes.Fields(value)
		if len(fields) != 2 || string(fields[1]) != "kB" {
			return 0, fmt.Errorf("line %s has %q, not a number of kB", name, value)
		}
		kib, err := strconv.ParseInt(string(fields[0]), 10, 64)
		if err != nil || kib < 0 || kib > math.MaxInt64>>20 {
			return 0, fmt.Errorf("line %s has %q, not a number of kB", name, value)
		}
		return kib << 10, nil
	}
	return 0, fmt.Errorf("there is no line %s", name)
}

// ParseBusy reads out of /proc/stat how long all cores together were not idle.
func ParseBusy(text []byte) (time.Duration, error) {
	line, _, _ := bytes.Cut(text, []byte("\n"))
	fields := bytes.Fields(line)
	// cpu user nice system idle iowait irq softirq steal guest …; guest time is part of user time.
	const user, idle, irq, steal = 1, 4, 6, 8
	if len(fields) <= steal || string(fields[0]) != "cpu" {
		return 0, fmt.Errorf("/proc/stat begins with %q, not with the times of all cores", line)
	}
	work, err := sumTicks(fields[user:idle])
	if err != nil {
		return 0, fmt.Errorf("/proc/stat: %w", err)
	}
	more, err := sumTicks(fields[irq : steal+1])
	if err != nil {
		return 0, fmt.Errorf("/proc/stat: %w", err)
	}
	return work + more, nil
}

func sumTicks(fields [][]byte) (time.Duration, error) {
	var sum int64
	for _, f := range fields {
		n, err := strconv.ParseInt(string(f), 10, 64)
		if err != nil || n < 0 || n > maxTicks {
			return 0, fmt.Errorf("%q is not a number of clock ticks", f)
		}
		sum += n
	}
	return time.Duration(sum) * tick, nil
}
