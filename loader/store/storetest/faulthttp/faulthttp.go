// Package faulthttp makes an HTTP server fail by rule, the same way each time, for tests of what depends on it. It sits
// in front of a handler, or of a server elsewhere by way of a reverse proxy.
package faulthttp

import (
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/loader/store/storetest/s3fake"
)

// Rule says which requests go wrong, and how. The first rule that matches a request and is due decides.
type Rule struct {
	// Path is a part of the path; empty: all.
	Path string
	// Method is GET or HEAD; empty: all.
	Method string
	// Every picks each n-th matching request, the first one after n-1 others; 0 and 1 pick all.
	Every int
	// Times ends the rule after it has struck so often; 0: never.
	Times int
	// While, if not nil, is asked whether the rule holds now.
	While func() bool
	// Match, if not nil, must say yes as well.
	Match func(*http.Request) bool
	Fault Fault
}

// Fault is what goes wrong. Delay goes with any of the others, which exclude each other unless they change the answer.
type Fault struct {
	// Delay comes before all else.
	Delay time.Duration
	// Status answers with an error, of S3's Code.
	Status int
	Code   string
	// Location redirects there, with Status.
	Location string
	// CutAfter ends the connection after so many bytes of the body; 0: no cut.
	CutAfter int64
	// Silent says nothing more, after CutAfter bytes of the body or, where that is 0, at once, until the client leaves.
	Silent bool
	// Header replaces headers of the answer.
	Header http.Header
	// Flip turns over a bit in the midst of the body.
	Flip bool
}

// Server is a faulty server.
type Server struct {
	inner http.Handler

	mu      sync.Mutex
	rules   []Rule
	seen    []int
	struck  []int
	counted int
}

// New is a server that answers as inner does, but for the rules.
func New(inner http.Handler, rules ...Rule) *Server {
	s := &Server{inner: inner}
	s.Set(rules...)
	return s
}

// Set replaces the rules.
func (s *Server) Set(rules ...Rule) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules, s.seen, s.struck = rules, make([]int, len(rules)), make([]int, len(rules))
}

// Struck is how often rule i has struck, by which a test proves that its fault happened.
func (s *Server) Struck(i int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.struck[i]
}

// Requests is how many requests have come.
func (s *Server) Requests() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counted
}

func (s *Server) decide(r *http.Request) Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counted++
	var out Fault
	decided := false
	for i, rule := range s.rules {
		if !strings.Contains(r.URL.Path, rule.Path) || rule.Method != "" && rule.Method != r.Method || rule.Match != nil && !rule.Match(r) ||
			rule.While != nil && !rule.While() || rule.Times > 0 && s.struck[i] == rule.Times {
			continue
		}
		s.seen[i]++
		if !decided && (rule.Every < 2 || s.seen[i]%rule.Every == 0) {
			s.struck[i]++
			out, decided = rule.Fault, true
		}
	}
	return out
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f := s.decide(r)
	if f.Delay > 0 {
		timer := time.NewTimer(f.Delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.Context().Done():
			panic(http.ErrAbortHandler)
		}
	}
	switch {
	case f.Location != "":
		w.Header().Set("Location", f.Location)
		w.WriteHeader(f.Status)
	case f.Status != 0:
		maps.Copy(w.Header(), f.Header)
		s3fake.Error(w, f.Status, f.Code, "injected fault")
	case f.Silent && f.CutAfter == 0:
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	default:
		s.inner.ServeHTTP(&answer{ResponseWriter: w, request: r, fault: f}, r)
	}
}

// answer changes what the inner handler answers.
type answer struct {
	http.ResponseWriter

	request *http.Request
	fault   Fault
	begun   bool
	sent    int64
}

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(status int) {
	if !a.begun {
		a.begun = true
		maps.Copy(a.Header(), a.fault.Header)
	}
	a.ResponseWriter.WriteHeader(status)
}

// Write implements io.Writer.
func (a *answer) Write(p []byte) (int, error) {
	if !a.begun {
		a.WriteHeader(http.StatusOK)
	}
	if a.fault.CutAfter > 0 && a.sent+int64(len(p)) >= a.fault.CutAfter {
		n, err := a.ResponseWriter.Write(p[:a.fault.CutAfter-a.sent])
		a.sent += int64(n)
		if err == nil {
			a.Flush()
		}
		if a.fault.Silent {
			<-a.request.Context().Done()
		}
		panic(http.ErrAbortHandler)
	}
	if a.fault.Flip && len(p) > 0 {
		a.fault.Flip = false
		flipped := append([]byte(nil), p...)
		flipped[len(p)/2] ^= 1
		p = flipped
	}
	n, err := a.ResponseWriter.Write(p)
	a.sent += int64(n)
	return n, err
}

// ReadFrom keeps the server from passing the body by other ways than Write.
func (a *answer) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{a}, r)
}

// Flush implements http.Flusher.
func (a *answer) Flush() {
	if f, ok := a.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}
