package feed

// Held is what is held now: buffers of the pool, and bytes that count against the budget.
func (s *Sidecar) Held() (buffers, bytes int64) { return s.pool.Stats().LiveBuffers, s.queue.Used() }
