package dataset

import (
	"strings"
	"unicode/utf8"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset/index"
	"github.com/millrace/millrace/loader/dataset/tarscan"
)

// splitName cuts a member's path at the first dot of its last element into the key of its sample and
// the name of the field, as WebDataset does. Not ok are names without an extension, hidden files and
// WebDataset's own "__…__" members.
func splitName(path string) (key, ext string, ok bool) {
	top, _, _ := strings.Cut(path, "/")
	if len(top) >= 4 && strings.HasPrefix(top, "__") && strings.HasSuffix(top, "__") {
		return "", "", false
	}
	base := strings.LastIndexByte(path, '/') + 1
	dot := strings.IndexByte(path[base:], '.')
	if dot <= 0 || base+dot+1 == len(path) {
		return "", "", false
	}
	return path[:base+dot], lower(path[base+dot+1:]), true
}

// lower is strings.ToLower, but leaves names that are no UTF-8 distinct.
func lower(s string) string {
	if !utf8.ValidString(s) {
		return s
	}
	return strings.ToLower(s)
}

// grouper joins consecutive members of one key into samples.
type grouper struct {
	builder index.Builder
	key     string
	fields  []index.Field
	members []string // the full names of fields, for messages
	bad     error    // why the present sample can't be used
	skipped int64    // regular members that belong to no sample
}

// add takes the next member. If it ends a sample that can't be used, that is the error; the next call goes on.
func (g *grouper) add(m tarscan.Member) error {
	if !m.Regular {
		return nil
	}
	key, ext, ok := splitName(m.Name)
	if !ok {
		g.skipped++
		return nil
	}
	var err error
	if key != g.key {
		err = g.flush()
		g.key = key
	}
	for i, f := range g.fields {
		if f.Name == ext && g.bad == nil {
			g.bad = errkind.Errorf(errkind.BadData, "members %q and %q are both field %q of sample %q", g.members[i], m.Name, ext, key)
		}
	}
	if len(g.fields) == maxFields {
		g.bad = errkind.Errorf(errkind.BadData, "sample %q has more than %d fields", key, maxFields)
	}
	if g.bad == nil {
		g.fields = append(g.fields, index.Field{Name: ext, Offset: m.Offset, Length: m.Size})
		g.members = append(g.members, m.Name)
	}
	return err
}

// maxFields bounds the members of one sample: what is more is a broken archive, and would be held in memory.
const maxFields = 10_000

// flush ends the present sample.
func (g *grouper) flush() error {
	err := g.bad
	if err == nil && len(g.fields) > 0 {
		err = g.builder.Add(g.key, g.fields)
	}
	g.drop()
	return err
}

// drop forgets the present sample: the archive was cut in it.
func (g *grouper) drop() {
	g.key, g.bad, g.fields, g.members = "", nil, g.fields[:0], g.members[:0]
}
