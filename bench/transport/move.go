package transport

import (
	"context"
	"fmt"
	"math"
)

// MoveResult is what it takes to move partitions of one size between two processes, with their content hash.
type MoveResult struct {
	Scenario string `json:"scenario"`
	// Network is unix or tcp.
	Network string `json:"network"`
	// MiB is the size of a partition.
	MiB         float64 `json:"mib"`
	MBPerSecond float64 `json:"mb_per_s"`
	// CPUPerGB and CPUMicros are of both processes, for 10^9 bytes and for a partition.
	CPUPerGB  float64 `json:"cpu_s_per_gb"`
	CPUMicros float64 `json:"cpu_us_per_partition"`
}

// NameMove is the scenario that Move runs.
const NameMove = "move"

// Move moves partitions as workers and sidecars do, each hashed once: by its receiver, which stands in for its maker.
func Move(ctx context.Context, network string, rows int, o Options) (*MoveResult, error) {
	o.hash = true
	o.Log = &lockedWriter{to: o.Log}
	var turns []used
	for range o.Rounds {
		u, err := turn(ctx, Scenario{Name: NameMove, Network: network, Rows: rows}, KindOurs, o)
		if err != nil {
			return nil, fmt.Errorf("moving %d rows by %s: %w", rows, network, err)
		}
		turns = append(turns, u)
	}
	bytes := float64(rows * (imageBytes + 8))
	return &MoveResult{
		Scenario: NameMove, Network: network, MiB: math.Round(bytes/(1<<20)*100) / 100,
		MBPerSecond: math.Round(middle(turns, used.speed) * 1000), CPUPerGB: middle(turns, used.cpuPerGB),
		CPUMicros: math.Round(middle(turns, func(u used) float64 { return u.CPU.Seconds() * 1e6 / float64(u.Batches) })),
	}, nil
}

// MoveRows are the rows of partitions of 1 row, 1, 16 and 128 MiB.
func MoveRows() []int { return []int{1, 7, 111, 891} }
