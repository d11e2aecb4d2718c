package pypool

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
)

// maxFrame bounds a frame. What is large goes through shared memory; only a pickle may take some room.
const maxFrame = 64 << 20

// writeFrame writes v as JSON behind its length.
func writeFrame(w io.Writer, v any) error {
	frame, err := frameOf(v)
	if err != nil {
		return err
	}
	_, err = w.Write(frame)
	return err
}

func frameOf(v any) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encoding a frame: %w", err)
	}
	if len(text) > maxFrame {
		return nil, fmt.Errorf("a frame of %d bytes; at most %d are sent", len(text), maxFrame)
	}
	return append(binary.LittleEndian.AppendUint32(nil, uint32(len(text))), text...), nil //nolint:gosec // Checked above.
}

// readFrame reads one frame into v.
func readFrame(r io.Reader, v any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n > maxFrame {
		return fmt.Errorf("a frame of %d bytes; at most %d are read", n, maxFrame)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return err
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("decoding a frame: %w", err)
	}
	return nil
}

// extent is a part of shared memory: where it begins, and its length in bytes.
type extent [2]int64

// openFrame has a process load a function, which has that number from now on.
type openFrame struct {
	Type      string         `json:"type"`
	Function  int            `json:"function"`
	Call      string         `json:"call"`
	Pickle    string         `json:"pickle"`
	Mode      string         `json:"mode"`
	Format    string         `json:"format"`
	KeepsRows bool           `json:"keeps_rows"`
	Args      map[string]any `json:"args"`
	Index     int            `json:"index"`
	Inputs    []fieldFrame   `json:"inputs"`
	Out       []fieldFrame   `json:"out"`
	MaxBytes  int64          `json:"max_bytes"`
}

// fieldFrame is a field of a schema. Made says that the function has to make it.
type fieldFrame struct {
	Name  string  `json:"name"`
	Kind  string  `json:"kind"`
	DType string  `json:"dtype"`
	Shape []int64 `json:"shape"`
	Made  bool    `json:"made"`
}

// callFrame brings rows. Size is that of the memory they are in; New says that it comes with this frame.
type callFrame struct {
	Type     string     `json:"type"`
	Function int        `json:"function"`
	Rows     int        `json:"rows"`
	Size     int64      `json:"size"`
	New      bool       `json:"new"`
	Seed     uint64     `json:"seed"`
	Epoch    uint64     `json:"epoch"`
	Samples  extent     `json:"samples"`
	Keys     []extent   `json:"keys"`
	Columns  [][]extent `json:"columns"`
}

// answerFrame is what a process says: that it is ready, that it failed, or rows.
type answerFrame struct {
	Type string `json:"type"`
	// Of a failure: the row, its cause in one line and the traceback. First and Last are rows of the call.
	First     int    `json:"first"`
	Last      int    `json:"last"`
	Error     string `json:"error"`
	Traceback string `json:"traceback"`
	// Of rows: how many, where the row each one is made from stands, the columns by name, whether more rows follow (after
	// a "next"), the size of the memory, and whether the function has kept views of what it was given.
	Rows    int                 `json:"rows"`
	From    extent              `json:"from"`
	Columns map[string][]extent `json:"columns"`
	More    bool                `json:"more"`
	Size    int64               `json:"size"`
	Kept    bool                `json:"kept"`
	Done    int                 `json:"done"`
	Part    int                 `json:"part"`
}
