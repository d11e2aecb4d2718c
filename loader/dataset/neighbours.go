package dataset

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/store"
)

// maxNeighbour bounds a file beside shards that is read whole.
const maxNeighbour = 256 << 20

// neighbours are files beside the shards of a source. Each is read and parsed once in a build.
type neighbours struct {
	mu    sync.Mutex
	byURI map[string]*neighbour
}

type neighbour struct {
	once  sync.Once
	value any
	err   error
}

// of is what parse made of the file name in the directory of o. Without neighbours there are none.
func (n *neighbours) of(ctx context.Context, o object, name string, parse func([]byte) (any, error)) (any, error) {
	uri := o.uri[:strings.LastIndexByte(o.uri, '/')+1] + name
	if n == nil {
		return nil, errkind.Errorf(errkind.NotFound, "%s is not looked for", uri)
	}
	n.mu.Lock()
	if n.byURI == nil {
		n.byURI = map[string]*neighbour{}
	}
	f := n.byURI[uri]
	if f == nil {
		f = &neighbour{}
		n.byURI[uri] = f
	}
	n.mu.Unlock()
	f.once.Do(func() {
		var text []byte
		if text, f.err = readWhole(ctx, o.bucket, o.key[:strings.LastIndexByte(o.key, '/')+1]+name, uri); f.err == nil {
			f.value, f.err = parse(text)
		}
	})
	return f.value, f.err
}

func readWhole(ctx context.Context, b store.Bucket, key, uri string) ([]byte, error) {
	a, err := b.Attributes(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("looking up %s: %w", uri, err)
	}
	if a.Size > maxNeighbour {
		return nil, errkind.Errorf(errkind.BadData, "%s has %d bytes, more than %d", uri, a.Size, maxNeighbour)
	}
	text := make([]byte, a.Size)
	if err := b.ReadRange(ctx, key, 0, text); err != nil {
		return nil, fmt.Errorf("reading %s: %w", uri, err)
	}
	return text, nil
}
