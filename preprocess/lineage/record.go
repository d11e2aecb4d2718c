package lineage

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/order"
)

// Record is the lineage of a partition: with the manifest and the plan that it names, enough to make the partition
// again anywhere, byte for byte.
type Record struct {
	// Manifest is the dataset's id, Plan the digest of the operators with their versions and parameters.
	Manifest, Plan order.Digest
	// Seed is the job's shuffle seed; the epoch is part of ID.
	Seed uint64
	// ID is the partition's name.
	ID ID
	// FirstPosition and NumSamples are the run of stream positions of its source partition.
	FirstPosition, NumSamples int64
	// Stage is the index in the plan of the stage that makes the partition.
	Stage int
	// Attempt counts the runs of that task, from 0; reports of an older attempt are ignored.
	Attempt uint32
}

// String is r in one line for people.
func (r Record) String() string {
	return fmt.Sprintf("partition %s of manifest %s: positions %d to %d, seed %d, plan %s, stage %d, attempt %d",
		r.ID, r.Manifest, r.FirstPosition, r.FirstPosition+r.NumSamples-1, r.Seed, r.Plan, r.Stage, r.Attempt)
}

// Validate says what is wrong with r, as an error of kind Invalid.
func (r Record) Validate() error {
	switch {
	case r.ID.Depth > MaxDepth:
		return errkind.Errorf(errkind.Invalid, "lineage of partition %s: a path of %d generations; ids end at %d", r.ID, r.ID.Depth, MaxDepth)
	case r.FirstPosition < 0 || r.NumSamples < 1 || r.FirstPosition > math.MaxInt64-r.NumSamples:
		return errkind.Errorf(errkind.Invalid, "lineage of partition %s: %d samples from position %d is not a run of positions", r.ID, r.NumSamples, r.FirstPosition)
	case r.Stage < 0 || r.Stage > maxStage:
		return errkind.Errorf(errkind.Invalid, "lineage of partition %s: stage %d is not within 0 to %d", r.ID, r.Stage, maxStage)
	}
	for _, k := range r.ID.Path[r.ID.Depth:] {
		if k != 0 {
			return errkind.Errorf(errkind.Invalid, "lineage of partition %s: its id holds numbers past its depth of %d", r.ID, r.ID.Depth)
		}
	}
	return nil
}

const (
	recordVersion = 1
	maxStage      = 1 << 16
)

// AppendBinary appends the binary form of r to dst. Equal records have equal bytes, in every release. A record that
// is not valid is an error.
//
//nolint:gosec // no number that Validate accepts is negative
func (r Record) AppendBinary(dst []byte) ([]byte, error) {
	if err := r.Validate(); err != nil {
		return dst, err
	}
	dst = append(dst, recordVersion)
	dst = append(dst, r.Manifest[:]...)
	dst = append(dst, r.Plan[:]...)
	dst = binary.LittleEndian.AppendUint64(dst, r.Seed)
	dst = binary.AppendUvarint(dst, r.ID.Epoch)
	dst = binary.AppendUvarint(dst, r.ID.Source)
	dst = append(dst, r.ID.Depth)
	for _, k := range r.ID.path() {
		dst = binary.AppendUvarint(dst, uint64(k))
	}
	dst = binary.AppendUvarint(dst, uint64(r.FirstPosition))
	dst = binary.AppendUvarint(dst, uint64(r.NumSamples))
	dst = binary.AppendUvarint(dst, uint64(r.Stage))
	return binary.AppendUvarint(dst, uint64(r.Attempt)), nil
}

// ParseRecord reads what [Record.AppendBinary] writes, and nothing else. Its errors are of kind Invalid.
//
//nolint:gosec // each number is read with a limit that its type holds
func ParseRecord(b []byte) (Record, error) {
	p := parser{rest: b}
	if version := p.byte("version"); p.err == nil && version != recordVersion {
		return Record{}, errkind.Errorf(errkind.Invalid, "lineage record is of version %d, and this release reads version %d", version, recordVersion)
	}
	var r Record
	copy(r.Manifest[:], p.take("manifest", len(r.Manifest)))
	copy(r.Plan[:], p.take("plan", len(r.Plan)))
	if seed := p.take("seed", 8); seed != nil {
		r.Seed = binary.LittleEndian.Uint64(seed)
	}
	p.id(&r.ID)
	r.FirstPosition = int64(p.uvarint("first position", math.MaxInt64))
	r.NumSamples = int64(p.uvarint("number of samples", math.MaxInt64))
	r.Stage = int(p.uvarint("stage", maxStage))
	r.Attempt = uint32(p.uvarint("attempt", math.MaxUint32))
	if p.err == nil && len(p.rest) > 0 {
		p.err = errkind.Errorf(errkind.Invalid, "lineage record has %d bytes after its end", len(p.rest))
	}
	if p.err == nil {
		p.err = r.Validate()
	}
	if p.err != nil {
		return Record{}, p.err
	}
	return r, nil
}
