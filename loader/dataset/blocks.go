package dataset

import (
	"container/list"
	"sync"
	"sync/atomic"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset/format"
)

// blockCache keeps the decoded units used last, up to a number of bytes. A unit that is wanted by several reads
// at once is made by one of them.
type blockCache struct {
	limit int64

	mu    sync.Mutex
	used  int64
	order *list.List // of *blockEntry that are made, the one used last in front
	byKey map[blockKey]*blockEntry
}

// blockKey names a unit, decoded for a choice of columns.
type blockKey struct {
	shard   int
	unit    int64
	columns string
}

// blockEntry is a unit that is made or being made. block is set before done is closed; nil if making it failed.
type blockEntry struct {
	key   blockKey
	done  chan struct{}
	block format.Block
	place *list.Element
}

func newBlockCache(limit int64) *blockCache {
	return &blockCache{limit: limit, order: list.New(), byKey: map[blockKey]*blockEntry{}}
}

// claim is the entry of a unit, and whether the caller must make it and publish the outcome.
func (c *blockCache) claim(k blockKey) (e *blockEntry, claimed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.byKey[k]; e != nil {
		if e.place != nil {
			c.order.MoveToFront(e.place)
		}
		return e, false
	}
	e = &blockEntry{key: k, done: make(chan struct{})}
	c.byKey[k] = e
	return e, true
}

// publish ends a claim. Without a block the next one who asks makes it.
func (c *blockCache) publish(e *blockEntry, b format.Block) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.block = b
	close(e.done)
	if b == nil {
		delete(c.byKey, e.key)
		return
	}
	e.place = c.order.PushFront(e)
	c.used += b.MemoryBytes()
	for c.used > c.limit && c.order.Len() > 0 {
		last, _ := c.order.Remove(c.order.Back()).(*blockEntry)
		delete(c.byKey, last.key)
		c.used -= last.block.MemoryBytes()
	}
}

// held is the number of bytes held.
func (c *blockCache) held() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.used
}

// budget is an amount that several goroutines use up.
type budget struct {
	limit int64
	used  atomic.Int64
}

func newBudget(limit int64) *budget { return &budget{limit: limit} }

func (b *budget) left() int64 { return max(0, b.limit-b.used.Load()) }

func (b *budget) take(n int64) error {
	if b.used.Add(n) > b.limit {
		return errkind.Errorf(errkind.Exhausted, "decoding takes more than the limit of %d bytes for one read; ask for fewer samples at once", b.limit)
	}
	return nil
}
