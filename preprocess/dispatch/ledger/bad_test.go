package ledger_test

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/loader/order"
	"github.com/millrace/millrace/preprocess/dispatch/ledger"
	"github.com/millrace/millrace/preprocess/lineage"
)

// badAccount reports four source partitions of 4 samples, of which some are bad, in the order given, and is the sealed
// batches of 2 rows and the error.
func badAccount(t *testing.T, cfg ledger.Config, bad map[uint64][]int64, sequence []uint64) (int, int, error) {
	t.Helper()
	cfg.Stages, cfg.GlobalBatch, cfg.Tail = 1, 2, order.TailPad
	cfg.NumPartitions, cfg.Samples, cfg.KeepsRows = 4, func(int64) int64 { return 4 }, true
	l, err := ledger.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	sealed, counted := 0, 0
	var failed error
	take := func(e ledger.Effects, err error) {
		if err != nil {
			t.Fatal(err)
		}
		if failed == nil {
			sealed += len(e.Sealed)
			counted += len(e.Bad)
			failed = e.Failed
		}
	}
	for _, p := range sequence {
		id := lineage.SourceID(0, p)
		out, err := id.Child(0)
		if err != nil {
			t.Fatal(err)
		}
		take(l.Output(ledger.Output{ID: out, Rows: 4, Attempt: 1, Worker: "w"}))
		for range 2 { // the same ones are told again by another attempt
			for _, index := range bad[p] {
				l.Bad(id, []ledger.Bad{{Index: index, Text: "it"}})
			}
		}
		take(l.Done(id, 1))
	}
	return sealed, counted, failed
}

func TestBadSamplesAreCountedInStreamOrder(t *testing.T) {
	bad := map[uint64][]int64{0: {1}, 1: {2, 3}, 2: {0}, 3: {3}}
	for _, c := range []struct {
		run, epoch int64
		sealed, n  int
		text       string
	}{
		{3, 5, 8, 5, ""},
		{2, 5, 6, 4, "3 bad samples in a row, and max_bad allows 2"},
		{3, 4, 8, 5, "5 bad samples in epoch 0, and max_bad_fraction allows 4"},
		{1, 5, 4, 3, "2 bad samples in a row, and max_bad allows 1"},
		{3, 0, 2, 1, "1 bad samples in epoch 0"},
	} {
		for _, reports := range [][]uint64{{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}} {
			sealed, n, err := badAccount(t, ledger.Config{MaxBad: c.run, MaxBadPerEpoch: c.epoch}, bad, reports)
			switch {
			case sealed != c.sealed || n != c.n || (err == nil) != (c.text == ""):
				t.Errorf("max %d and %d, reports %v: %d sealed, %d bad, %v; want %d and %d", c.run, c.epoch, reports, sealed, n, err, c.sealed, c.n)
			case err != nil && !strings.Contains(err.Error(), c.text):
				t.Errorf("max %d and %d: %v", c.run, c.epoch, err)
			}
		}
	}
}
