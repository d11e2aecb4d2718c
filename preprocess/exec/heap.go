package exec

// heap is a binary heap whose elements know their place in it, so that any of them can be moved or removed in
// logarithmic time. An element's place is -1 while it is not in the heap.
type heap[T any] struct {
	items []T
	// less must be a total order, or decisions would depend on the history of the heap.
	less func(a, b T) bool
	// place points to where an element keeps its place.
	place func(T) *int32
}

func newHeap[T any](less func(a, b T) bool, place func(T) *int32) *heap[T] {
	return &heap[T]{less: less, place: place}
}

func (h *heap[T]) len() int { return len(h.items) }

// top is the least element; ok is false where there is none.
func (h *heap[T]) top() (least T, ok bool) {
	if len(h.items) == 0 {
		return least, false
	}
	return h.items[0], true
}

func (h *heap[T]) has(x T) bool { return *h.place(x) >= 0 }

func (h *heap[T]) push(x T) {
	h.items = append(h.items, x)
	h.up(len(h.items) - 1)
}

// remove takes x out, if it is in.
func (h *heap[T]) remove(x T) {
	i := int(*h.place(x))
	if i < 0 {
		return
	}
	last := len(h.items) - 1
	moved := h.items[last]
	var zero T
	h.items[last] = zero
	h.items = h.items[:last]
	*h.place(x) = -1
	if i < last {
		h.set(i, moved)
		h.down(h.up(i))
	}
	// A heap that was once large gives its array back, as idle memory must not grow with the busiest moment.
	if c := cap(h.items); c > 1024 && last < c/4 {
		h.items = append(make([]T, 0, c/2), h.items...)
	}
}

// fix restores the order after the key of x has changed.
func (h *heap[T]) fix(x T) {
	if i := *h.place(x); i >= 0 {
		h.down(h.up(int(i)))
	}
}

// put has x in the heap, in its right place, if and only if in is true.
func (h *heap[T]) put(x T, in bool) {
	switch {
	case !in:
		h.remove(x)
	case h.has(x):
		h.fix(x)
	default:
		h.push(x)
	}
}

// rebuild restores the order after any keys have changed.
func (h *heap[T]) rebuild() {
	for i := len(h.items)/2 - 1; i >= 0; i-- {
		h.down(i)
	}
}

func (h *heap[T]) set(i int, x T) {
	h.items[i] = x
	*h.place(x) = int32(i) //nolint:gosec // a heap of 2^31 elements does not fit into memory
}

func (h *heap[T]) up(i int) int {
	x := h.items[i]
	for i > 0 {
		parent := (i - 1) / 2
		if !h.less(x, h.items[parent]) {
			break
		}
		h.set(i, h.items[parent])
		i = parent
	}
	h.set(i, x)
	return i
}

func (h *heap[T]) down(i int) {
	x := h.items[i]
	for {
		child := 2*i + 1
		if child >= len(h.items) {
			break
		}
		if child+1 < len(h.items) && h.less(h.items[child+1], h.items[child]) {
			child++
		}
		if !h.less(h.items[child], x) {
			break
		}
		h.set(i, h.items[child])
		i = child
	}
	h.set(i, x)
}
