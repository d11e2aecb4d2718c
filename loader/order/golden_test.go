package order

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A cursor means the same rows for ever: any change here needs a new version of the order, and with it of its digest.
func TestOrderNeverChanges(t *testing.T) {
	small := Layout{Shuffle: ShuffleBlock, NumSamples: 61, BlockSamples: 3, WindowBlocks: 2, Lanes: 3, PartitionSamples: 2}
	got := map[string][]int64{"whole": stream(small.Epoch(7, 1))}
	large := Layout{Shuffle: ShuffleBlock, NumSamples: 1281167, BlockSamples: 9, WindowBlocks: 128, Lanes: 4, PartitionSamples: 18}
	got["first"] = large.Epoch(7, 0).Samples(0, nil)
	got["middle"] = large.Epoch(7, 3).Samples(40000, nil)
	got["last"] = large.Epoch(7, 3).Samples(large.Epoch(7, 3).NumPartitions()-1, nil)
	large.Shuffle, large.Lanes = ShuffleFull, 1
	got["full"] = large.Epoch(7, 3).Samples(40000, nil)
	want := map[string][]int64{
		"whole": {
			15, 17, 36, 38, 28, 0, 10, 21, 37, 16, 2, 1,
			9, 23, 44, 52, 29, 27, 11, 22, 53, 51, 33, 26,
			43, 42, 34, 35, 46, 12, 25, 24, 13, 14, 30, 31,
			45, 47, 54, 56, 20, 58, 32, 55, 57, 18, 6, 39,
			4, 3, 41, 8, 59, 19, 48, 5, 40, 7, 50, 49,
			60,
		},
		"first": {
			1024958, 1175343, 161534, 713185, 1266096, 346518, 1279532, 757303, 861368, 645407, 1024963, 205906,
			390373, 263034, 646695, 798110, 861366, 1204394,
		},
		"middle": {
			511784, 467251, 52761, 160529, 1275949, 899495, 912674, 562197, 582649, 582650, 1196198, 1071725,
			444544, 261756, 908839, 1188723, 3408, 227500,
		},
		"last": {
			720096, 433279, 387330, 1150101, 689909, 434606, 180268, 1248959, 689912, 180262, 877352, 181956,
			692971, 689911, 1235151, 434601, 613784,
		},
		"full": {
			686503, 1097742, 267048, 540758, 306075, 680776, 74303, 891435, 644195, 415389, 192370, 1033929,
			28179, 707204, 1077728, 58734, 1005769, 325796,
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the order changed (-want +got):\n%s", diff)
	}
}
