// Package jpegrestart gives JPEGs restart markers, without a change to any pixel: the file is written anew from its
// coefficients. A decoder that looks for the markers need not read the codes of what a crop leaves out.
package jpegrestart

import (
	"errors"
	"slices"

	"github.com/millrace/millrace/internal/errkind"
)

// ErrUnsupported is the error of a build without libjpeg.
var ErrUnsupported = errors.New("this build has no libjpeg to write JPEGs with; build with cgo")

// Options say how files are written.
type Options struct {
	// MaxCost bounds what the markers add to the file, as a part of it. Where even one marker a row of MCUs costs more,
	// there is one a row all the same.
	MaxCost float64
	// MaxScans bounds the scans of a file that is read.
	MaxScans int
}

// DefaultOptions allow one part in a hundred.
func DefaultOptions() Options { return Options{MaxCost: 0.01, MaxScans: 100} }

// Result is a file written anew.
type Result struct {
	Data []byte
	// Interval is the number of MCUs from marker to marker, RowMCUs that of a row.
	Interval, RowMCUs int
	// Plain is the size that the file would have without markers.
	Plain int
}

// source is a JPEG whose coefficients were read.
type source interface {
	// size is in MCUs; after is the number of bytes after the end marker.
	size() (rowMCUs, rows, after int)
	// write gives the file with a marker every interval MCUs, none for 0. The bytes are valid until the next call.
	write(interval int) ([]byte, error)
	close()
}

// Add writes a JPEG with restart markers, as many as MaxCost allows. Bytes after its end marker are kept. A file that
// libjpeg has any doubt about is an error of kind BadData.
func Add(data []byte, o Options) (Result, error) {
	src, err := open(data, o.MaxScans)
	if err != nil {
		return Result{}, err
	}
	defer src.close()
	plain, err := src.write(0)
	if err != nil {
		return Result{}, err
	}
	rowMCUs, rows, after := src.size()
	r := Result{RowMCUs: rowMCUs, Plain: len(plain)}
	file, interval, err := choose(src, r.Plain, rowMCUs, rows, o.MaxCost)
	if err != nil {
		return Result{}, err
	}
	r.Interval = interval
	r.Data = slices.Concat(file, data[len(data)-after:])
	return r, nil
}

// probed is the interval by which the cost of a marker is measured.
const probed = 4

// choose finds the shortest interval whose markers cost no more than maxCost of the plain file, at most a row. A longer
// interval has fewer markers, so that the first that is cheap enough from a good guess on, or from below it, is the one.
func choose(src source, plain, rowMCUs, rows int, maxCost float64) (file []byte, interval int, err error) {
	allowed := int(float64(plain) * maxCost)
	guess := min(probed, rowMCUs)
	if file, err = src.write(guess); err != nil {
		return nil, 0, err
	}
	if markers := (rowMCUs*rows - 1) / guess; markers > 0 && len(file) > plain {
		// Twice as many markers cost about twice as much.
		wanted := float64(len(file)-plain) / float64(max(1, allowed)) * float64(guess)
		guess = max(1, min(rowMCUs, int(wanted)))
	}
	for interval = guess; ; interval++ {
		if file, err = src.write(interval); err != nil {
			return nil, 0, err
		}
		if interval >= rowMCUs || len(file)-plain <= allowed {
			return file, interval, nil
		}
	}
}

func refused(message string) error {
	return errkind.Errorf(errkind.BadData, "JPEG cannot be written anew: %s", message)
}
