package dataset_test

import (
	"os"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/loader/dataset/datasettest"
	"github.com/millrace/millrace/loader/dataset/formattest"
	"github.com/millrace/millrace/loader/store/memstore"
)

func TestListsOfFilesKeepTheLaws(t *testing.T) {
	const list = "\ufeff# what is to be learned\nb/2 x.JPG\t7\r\n\na.png\t0\na.png\t1\nb/noext\nlast.wav"
	formattest.Check(t, os.Getenv("MILLRACE_S3_SERVERS"), formattest.Set{
		Files: map[string][]byte{
			"sets/train.txt": []byte(list), "sets/b/2 x.JPG": []byte("two"), "sets/a.png": []byte("one"), "sets/b/noext": []byte("bytes"), "sets/last.wav": []byte("w"),
			"sets/other.png": []byte("not in the list"),
		},
		Source: []string{"sets/train.txt"}, Format: dataset.FormatList,
		Rows: []formattest.Row{{"jpg": "two", "cls": "7"}, {"png": "one", "cls": "0"}, {"png": "one", "cls": "1"}, {"bin": "bytes"}, {"wav": "w"}},
	})
}

func TestAListNamesFilesByTheirPathsToo(t *testing.T) {
	dir := t.TempDir()
	elsewhere := datasettest.WriteFile(t, t.TempDir(), "x.jpg", []byte("x"))
	path := datasettest.WriteFile(t, dir, "list.txt", []byte(elsewhere+"\t3\nfile://"+elsewhere+"\n"))
	r := files(t)
	m, err := build(t, r, dataset.BuildOptions{}, path)
	if err != nil {
		t.Fatal(err)
	}
	d := datasettest.Open(t, m, r, nil, dataset.OpenOptions{})
	samples, release, err := d.Read(t.Context(), []int64{0, 1}, nil)
	defer release()
	if err != nil || string(samples[0].Fields[0].Data) != "x" || string(samples[0].Fields[1].Data) != "3" || len(samples[1].Fields) != 1 || samples[0].URI != elsewhere {
		t.Errorf("%v, %+v", err, samples)
	}
	// Another version of a file is another dataset, and what was indexed is no longer there.
	datasettest.WriteFile(t, elsewhere[:len(elsewhere)-len("/x.jpg")], "x.jpg", []byte("longer"))
	if after, err := build(t, r, dataset.BuildOptions{}, path); err != nil || after.ID() == m.ID() {
		t.Errorf("%v; want another id", err)
	}
	_, release, err = d.Read(t.Context(), []int64{0}, nil)
	defer release()
	if errkind.Of(err) != errkind.Conflict || !strings.Contains(err.Error(), elsewhere) {
		t.Errorf("%v, want that the file has changed", err)
	}
}

func TestMistakesInAList(t *testing.T) {
	dir := t.TempDir()
	datasettest.WriteFile(t, dir, "a.png", []byte("a"))
	r := files(t)
	for _, c := range []struct {
		list, want string
		kind       errkind.Kind
	}{
		{"", "the list names no files", errkind.Invalid},
		{"a.png\ngone.png\n", "1 of 2 shards are missing: " + dir + "/gone.png", errkind.NotFound},
		{"a.png\n../a.png\n", `line 2 of ` + dir + `/list.txt: "../a.png" leads out of the list's directory`, errkind.Invalid},
		{"a.png\t1\t2\n", "line 1", errkind.Invalid},
		{"s3://elsewhere/a.png\n", "line 1", errkind.Invalid},
		{strings.Repeat("x", 70_000), "it is no list of files", errkind.BadData},
	} {
		path := datasettest.WriteFile(t, dir, "list.txt", []byte(c.list))
		_, err := build(t, r, dataset.BuildOptions{}, path)
		if errkind.Of(err) != c.kind || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.30q: %v (%v), want %q", c.list, err, errkind.Of(err), c.want)
		}
	}
	path := datasettest.WriteFile(t, dir, "list.txt", []byte("a.png\ngone.png\n"))
	if m, err := build(t, r, dataset.BuildOptions{TolerateMissing: true}, path); err != nil || m.NumSamples() != 1 || len(m.Missing) != 1 {
		t.Errorf("%v; what is missing may be tolerated", err)
	}
	if _, err := build(t, r, dataset.BuildOptions{}, path, dir+"/a.tar"); err == nil || !strings.Contains(err.Error(), "can't be joined") {
		t.Errorf("%v, want that a list stands alone", err)
	}
	if _, err := build(t, r, dataset.BuildOptions{}, dir+"/none.txt"); errkind.Of(err) != errkind.NotFound {
		t.Errorf("%v, want that the list is not there", err)
	}
}

func TestAListKeepsToItsBucket(t *testing.T) {
	one, two := memstore.New(), memstore.New()
	one.Put("list.txt", []byte("mem://two/a.png\n"))
	two.Put("a.png", []byte("a"))
	r := datasettest.Resolver(t, map[string]*memstore.Store{"one": one, "two": two})
	if _, err := build(t, r, dataset.BuildOptions{}, "mem://one/list.txt"); errkind.Of(err) != errkind.Invalid || !strings.Contains(err.Error(), "mem://two/a.png is in another bucket") {
		t.Errorf("%v, want that the other bucket is named", err)
	}
}

func FuzzList(f *testing.F) {
	for _, list := range []string{"a.png\t1\nb/c.jpg\n", "#\n\r\n/a\n", "mem://data/a.png\nmem://data\n", "a.png\t\n\ufeff\n..\n"} {
		f.Add([]byte(list))
	}
	f.Fuzz(func(t *testing.T, list []byte) {
		s := memstore.New()
		s.Put("list.txt", list)
		s.Put("a.png", []byte("a"))
		r := datasettest.Resolver(t, map[string]*memstore.Store{"data": s})
		m, err := build(t, r, dataset.BuildOptions{TolerateMissing: true}, "mem://data/list.txt")
		if kind := errkind.Of(err); err != nil && kind != errkind.BadData && kind != errkind.Invalid && kind != errkind.NotFound {
			t.Errorf("%v of kind %v", err, kind)
		}
		if err != nil {
			return
		}
		d := datasettest.Open(t, m, r, nil, dataset.OpenOptions{})
		if _, release, err := d.Read(t.Context(), []int64{m.NumSamples() - 1}, nil); err != nil {
			t.Errorf("a sample that was indexed can't be read: %v", err)
		} else {
			release()
		}
	})
}
