package feedtest_test

import (
	"testing"

	"github.com/millrace/millrace/feed/feedtest"
)

// The partitions of an epoch hold each of its rows once, in order.
func TestPartitionsHoldEveryRow(t *testing.T) {
	d := feedtest.Data{NumRows: 23, PartitionRows: 4, TensorBytes: 3}
	row := int64(0)
	for source := range d.Partitions() {
		rec, err := d.Record(2, source)
		if err != nil {
			t.Fatal(err)
		}
		for i := range int(rec.NumRows()) {
			if got := rec.Column(1).GetOneForMarshal(i); got != any(feedtest.Label(2, row)) {
				t.Errorf("row %d has label %v", row, got)
			}
			row++
		}
		rec.Release()
	}
	if row != d.NumRows {
		t.Errorf("%d rows, want %d", row, d.NumRows)
	}
	s, err := d.Store("job", 2)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if n := int64(s.Stats().Partitions); n != 2*d.Partitions() {
		t.Errorf("the store holds %d partitions", n)
	}
}
