package lineage

import (
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/errkind"
)

// drawID is any ID. Small numbers are likely, so that ids that are equal, or related, come up.
func drawID(t *rapid.T, name string) ID {
	id := SourceID(rapid.Uint64().Draw(t, name+": epoch"), rapid.Uint64().Draw(t, name+": source"))
	if rapid.Bool().Draw(t, name+": small") {
		id = SourceID(id.Epoch%2, id.Source%2)
	}
	for _, k := range rapid.SliceOfN(rapid.OneOf(rapid.Uint32Max(2), rapid.Uint32()), 0, MaxDepth).Draw(t, name+": path") {
		id = child(t, id, k)
	}
	return id
}

func child(t *rapid.T, id ID, k uint32) ID {
	c, err := id.Child(k)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// numbers is id as the tuple that it stands for.
func numbers(id ID) []uint64 {
	out := []uint64{id.Epoch, id.Source}
	for _, k := range id.Path[:id.Depth] {
		out = append(out, uint64(k))
	}
	return out
}

func TestIDsCompareAsTuplesOfNumbers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawID(t, "a"), drawID(t, "b")
		want := slices.Compare(numbers(a), numbers(b))
		if got := a.Compare(b); got != want {
			t.Fatalf("%v.Compare(%v) = %d, want %d", a, b, got, want)
		}
		if got := b.Compare(a); got != -want {
			t.Fatalf("%v.Compare(%v) = %d, want %d", b, a, got, -want)
		}
		if (a == b) != (want == 0) {
			t.Fatalf("%v and %v: == says %v, Compare says %d", a, b, a == b, want)
		}
		prefix := len(numbers(a)) < len(numbers(b)) && slices.Equal(numbers(a), numbers(b)[:len(numbers(a))])
		if got := a.IsAncestorOf(b); got != prefix {
			t.Fatalf("%v.IsAncestorOf(%v) = %v", a, b, got)
		}
	})
}

// All that is made from a partition lies between it and its next sibling: the order of ids is the order of the stream.
func TestOutputsStayInTheirParentsPlace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		parent := drawID(t, "parent")
		if parent.Depth == MaxDepth {
			parent, _ = parent.Parent()
		}
		next := parent
		if parent.Depth == 0 {
			next.Source++
		} else {
			next.Path[parent.Depth-1]++
		}
		k := rapid.Uint32().Draw(t, "k")
		c := child(t, parent, k)
		if next.Compare(parent) > 0 && (c.Compare(parent) <= 0 || c.Compare(next) >= 0) { // unless a number wrapped
			t.Fatalf("%v is not between %v and %v", c, parent, next)
		}
		if got, ok := c.Parent(); !ok || got != parent {
			t.Fatalf("the parent of %v is %v, %v, want %v", c, got, ok, parent)
		}
		if !parent.IsAncestorOf(c) || c.IsAncestorOf(parent) || c.IsAncestorOf(c) {
			t.Fatalf("%v is %v's parent, and ancestors say otherwise", parent, c)
		}
		if k < math.MaxUint32 && c.Compare(child(t, parent, k+1)) >= 0 {
			t.Fatalf("output %d of %v does not come before output %d", k, parent, k+1)
		}
	})
}

func TestGenerationsEnd(t *testing.T) {
	id := SourceID(3, 1041)
	if p, ok := id.Parent(); ok {
		t.Errorf("the source partition %v has the parent %v", id, p)
	}
	for k := range uint32(MaxDepth) {
		var err error
		if id, err = id.Child(k); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := id.Child(0); errkind.Of(err) != errkind.Invalid || !strings.Contains(err.Error(), "3/1041/0/1/2/3") {
		t.Errorf("a child of %v: error is %v of kind %v, want one that names it, Invalid", id, err, errkind.Of(err))
	}
}

func TestIDComesBackFromItsText(t *testing.T) {
	if got := (ID{Epoch: 3, Source: 1041, Path: [MaxDepth]uint32{0}, Depth: 1}).String(); got != "3/1041/0" {
		t.Errorf("output 0 of partition 1041 of epoch 3 is written %q", got)
	}
	rapid.Check(t, func(t *rapid.T) {
		id := drawID(t, "id")
		if got, err := ParseID(id.String()); got != id || err != nil {
			t.Fatalf("ParseID(%q) = %v, %v", id, got, err)
		}
	})
	const most = math.MaxUint32
	largest := ID{math.MaxUint64, math.MaxUint64, [MaxDepth]uint32{most, most, most, most, most, most, most, most}, MaxDepth}
	if got, err := ParseID(largest.String()); got != largest || err != nil {
		t.Errorf("ParseID(%q) = %v, %v", largest, got, err)
	}
}

func TestParseIDSaysWhatIsWrong(t *testing.T) {
	for in, want := range map[string]string{
		"":                         "has 1 numbers",
		"3":                        "has 1 numbers",
		"1/2/3/4/5/6/7/8/9/10/11":  "has 11 numbers",
		"3/x":                      `"x" is not a plain number of 64 bits`,
		"3/":                       `"" is not a plain number`,
		"3/-1":                     `"-1" is not a plain number`,
		"3/+1":                     `"+1" is not a plain number`,
		"3/01":                     `"01" is not a plain number`,
		"3/1/4294967296":           "of 32 bits",
		"18446744073709551616/1":   "of 64 bits",
		strings.Repeat("1/", 1000): "has 2000 characters",
	} {
		_, err := ParseID(in)
		if err == nil || !strings.Contains(err.Error(), want) || errkind.Of(err) != errkind.Invalid {
			t.Errorf("%.40q: error is %v of kind %v, want %q, Invalid", in, err, errkind.Of(err), want)
		}
	}
}

// What is read is written the same again: an ID has one text only.
func FuzzParseID(f *testing.F) {
	for _, seed := range []string{"3/1041/0", "0/0", "18446744073709551615/1/4294967295/0/0/1", "3//", "1/2/3/4/5/6/7"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, err := ParseID(s)
		if err != nil {
			if errkind.Of(err) != errkind.Invalid {
				t.Fatalf("%q: %v is of kind %v", s, err, errkind.Of(err))
			}
			return
		}
		if id.String() != s {
			t.Fatalf("%q was read, and is written as %q", s, id)
		}
	})
}
