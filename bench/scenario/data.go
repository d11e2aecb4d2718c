package scenario

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/loader/store"
)

// Source is what to read for data as the user names it: the training shards of a directory that has some, in order,
// else the data itself. Local paths become absolute.
func Source(data string) ([]string, error) {
	if strings.Contains(data, "://") {
		return []string{data}, nil
	}
	abs, err := filepath.Abs(data)
	if err != nil {
		return nil, errkind.Errorf(errkind.Invalid, "data %s: %w", data, err)
	}
	if _, err := os.Stat(abs); err != nil && !strings.ContainsAny(data, "{}") {
		return nil, errkind.Errorf(errkind.NotFound, "data %s: no such file or directory; make the demo's with make demo-data, or name yours with --data", data)
	}
	shards, err := filepath.Glob(filepath.Join(abs, "train-*.tar"))
	if err != nil {
		return nil, errkind.Errorf(errkind.Invalid, "data %s: %w", data, err)
	}
	if len(shards) == 0 {
		return []string{abs}, nil
	}
	return shards, nil
}

// Data is where the bytes of every image lie, for peers that read the same files.
type Data struct {
	// Files are paths.
	Files []string `json:"files"`
	// Samples are [index into Files, offset, length, label]; the label is 0 where there is none.
	Samples [][4]int64 `json:"samples"`
	// Summary describes the data in a result.
	Summary DataSummary `json:"-"`
}

// DataSummary describes data in a result.
type DataSummary struct {
	Manifest string `json:"manifest"`
	Format   string `json:"format"`
	Shards   int    `json:"shards"`
	Samples  int    `json:"samples"`
	// MeanBytes is the mean size of an image file.
	MeanBytes int64 `json:"mean_bytes"`
}

// readAtOnce is the number of samples that one read brings into memory while places are collected.
const readAtOnce = 256

// Places finds the bytes of every image of d by reading all of it, so that both sides find the files in the page cache.
func Places(ctx context.Context, d *dataset.Dataset) (Data, error) {
	id := d.Manifest().ID()
	data := Data{Summary: DataSummary{
		Manifest: fmt.Sprintf("%x", id), Format: d.Manifest().Format, Shards: len(d.Manifest().Shards), Samples: int(d.NumSamples()),
	}}
	known := map[string]int64{}
	var total int64
	for from := int64(0); from < d.NumSamples(); from += readAtOnce {
		ordinals := make([]int64, 0, readAtOnce)
		for i := from; i < min(from+readAtOnce, d.NumSamples()); i++ {
			ordinals = append(ordinals, i)
		}
		samples, release, err := d.Read(ctx, ordinals, func(field string) bool { return isJPEG(field) || field == "cls" })
		if err != nil {
			return Data{}, err
		}
		for i := range samples {
			bytes, err := data.add(&samples[i], known)
			if err != nil {
				release()
				return Data{}, err
			}
			total += bytes
		}
		release()
	}
	data.Summary.MeanBytes = total / max(1, d.NumSamples())
	return data, nil
}

// add notes the place of one image; it gives the image's size in bytes.
func (d *Data) add(s *dataset.Sample, known map[string]int64) (int64, error) {
	file := s.URI
	if store.Scheme(s.URI) != "file" || compressed(file) {
		return 0, errkind.Errorf(errkind.Invalid, "the peer reads plain local files, and %s is none", s.URI)
	}
	number, ok := known[file]
	if !ok {
		number = int64(len(d.Files))
		known[file] = number
		d.Files = append(d.Files, file)
	}
	label := int64(0)
	if f, ok := s.Field("cls"); ok {
		n, err := strconv.ParseInt(strings.TrimSpace(string(f.Data)), 10, 64)
		if err != nil {
			return 0, errkind.Errorf(errkind.BadData, "sample %s: its label is %q, not a number", s.Key, f.Data)
		}
		label = n
	}
	for _, f := range s.Fields {
		if isJPEG(f.Name) {
			d.Samples = append(d.Samples, [4]int64{number, f.Offset, f.Length, label})
			return f.Length, nil
		}
	}
	return 0, errkind.Errorf(errkind.Invalid, "sample %s has no JPEG; this scenario takes JPEGs alone", s.Key)
}

func isJPEG(field string) bool { return field == "jpg" || field == "jpeg" }

func compressed(file string) bool {
	switch path.Ext(file) {
	case ".gz", ".tgz", ".zst", ".tzst":
		return true
	}
	return false
}

func (d *Data) write(path string) error {
	text, err := json.Marshal(d)
	if err != nil {
		return fmt.Errorf("listing images for the peer: %w", err)
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return fmt.Errorf("listing images for the peer: %w", err)
	}
	return nil
}
