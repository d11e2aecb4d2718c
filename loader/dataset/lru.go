package dataset

import (
	"container/list"
	"context"
	"fmt"
	"sync"
)

// indexLRU keeps the indexes used last, up to a number of bytes. One that is wanted by several readers is loaded once.
type indexLRU struct {
	limit int64

	mu    sync.Mutex
	used  int64
	order *list.List // of *indexEntry, the one used last in front
	byID  map[int]*list.Element
	loads map[int]*indexLoad
}

type indexEntry struct {
	shard int
	index *shardIndex
}

// indexLoad is a load in progress: done is closed when x and err are set.
type indexLoad struct {
	done chan struct{}
	x    *shardIndex
	err  error
}

func newIndexLRU(limit int64) *indexLRU {
	return &indexLRU{limit: limit, order: list.New(), byID: map[int]*list.Element{}, loads: map[int]*indexLoad{}}
}

// get is the index of shard, from load if it isn't held. A reader whose leader gave up loads by itself.
func (l *indexLRU) get(ctx context.Context, shard int, load func(context.Context) (*shardIndex, error)) (*shardIndex, error) {
	for {
		l.mu.Lock()
		if e, ok := l.byID[shard]; ok {
			l.order.MoveToFront(e)
			x := e.Value.(*indexEntry).index //nolint:errcheck,forcetypeassert // the list holds nothing else
			l.mu.Unlock()
			return x, nil
		}
		p, running := l.loads[shard]
		if !running {
			p = &indexLoad{done: make(chan struct{})}
			l.loads[shard] = p
		}
		l.mu.Unlock()
		if !running {
			p.x, p.err = load(ctx)
			l.finish(shard, p)
			return p.x, p.err
		}
		select {
		case <-p.done:
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for the index of shard %d: %w", shard, ctx.Err())
		}
		if p.err == nil {
			return p.x, nil
		}
		if ctx.Err() != nil {
			return nil, p.err
		}
	}
}

func (l *indexLRU) finish(shard int, p *indexLoad) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.loads, shard)
	close(p.done)
	if p.err != nil {
		return
	}
	l.byID[shard] = l.order.PushFront(&indexEntry{shard: shard, index: p.x})
	l.used += p.x.MemoryBytes()
	for l.used > l.limit && l.order.Len() > 1 {
		last := l.order.Back()
		e := l.order.Remove(last).(*indexEntry) //nolint:errcheck,forcetypeassert // the list holds nothing else
		delete(l.byID, e.shard)
		l.used -= e.index.MemoryBytes()
	}
}

// held is the number of bytes held.
func (l *indexLRU) held() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.used
}
