package main

import (
	"bytes"
	"sync"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/reshard"
	"github.com/millrace/millrace/preprocess/op/imagekernel"
	"github.com/millrace/millrace/preprocess/op/jpegrestart"
)

// restartCounts is what reshard --jpeg-restarts did. It may be counted from many goroutines.
type restartCounts struct {
	mu sync.Mutex
	// Shards were written. JPEGs were found in them, and Kept of those stayed as they were, with reasons.
	Shards  int            `json:"shards"`
	JPEGs   int            `json:"jpegs"`
	Kept    int            `json:"kept"`
	Reasons map[string]int `json:"reasons,omitempty"`
	// RowOnly have one marker a row of MCUs. Divisible have a row of MCUs that 4 to 8 divide.
	RowOnly   int `json:"row_only"`
	Divisible int `json:"divisible"`
	// BytesBefore, BytesPlain and BytesAfter are the sizes of the changed files, as they were, without and with markers.
	BytesBefore int64 `json:"bytes_before"`
	BytesPlain  int64 `json:"bytes_plain"`
	BytesAfter  int64 `json:"bytes_after"`
}

// change gives JPEGs restart markers, whatever their members are called.
func (r *restartCounts) change() reshard.Change {
	return reshard.Change{
		Wants:    func(begin []byte) bool { return bytes.HasPrefix(begin, []byte("\xFF\xD8\xFF")) },
		Make:     r.restart,
		MaxBytes: int64(imagekernel.DefaultLimits().EncodedBytes),
	}
}

// restart gives one JPEG restart markers. What libjpeg has doubts about stays as it is.
func (r *restartCounts) restart(_ string, data []byte) ([]byte, error) {
	limits := imagekernel.DefaultLimits()
	_, err := imagekernel.Probe(data, limits)
	var made jpegrestart.Result
	if err == nil {
		made, err = jpegrestart.Add(data, jpegrestart.DefaultOptions())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.JPEGs++
	if k := errkind.Of(err); k == errkind.BadData || k == errkind.Exhausted {
		r.Kept++
		r.Reasons[err.Error()]++
		return data, nil
	}
	if err != nil {
		return nil, err
	}
	if made.Interval == made.RowMCUs {
		r.RowOnly++
	}
	for n := 4; n <= 8; n++ {
		if made.RowMCUs%n == 0 {
			r.Divisible++
			break
		}
	}
	r.BytesBefore += int64(len(data))
	r.BytesPlain += int64(made.Plain)
	r.BytesAfter += int64(len(made.Data))
	return made.Data, nil
}
