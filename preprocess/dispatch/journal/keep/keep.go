// Package keep stores the entries of a journal as objects that are created once: in a directory, where each is synced
// before it appears under its name, or in an object store.
package keep

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/sleep"
	"github.com/millrace/millrace/loader/store"
	"github.com/millrace/millrace/preprocess/dispatch/journal"
)

const (
	// snapshotEvery is after how many entries the next one carries the whole state; what lies two snapshots back is
	// removed.
	snapshotEvery = 64
	entries       = "entries/"
	manifests     = "manifests/"
	digits        = 20
)

// Log is a journal in a store, as far as it was read or written here. It is for one goroutine at a time.
type Log struct {
	bucket  store.Bucket
	creator store.Creator
	prefix  string
	uri     string
	writer  string
	logger  *slog.Logger

	read journal.Replayed
	// torn says that the last entry can't be read, so that the next one must not build on it.
	torn bool
	// lowest is the number of the first entry that may still be stored; snapshots are the numbers of the last two.
	lowest    uint64
	snapshots [2]uint64
}

// Open reads the log at a URI, of a directory or of a prefix in an object store; an empty one is fine. The resolver stays
// the caller's.
func Open(ctx context.Context, resolver *store.Resolver, uri string, logger *slog.Logger) (*Log, error) {
	bucket, prefix, err := resolver.Resolve(ctx, uri)
	if err != nil {
		return nil, fmt.Errorf("log: %w", err)
	}
	creator, ok := bucket.(store.Creator)
	if !ok {
		return nil, errkind.Errorf(errkind.Invalid, "log %s: this store can't create objects only where there is none; use a directory or S3", uri)
	}
	var nonce [8]byte
	_, _ = rand.Read(nonce[:]) // never fails
	l := &Log{bucket: bucket, creator: creator, prefix: strings.TrimSuffix(prefix, "/"), uri: uri, writer: hex.EncodeToString(nonce[:]), logger: logger}
	return l, l.Reread(ctx)
}

// State is what the log says. It is the caller's.
func (l *Log) State() *journal.State { return l.read.State.Clone() }

// Number is that of the last entry.
func (l *Log) Number() uint64 { return l.read.Number }

func (l *Log) key(number uint64) string {
	return path.Join(l.prefix, entries+fmt.Sprintf("%0*d", digits, number))
}

// Reread reads the log anew, from its last snapshot on.
func (l *Log) Reread(ctx context.Context) error {
	var numbers []uint64
	folder := path.Join(l.prefix, entries) + "/"
	err := l.bucket.List(ctx, folder, func(a store.Attributes) error {
		name := strings.TrimPrefix(a.Key, folder)
		if n, err := strconv.ParseUint(name, 10, 64); err == nil && len(name) == digits {
			numbers = append(numbers, n)
		}
		return nil
	})
	if err != nil && errkind.Of(err) != errkind.NotFound {
		return fmt.Errorf("reading log %s: %w", l.uri, err)
	}
	l.read, l.torn, l.snapshots = journal.Replayed{}, false, [2]uint64{}
	if len(numbers) == 0 {
		return nil
	}
	l.lowest = numbers[0]
	// Backwards to the last snapshot, then forwards.
	var tail []*journal.Entry
	for i := len(numbers) - 1; ; i-- {
		if i < 0 && l.torn && len(numbers) == 1 {
			break // it was to be the first
		}
		if i < 0 {
			return errkind.Errorf(errkind.BadData, "log %s has no readable snapshot: its entries %d to %d are damaged; move them away to begin anew", l.uri, numbers[0], numbers[len(numbers)-1])
		}
		e, err := l.fetch(ctx, numbers[i])
		last := i == len(numbers)-1
		switch {
		case err == nil:
			tail = append(tail, e)
		case errkind.Of(err) == errkind.BadData && last:
			// Its writer was not told that it is there, or the disk lost it: either way the next entry does not build on it.
			l.logger.Warn("the last entry of the log can't be read and is passed over", "log", l.uri, "entry", numbers[i], "error", err)
			l.torn = true
		default:
			return err
		}
		if err == nil && (e.Snapshot != nil || e.Number == 1) {
			break
		}
	}
	for _, e := range slices.Backward(tail) {
		if err := l.take(e); err != nil {
			return fmt.Errorf("log %s: %w", l.uri, err)
		}
	}
	l.read.Number = numbers[len(numbers)-1]
	return nil
}

func (l *Log) take(e *journal.Entry) error {
	if err := l.read.Take(e); err != nil {
		return err
	}
	if e.Snapshot != nil {
		l.snapshots = [2]uint64{l.snapshots[1], e.Number}
	}
	return nil
}

func (l *Log) fetch(ctx context.Context, number uint64) (*journal.Entry, error) {
	data, err := l.object(ctx, l.key(number))
	if err != nil {
		return nil, err
	}
	e, err := journal.Decode(data)
	if err != nil {
		return nil, fmt.Errorf("log %s: object %s: %w", l.uri, l.key(number), err)
	}
	if e.Number != number {
		return nil, errkind.Errorf(errkind.BadData, "log %s: object %s holds entry %d", l.uri, l.key(number), e.Number)
	}
	return e, nil
}

func (l *Log) object(ctx context.Context, key string) ([]byte, error) {
	a, err := l.bucket.Attributes(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("reading log %s: %w", l.uri, err)
	}
	if a.Size > journal.MaxEntry {
		return nil, errkind.Errorf(errkind.BadData, "log %s: object %s has %d bytes; at most %d are read", l.uri, key, a.Size, journal.MaxEntry)
	}
	data := make([]byte, a.Size)
	if err := l.bucket.ReadRange(ctx, key, 0, data); err != nil {
		return nil, fmt.Errorf("reading log %s: %w", l.uri, err)
	}
	return data, nil
}

// Follow reads what others have written since, and says whether there was anything.
func (l *Log) Follow(ctx context.Context) (bool, error) {
	before := l.read.Number
	for {
		e, err := l.fetch(ctx, l.read.Number+1)
		if errkind.Of(err) == errkind.NotFound {
			return l.read.Number > before, nil
		}
		if err == nil {
			err = l.take(e)
		}
		if err != nil {
			return false, err
		}
	}
}

// Lead begins a term that is above all before. If another dispatcher has written meanwhile the error is of kind Conflict.
func (l *Log) Lead(ctx context.Context, leader string) error {
	return l.append(ctx, l.read.State.Term+1, true, journal.Record{Leads: &journal.Leads{Term: l.read.State.Term + 1, Leader: leader}})
}

// Append writes records, none being a sign of life; when it returns nil they are durable. An error of kind Conflict says
// that another dispatcher leads now. After any other error the same records can be tried again.
func (l *Log) Append(ctx context.Context, records ...journal.Record) error {
	return l.append(ctx, l.read.State.Term, l.read.Since >= snapshotEvery, records...)
}

func (l *Log) append(ctx context.Context, term uint64, snapshot bool, records ...journal.Record) error {
	e := &journal.Entry{Number: l.read.Number + 1, Term: term, Writer: l.writer, Records: records}
	if snapshot || l.torn || e.Number == 1 {
		e.Snapshot = l.State()
	}
	data, err := e.Encode()
	if err != nil {
		return err
	}
	err = l.creator.Create(ctx, l.key(e.Number), data)
	if errkind.Of(err) == errkind.Conflict {
		// An earlier try may have succeeded without our hearing of it.
		if there, readErr := l.fetch(ctx, e.Number); readErr != nil || there.Writer != l.writer {
			return errkind.Errorf(errkind.Conflict, "log %s: entry %d was written by another dispatcher, which leads now", l.uri, e.Number)
		}
		err = nil
	}
	if err != nil {
		return fmt.Errorf("writing log %s: %w", l.uri, err)
	}
	if err := l.take(e); err != nil {
		return err
	}
	l.torn = false
	if e.Snapshot != nil {
		l.prune(ctx)
	}
	return nil
}

// prune removes entries that nobody needs. A failure leaves some to the next time.
func (l *Log) prune(ctx context.Context) {
	if l.lowest == 0 {
		l.lowest = 1
	}
	for ; l.lowest < l.snapshots[0]; l.lowest++ {
		if err := l.creator.Remove(ctx, l.key(l.lowest)); err != nil {
			l.logger.Warn("an old entry of the log can't be removed", "log", l.uri, "entry", l.lowest, "error", err)
			return
		}
	}
}

// PutManifest keeps an encoded manifest under its id.
func (l *Log) PutManifest(ctx context.Context, id string, data []byte) error {
	err := l.creator.Create(ctx, path.Join(l.prefix, manifests+id), data)
	if err != nil && errkind.Of(err) != errkind.Conflict {
		return fmt.Errorf("keeping manifest %s in log %s: %w", id, l.uri, err)
	}
	return nil
}

// Manifest is an encoded manifest that was kept.
func (l *Log) Manifest(ctx context.Context, id string) ([]byte, error) {
	key := path.Join(l.prefix, manifests+id)
	a, err := l.bucket.Attributes(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("log %s: manifest %s: %w", l.uri, id, err)
	}
	data := make([]byte, a.Size)
	if err := l.bucket.ReadRange(ctx, key, 0, data); err != nil {
		return nil, fmt.Errorf("log %s: manifest %s: %w", l.uri, id, err)
	}
	return data, nil
}

// Await returns when nothing has been written to the log for lease, as it is measured here: whoever leads writes at least
// three times in that time. Reading fails only when ctx ends; a store that can't be read now may be readable later.
func (l *Log) Await(ctx context.Context, lease time.Duration) error {
	heard := time.Now()
	for {
		if err := sleep.For(ctx, lease/8); err != nil {
			return fmt.Errorf("watching log %s: %w", l.uri, err)
		}
		advanced, err := l.Follow(ctx)
		if err == nil && !advanced && time.Since(heard) >= lease {
			// What was written long ago may have been removed since: look at all that is there.
			before := l.read.Number
			if err = l.Reread(ctx); err == nil && l.read.Number == before {
				return nil
			}
			advanced = true
		}
		if err != nil {
			l.logger.Warn("the log can't be read and is tried again", "log", l.uri, "error", err)
			advanced = true // who can't read it can't write it either
		}
		if advanced {
			heard = time.Now()
		}
	}
}

// leadTries is how often a dispatcher that does not wait for its turn tries to begin a term, while another one writes.
const leadTries = 20

// Take begins a term: at once, or as a standby once nothing has been written for lease.
func (l *Log) Take(ctx context.Context, leader string, standby bool, lease time.Duration) error {
	for tries := 1; ; tries++ {
		if standby {
			if err := l.Await(ctx, lease); err != nil {
				return err
			}
		}
		err := l.Lead(ctx, leader)
		if errkind.Of(err) != errkind.Conflict || (!standby && tries == leadTries) {
			return err
		}
		if err := l.Reread(ctx); err != nil {
			return err
		}
	}
}
