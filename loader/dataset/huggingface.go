package dataset

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/store"
)

// Files that Hugging Face's datasets leave beside their Arrow shards.
const (
	hfState = "state.json"
	hfInfo  = "dataset_info.json"
	hfCache = "cache-" // results of map and filter, which belong to no dataset as it was saved
	// maxState bounds the list of shards.
	maxState = 16 << 20
)

// savedDataset takes of a directory in which Hugging Face's datasets keep one, of the shards seen, those that belong to it, in the
// order in which it names them.
func (d *directory) savedDataset(ctx context.Context, b store.Bucket) error {
	if d.state.Key == "" && !d.info {
		return nil
	}
	d.shards = slices.DeleteFunc(d.shards, func(l listed) bool {
		return strings.HasPrefix(store.Base(l.uri), hfCache) && typeOf(l.uri).name() == "arrow"
	})
	if d.state.Key == "" || len(d.shards) == 0 || typeOf(d.shards[0].uri).name() != "arrow" {
		return nil
	}
	uri := strings.TrimRight(d.uri, "/") + "/" + hfState
	if d.state.Size > maxState {
		return errkind.Errorf(errkind.BadData, "%s has %d bytes, more than a list of shards can have", uri, d.state.Size)
	}
	text := make([]byte, d.state.Size)
	if err := b.ReadRange(ctx, d.state.Key, 0, text); err != nil {
		return fmt.Errorf("reading %s: %w", uri, err)
	}
	var state struct {
		Data    []struct{ Filename string } `json:"_data_files"`
		Indices []struct{ Filename string } `json:"_indices_files"`
	}
	if err := json.Unmarshal(text, &state); err != nil {
		return errkind.Errorf(errkind.BadData, "%s can't be read as the state of a dataset: %w", uri, err)
	}
	if len(state.Indices) > 0 {
		return errkind.Errorf(errkind.Invalid, "%s: the dataset is a selection of its rows by an index, which is not supported; call flatten_indices() and save it anew", uri)
	}
	if len(state.Data) == 0 {
		return nil
	}
	byName := map[string]listed{}
	for _, l := range d.shards {
		byName[store.Base(l.uri)] = l
	}
	d.shards = d.shards[:0:0]
	for _, f := range state.Data {
		l, ok := byName[f.Filename]
		if !ok {
			return errkind.Errorf(errkind.NotFound, "%s names %q, which is not there", uri, f.Filename)
		}
		d.shards = append(d.shards, l)
	}
	return nil
}
