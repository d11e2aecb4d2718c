package flight

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/millrace/millrace/feed/session"
	"github.com/millrace/millrace/feed/session/deal"
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/partition"
)

// maxBody bounds the bodies of actions: the recipe is the largest part.
const maxBody = 4 << 20

// protocolVersion of the open action.
const protocolVersion = 1

type openBody struct {
	Version            int          `json:"version"`
	Job                string       `json:"job"`
	Recipe             string       `json:"recipe"`
	Settings           settingsBody `json:"settings"`
	Rank               int          `json:"rank"`
	WorldSize          int          `json:"world_size"`
	Peer               int          `json:"peer,omitempty"`
	Peers              int          `json:"peers,omitempty"`
	Cursor             string       `json:"cursor"`
	ContinueOnMismatch bool         `json:"continue_on_mismatch"`
	Attempt            uint64       `json:"attempt"`
}

type settingsBody struct {
	Seed           uint64  `json:"seed"`
	Shuffle        string  `json:"shuffle"`
	GlobalBatch    int64   `json:"global_batch"`
	Accumulation   int     `json:"accumulation"`
	Tail           string  `json:"tail"`
	OnError        string  `json:"on_error"`
	MaxBad         int64   `json:"max_bad"`
	MaxBadFraction float64 `json:"max_bad_fraction"`
	Prefetch       int     `json:"prefetch"`
	Epochs         uint64  `json:"epochs"`
}

type openedBody struct {
	Session      string       `json:"session"`
	Job          string       `json:"job"`
	Rows         int64        `json:"rows"`
	Steps        int64        `json:"steps"`
	BatchRows    int64        `json:"batch_rows"`
	Samples      int64        `json:"samples"`
	Start        positionBody `json:"start"`
	OrderDigest  string       `json:"order_digest"`
	PixelsDigest string       `json:"pixels_digest"`
	Manifest     string       `json:"manifest"`
	Columns      []columnBody `json:"columns"`
	Ring         int          `json:"ring,omitempty"`
}

// ringVersion is the version of the ring protocol that a sidecar says it speaks.
const ringVersion = 1

type positionBody struct {
	Epoch uint64 `json:"epoch"`
	Step  int64  `json:"step"`
	Row   int64  `json:"row"`
}

type columnBody struct {
	Name  string   `json:"name"`
	DType string   `json:"dtype"`
	Shape []*int64 `json:"shape"`
}

type sessionBody struct {
	Session string `json:"session"`
}

type jobBody struct {
	Job string `json:"job"`
}

type jobQuestion struct {
	Job       string `json:"job"`
	Partition string `json:"partition,omitempty"`
}

// ticketBody is a ticket: of a session, or of the rank of a job.
type ticketBody struct {
	Session string `json:"session,omitempty"`
	Job     string `json:"job,omitempty"`
	Rank    *int   `json:"rank,omitempty"`
	positionBody
	// Sequence is the number of the batch to begin with, counted from that position.
	Sequence uint64 `json:"sequence,omitempty"`
	// BatchBytes is the most that a record batch may have; 0: one for each batch.
	BatchBytes int64 `json:"batch_bytes,omitempty"`
}

// descriptorBody is the command of a descriptor: what a path says, and how large record batches may be.
type descriptorBody struct {
	Job        string `json:"job"`
	Rank       *int   `json:"rank"`
	BatchBytes int64  `json:"batch_bytes"`
}

// decode reads body into v, all of it and nothing that v does not know.
func decode(what string, body []byte, v any) error {
	if len(body) > maxBody {
		return errkind.Errorf(errkind.Exhausted, "%s has %d bytes; at most %d are accepted", what, len(body), maxBody)
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return errkind.With(errkind.Invalid, fmt.Errorf("reading %s: %w", what, err))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errkind.Errorf(errkind.Invalid, "reading %s: something follows its end", what)
	}
	return nil
}

func (b *openBody) request() (session.OpenRequest, error) {
	if b.Version != protocolVersion {
		return session.OpenRequest{}, errkind.Errorf(errkind.Invalid,
			"the client speaks version %d of the session protocol and this sidecar version %d; use releases of the same version", b.Version, protocolVersion)
	}
	s := b.Settings
	return session.OpenRequest{
		Job: b.Job, Recipe: []byte(b.Recipe), Rank: b.Rank, WorldSize: b.WorldSize, Peer: b.Peer, Peers: b.Peers, Cursor: b.Cursor,
		ContinueOnMismatch: b.ContinueOnMismatch, Attempt: b.Attempt,
		Settings: session.Settings{
			Seed: s.Seed, Shuffle: s.Shuffle, GlobalBatch: s.GlobalBatch, Accumulation: s.Accumulation, Tail: s.Tail,
			OnError: s.OnError, Prefetch: s.Prefetch, Epochs: s.Epochs,
			MaxBad: s.MaxBad, MaxBadFraction: s.MaxBadFraction,
		},
	}, nil
}

func openedFrom(o *session.Opened) *openedBody {
	d := &o.Job
	b := &openedBody{
		Session: o.Session, Job: d.Name, Rows: d.Rows, Steps: d.Steps, BatchRows: d.Dealing.BatchRows(), Samples: d.Samples,
		Start:       positionBody{Epoch: o.Start.Epoch, Step: o.Start.Step, Row: o.Start.Row},
		OrderDigest: hex.EncodeToString(d.OrderDigest), PixelsDigest: hex.EncodeToString(d.PixelsDigest), Manifest: hex.EncodeToString(d.Manifest),
		Columns: []columnBody{},
	}
	for _, f := range d.Outputs {
		dtype, shape := describe(f)
		b.Columns = append(b.Columns, columnBody{Name: f.Name, DType: dtype, Shape: shape})
	}
	return b
}

func (p positionBody) position() deal.Position {
	return deal.Position{Epoch: p.Epoch, Step: p.Step, Row: p.Row}
}

// describe is the element type of a column and the shape of its values; a dimension that differs by row is nil.
func describe(f arrow.Field) (dtype string, shape []*int64) {
	shape = []*int64{}
	t := f.Type
	for {
		switch v := t.(type) {
		case *partition.TensorType:
			for _, n := range v.Shape() {
				shape = append(shape, &n)
			}
			return named(f, v.ValueType()), shape
		case arrow.ExtensionType:
			t = v.StorageType()
		case *arrow.FixedSizeListType:
			n := int64(v.Len())
			shape = append(shape, &n)
			t = v.Elem()
		case *arrow.ListType:
			shape = append(shape, nil)
			t = v.Elem()
		case *arrow.LargeListType:
			shape = append(shape, nil)
			t = v.Elem()
		case *arrow.StructType:
			// The storage of arrow.variable_shape_tensor: data and the shape of each.
			data, ok := v.FieldByName("data")
			dims, fixed := shapeField(v)
			if !ok || !fixed {
				return named(f, t), shape
			}
			list, ok := data.Type.(*arrow.ListType)
			if !ok {
				return named(f, t), shape
			}
			return named(f, list.Elem()), append(shape, make([]*int64, dims)...)
		default:
			return named(f, t), shape
		}
	}
}

func shapeField(t *arrow.StructType) (dims int, ok bool) {
	f, ok := t.FieldByName("shape")
	if !ok {
		return 0, false
	}
	list, ok := f.Type.(*arrow.FixedSizeListType)
	if !ok {
		return 0, false
	}
	return int(list.Len()), true
}

// named is the name of an element type: numpy's, "string" or "bytes".
func named(f arrow.Field, t arrow.DataType) string {
	if name, ok := f.Metadata.GetValue(partition.DTypeKey); ok {
		return name
	}
	switch t.ID() {
	case arrow.STRING, arrow.LARGE_STRING:
		return "string"
	case arrow.BINARY, arrow.LARGE_BINARY, arrow.FIXED_SIZE_BINARY:
		return "bytes"
	case arrow.FLOAT16:
		return "float16"
	case arrow.FLOAT32:
		return "float32"
	case arrow.FLOAT64:
		return "float64"
	default:
		return t.Name() // bool, int8 … uint64
	}
}
