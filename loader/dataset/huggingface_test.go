package dataset_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/loader/dataset/datasettest"
)

// arrowStream is a shard as Hugging Face's datasets write them, of some numbers.
func arrowStream(t *testing.T, numbers ...int64) []byte {
	t.Helper()
	s := arrow.NewSchema([]arrow.Field{{Name: "n", Type: arrow.PrimitiveTypes.Int64}}, nil)
	b := array.NewInt64Builder(memory.DefaultAllocator)
	b.AppendValues(numbers, nil)
	var buf bytes.Buffer
	w := ipc.NewWriter(&buf, ipc.WithSchema(s))
	if err := w.Write(array.NewRecordBatch(s, []arrow.Array{b.NewArray()}, int64(len(numbers)))); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// A directory that save_to_disk wrote consists of the shards that its state names, whatever else was left there.
func TestASavedDatasetIsWhatItsStateNames(t *testing.T) {
	dir := t.TempDir()
	for name, data := range map[string][]byte{
		"data-00001-of-00002.arrow":    arrowStream(t, 3, 4),
		"data-00000-of-00002.arrow":    arrowStream(t, 1, 2),
		"data-00000-of-00001.arrow":    arrowStream(t, 7), // of an earlier save
		"cache-0123456789abcdef.arrow": arrowStream(t, 8),
		"dataset_info.json":            []byte(`{"features": {}}`),
		"state.json":                   []byte(`{"_data_files": [{"filename": "data-00000-of-00002.arrow"}, {"filename": "data-00001-of-00002.arrow"}], "_fingerprint": "f", "_split": "train"}`),
	} {
		datasettest.WriteFile(t, dir, "train/"+name, data)
	}
	datasettest.WriteFile(t, dir, "dataset_dict.json", []byte(`{"splits": ["train"]}`))
	m, err := build(t, files(t), dataset.BuildOptions{}, dir+"/train")
	if err != nil || m.NumSamples() != 4 {
		t.Fatalf("%v", err)
	}
	if diff := cmp.Diff([]string{"data-00000-of-00002.arrow", "data-00001-of-00002.arrow"}, uris(m)); diff != "" {
		t.Errorf("shards (-want +got):\n%s", diff)
	}
	if _, err := build(t, files(t), dataset.BuildOptions{}, dir); err == nil || !strings.Contains(err.Error(), "its sub-directories do (train)") {
		t.Errorf("%v, want that the split is named", err)
	}
}

func TestStatesOfSavedDatasetsThatCannotBeFollowed(t *testing.T) {
	for _, c := range []struct {
		state, want string
		kind        errkind.Kind
	}{
		{`{"_data_files": [{"filename": "data-2.arrow"}]}`, `names "data-2.arrow", which is not there`, errkind.NotFound},
		{`{"_data_files": [{"filename": "data-1.arrow"}], "_indices_files": [{"filename": "indices.arrow"}]}`, "flatten_indices()", errkind.Invalid},
		{`{"_data_files": 1}`, "state.json can't be read", errkind.BadData},
	} {
		dir := t.TempDir()
		datasettest.WriteFile(t, dir, "data-1.arrow", arrowStream(t, 1))
		datasettest.WriteFile(t, dir, "state.json", []byte(c.state))
		_, err := build(t, files(t), dataset.BuildOptions{}, dir)
		if errkind.Of(err) != c.kind || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.state, err)
		}
	}
}

// Without a state, as in the cache of load_dataset, the shards are those that are there, but for results of map and filter.
func TestResultsInACacheOfHuggingFaceAreNoShards(t *testing.T) {
	dir := t.TempDir()
	datasettest.WriteFile(t, dir, "pics-train-00000-of-00001.arrow", arrowStream(t, 1, 2))
	datasettest.WriteFile(t, dir, "cache-0123456789abcdef.arrow", arrowStream(t, 1, 2, 3))
	datasettest.WriteFile(t, dir, "dataset_info.json", []byte("{}"))
	m, err := build(t, files(t), dataset.BuildOptions{}, dir)
	if err != nil || m.NumSamples() != 2 {
		t.Errorf("%v, or not the 2 samples of the shard", err)
	}
}
