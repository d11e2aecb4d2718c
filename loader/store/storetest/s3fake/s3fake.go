// Package s3fake is as much of an S3 server as reading and creating need, in memory, for tests that cannot start a real one. It
// believes whatever a request is signed with.
package s3fake

import (
	"bytes"
	"crypto/md5" //nolint:gosec // what S3's etags are
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Server is an http.Handler with one bucket, by path.
type Server struct {
	bucket string

	mu      sync.Mutex
	objects map[string]object
}

type object struct {
	data []byte
	etag string
}

// New is a server of one empty bucket.
func New(bucket string) *Server {
	return &Server{bucket: bucket, objects: map[string]object{}}
}

// Put writes an object.
func (s *Server) Put(key string, data []byte) {
	sum := md5.Sum(data) //nolint:gosec // no secret
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objects[key] = object{data, `"` + hex.EncodeToString(sum[:]) + `"`}
}

// Delete removes an object.
func (s *Server) Delete(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.objects, key)
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch {
	case bucket != s.bucket:
		Error(w, http.StatusNotFound, "NoSuchBucket", "The specified bucket does not exist")
	case r.Method == http.MethodPut && r.Header.Get("If-None-Match") == "*":
		s.create(w, r, key)
	case r.Method == http.MethodDelete:
		s.Delete(key)
		w.WriteHeader(http.StatusNoContent)
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		Error(w, http.StatusMethodNotAllowed, "MethodNotAllowed", "this server only reads, creates and deletes")
	case key == "" && r.URL.Query().Get("list-type") == "2":
		s.list(w, r)
	default:
		s.object(w, r, key)
	}
}

func (s *Server) object(w http.ResponseWriter, r *http.Request, key string) {
	s.mu.Lock()
	o, ok := s.objects[key]
	s.mu.Unlock()
	if !ok {
		Error(w, http.StatusNotFound, "NoSuchKey", "The specified key does not exist.")
		return
	}
	w.Header().Set("Etag", o.etag)
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(o.data))
}

func (s *Server) create(w http.ResponseWriter, r *http.Request, key string) {
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client has gone
	}
	sum := md5.Sum(data) //nolint:gosec // no secret
	s.mu.Lock()
	_, there := s.objects[key]
	if !there {
		s.objects[key] = object{data, `"` + hex.EncodeToString(sum[:]) + `"`}
	}
	s.mu.Unlock()
	if there {
		Error(w, http.StatusPreconditionFailed, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold")
	}
}

// Error writes an error as S3 does.
func Error(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>%s</Code><Message>%s</Message></Error>", code, message) // the client may have left
}

type listing struct {
	XMLName               xml.Name `xml:"ListBucketResult"`
	IsTruncated           bool
	NextContinuationToken string `xml:",omitempty"`
	Contents              []entry
}

type entry struct {
	Key  string
	Size int
	ETag string
}

// pageSize is small, so that tests see more than one page.
const pageSize = 4

func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	prefix, after := q.Get("prefix"), q.Get("continuation-token")
	size := pageSize
	if n, err := strconv.Atoi(q.Get("max-keys")); err == nil {
		size = min(size, n)
	}
	var out listing
	s.mu.Lock()
	var keys []string
	for key := range s.objects {
		if strings.HasPrefix(key, prefix) && key > after {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for _, key := range keys {
		if len(out.Contents) == size {
			out.IsTruncated = true
			out.NextContinuationToken = out.Contents[size-1].Key
			break
		}
		o := s.objects[key]
		out.Contents = append(out.Contents, entry{key, len(o.data), o.etag})
	}
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/xml")
	_ = xml.NewEncoder(w).Encode(out) // the client may have left
}
