package pypool

import (
	"context"
	"errors"
	"fmt"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/op"
)

// maxCrashes is how often processes may crash in a call without anything coming back: whoever kills them, it is no
// accident then.
const maxCrashes = 3

// Call hands rows to a function and what it makes of them to emit. Rows that a process had not given back when it crashed
// are done again by another, once: the row at which two have crashed is to blame.
func (s *Session) Call(ctx context.Context, c *op.PythonCall, emit func(op.PythonRows) error) error {
	t := &turn{session: s, call: c, next: c.From, emit: emit, blamed: -1}
	for t.next < c.To {
		again, err := t.run(ctx)
		if err != nil {
			return err
		}
		if !again {
			return nil
		}
	}
	return nil
}

// turn is one call at work.
type turn struct {
	session *Session
	call    *op.PythonCall
	emit    func(op.PythonRows) error
	// next is the first row that is not done, and skip how many rows that were made of it have come back already.
	next, skip int
	blamed     int // row of the last crash
	crashes    int // since something came back
}

// run has a process do the rows from next on. again says that it crashed and another one should go on.
func (t *turn) run(ctx context.Context) (again bool, err error) {
	x, err := t.session.acquire(ctx, t.call)
	if crashed := (&errCrashed{}); errors.As(err, &crashed) {
		if t.crashes++; t.crashes < maxCrashes {
			return true, nil
		}
		return false, errkind.Errorf(errkind.Invalid, "python %s: its process ended before the function was loaded: %s", t.call.Function.Call, crashed.how)
	}
	if err != nil {
		return false, err
	}
	held := true
	letGo := func(sound bool) {
		if held {
			held = false
			t.session.release(x, sound)
		}
	}
	defer letGo(false)
	first, skip := t.next, t.skip
	send := func() error { return x.sendRows(t.call, first) }
	for {
		var answer answerFrame
		if err := x.exchange(ctx, t.call.Function.Timeout, send, &answer); err != nil {
			return t.failed(x, first, err)
		}
		rows, err := t.take(x, first, &answer)
		if err != nil {
			return false, err
		}
		if !answer.More {
			letGo(true) // before emit, which may wait for room
		}
		n := min(skip, len(rows.From)) // what came back before the last crash
		skip -= n
		if err := t.emit(rows.Drop(n)); err != nil || !answer.More {
			return false, err
		}
		t.next, t.skip, t.crashes = first+answer.Done, answer.Part, 0
		send = func() error { return writeFrame(x.conn, map[string]string{"type": "next"}) }
	}
}

// take reads an answer.
func (t *turn) take(x *process, first int, answer *answerFrame) (op.PythonRows, error) {
	var none op.PythonRows
	switch answer.Type {
	case "failed":
		from, to := first+answer.First, first+answer.Last
		if answer.First < 0 || answer.Last < answer.First || to >= t.call.To {
			from, to = first, t.call.To-1
		}
		return none, &op.PythonError{First: from, Last: to, Err: errkind.Errorf(errkind.BadData, "%s", withTraceback(answer))}
	case "rows":
	default:
		return none, t.blame(x, first, errMalformed(fmt.Sprintf("of type %.40q", answer.Type)))
	}
	if answer.Done < 0 || answer.Part < 0 || answer.Done >= t.call.To-first && answer.More {
		return none, t.blame(x, first, errMalformed("more rows done than there are"))
	}
	if answer.Kept && x.in != nil { // the function looks at it still: the next rows go elsewhere
		x.session.charge(-x.in.size)
		x.in.close()
		x.in = nil
	}
	if answer.Size != x.out.size() {
		before := x.out.size()
		if err := x.out.remap(answer.Size); err != nil {
			return none, t.blame(x, first, err)
		}
		x.session.charge(x.out.size() - before)
	}
	rows, err := decode(t.call, first, answer, x.out.bytes())
	if err != nil {
		return none, t.blame(x, first, err)
	}
	return rows, nil
}

// blame makes an error of the row that the process is at; of all rows where they are done at once.
func (t *turn) blame(x *process, first int, err error) error {
	if t.call.Function.Mode == op.PythonBatches {
		return &op.PythonError{First: first, Last: t.call.To - 1, Err: err}
	}
	row := t.row(x, first)
	return &op.PythonError{First: row, Last: row, Err: err}
}

// row is the one that the process is at.
func (t *turn) row(x *process, first int) int {
	return first + int(max(0, min(x.out.row(), int64(t.call.To-1-first))))
}

// failed decides what follows from a process that has ended in the middle of a call.
func (t *turn) failed(x *process, first int, err error) (again bool, _ error) {
	crashed := &errCrashed{}
	switch {
	case errors.Is(err, errTimeout):
		f := t.call.Function
		return false, t.blame(x, first, errkind.Errorf(errkind.BadData, "the call did not come back within %s and its process was killed; timeout sets another limit", f.Timeout))
	case !errors.As(err, &crashed):
		return false, err
	}
	row := t.row(x, first)
	t.crashes++
	if row == t.blamed || t.crashes == maxCrashes {
		return false, t.blame(x, first, errkind.Errorf(errkind.BadData, "the Python process crashed %d times: %s", t.crashes, crashed.how))
	}
	t.blamed = row
	t.session.pool.cfg.Logger.Warn("a Python process crashed; its rows are done again",
		"operator", t.call.Function.Call, "key", t.call.Batch.Keys[row], "how", crashed.how)
	return true, nil
}

// sendRows writes the rows of a call, from first on, into memory that the process has, or gets with the frame.
func (x *process) sendRows(c *op.PythonCall, first int) error {
	l := newLayout(c, first)
	if !x.in.fits(l.size) {
		fresh, err := newInMemory(l.size)
		if err != nil {
			return err
		}
		if x.in != nil {
			x.session.charge(-x.in.size)
			x.in.close()
		}
		x.session.charge(fresh.size)
		x.in = fresh
	}
	if err := l.writeTo(x.in.file); err != nil {
		return fmt.Errorf("writing rows to shared memory: %w", err)
	}
	l.frame.Function = x.functions[c.Function]
	l.frame.Size, l.frame.New = x.in.size, !x.in.sent
	if x.in.sent {
		return writeFrame(x.conn, &l.frame)
	}
	frame, err := frameOf(&l.frame)
	if err != nil {
		return err
	}
	x.in.sent = true
	return sendFile(x.conn, frame, x.in.file)
}
