// Package reshard writes tar shards anew: the same members in the same order, some of them with other bytes.
package reshard

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/millrace/millrace/internal/errkind"
)

// Change is what is done to members.
type Change struct {
	// Wants says by a member's first bytes, few as they may be, whether Make is to see it.
	Wants func(begin []byte) bool
	// Make is given a member's data and returns what to write in their place. Run calls it from many goroutines.
	Make func(name string, data []byte) ([]byte, error)
	// MaxBytes bounds what Make is given; larger members are copied.
	MaxBytes int64
}

// beginBytes is how much of a member Wants gets to see.
const beginBytes = 16

// Copy copies a tar archive with the changes made. What is no archive, or a damaged one, is an error of kind BadData.
func Copy(ctx context.Context, in io.Reader, out io.Writer, change Change) error {
	r, w := tar.NewReader(in), tar.NewWriter(out)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return damaged(err)
		}
		if err := copyMember(r, w, header, change); err != nil {
			return fmt.Errorf("member %s: %w", header.Name, damaged(err))
		}
	}
	if err := w.Close(); err != nil {
		return fmt.Errorf("ending the archive: %w", err)
	}
	return nil
}

func copyMember(r *tar.Reader, w *tar.Writer, header *tar.Header, change Change) error {
	if header.Typeflag == tar.TypeGNUSparse {
		// The reader fills holes; nothing tells where they were.
		header.Typeflag, header.Format = tar.TypeReg, tar.FormatUnknown
	}
	var data io.Reader = r
	if header.Typeflag == tar.TypeReg && header.Size <= change.MaxBytes {
		begin := make([]byte, min(beginBytes, header.Size))
		if _, err := io.ReadFull(r, begin); err != nil {
			return err
		}
		data = io.MultiReader(bytes.NewReader(begin), r)
		if change.Wants(begin) {
			var err error
			if data, err = remake(data, header, change); err != nil {
				return err
			}
		}
	}
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	_, err := io.Copy(w, data)
	return err
}

// remake reads a member and gives what takes its place, whose size it notes in the header.
func remake(data io.Reader, header *tar.Header, change Change) (io.Reader, error) {
	old := make([]byte, header.Size)
	if _, err := io.ReadFull(data, old); err != nil {
		return nil, err
	}
	made, err := change.Make(header.Name, old)
	if err != nil {
		return nil, err
	}
	header.Size = int64(len(made))
	return bytes.NewReader(made), nil
}

// damaged classes the errors that an archive is to blame for.
func damaged(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, tar.ErrFieldTooLong) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return errkind.Errorf(errkind.BadData, "the archive is damaged: %w", err)
	}
	return err
}
