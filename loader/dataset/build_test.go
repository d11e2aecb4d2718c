package dataset_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/loader/dataset/datasettest"
	"github.com/millrace/millrace/loader/dataset/tarscan"
	"github.com/millrace/millrace/loader/store"
	"github.com/millrace/millrace/loader/store/faultstore"
	"github.com/millrace/millrace/loader/store/memstore"
)

func files(t *testing.T) *store.Resolver {
	t.Helper()
	return datasettest.Resolver(t, nil)
}

func build(t *testing.T, r *store.Resolver, o dataset.BuildOptions, source ...string) (*dataset.Manifest, error) {
	t.Helper()
	return dataset.Build(t.Context(), r, source, nil, o)
}

func uris(m *dataset.Manifest) []string {
	var out []string
	for _, s := range m.Shards {
		out = append(out, store.Base(s.URI))
	}
	return out
}

func TestSourcesAreWhatTheyLookLike(t *testing.T) {
	dir := t.TempDir()
	s := datasettest.Samples(6)
	for i := range 3 {
		datasettest.WriteTar(t, dir, fmt.Sprintf("shards/t-%02d.tar", i), s[i*2:i*2+2]...)
	}
	datasettest.WriteFile(t, dir, "shards/notes.json", []byte("{}"))
	datasettest.WriteFile(t, dir, "shards/.t-00.tar.tmp", nil)
	datasettest.WriteFile(t, dir, "shards/.hidden.tar", nil)
	all := []string{"t-00.tar", "t-01.tar", "t-02.tar"}
	for _, c := range []struct {
		source []string
		want   []string
	}{
		{[]string{dir + "/shards"}, all},
		{[]string{"file://" + dir + "/shards/"}, all},
		{[]string{dir + "/shards/t-{00..02}.tar"}, all},
		{[]string{dir + "/shards/t-01.tar"}, all[1:2]},
		{[]string{dir + "/shards/t-{02,00}.tar", dir + "/shards/t-01.tar"}, []string{"t-02.tar", "t-00.tar", "t-01.tar"}},
	} {
		m, err := build(t, files(t), dataset.BuildOptions{}, c.source...)
		if err != nil {
			t.Errorf("%v: %v", c.source, err)
			continue
		}
		if diff := cmp.Diff(c.want, uris(m)); diff != "" || m.Format != dataset.FormatWebDataset || m.NumSamples() != int64(2*len(c.want)) {
			t.Errorf("%v: format %s, %d samples, shards (-want +got):\n%s", c.source, m.Format, m.NumSamples(), diff)
		}
	}
}

func imageFolder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, f := range []string{"cat/2.JPEG", "cat/1.jpg", "cat/deep/3.png", "cat-big/4.webp", "ant/5.v2.tiff", "cat/notes.txt", "cat/.6.jpg", ".cache/7.jpg", "labels.csv"} {
		datasettest.WriteFile(t, dir, f, []byte("content of "+f))
	}
	return dir
}

func TestAnImageFolderHasAClassPerDirectory(t *testing.T) {
	dir := imageFolder(t)
	r := files(t)
	m, err := build(t, r, dataset.BuildOptions{}, dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"ant", "cat", "cat-big"}, m.Classes); diff != "" || m.Format != dataset.FormatFolder {
		t.Errorf("format %s, classes in the order of their names (-want +got):\n%s", m.Format, diff)
	}
	d := datasettest.Open(t, m, r, nil, dataset.OpenOptions{})
	var got []string
	for _, s := range read(t, d, []int64{4, 0, 1, 2, 3}, nil) {
		cls, _ := s.Field("cls")
		class, _ := s.Field("class")
		if !bytes.Equal(s.Fields[0].Data, []byte("content of "+s.Key)) || s.URI != dir+"/"+s.Key {
			t.Errorf("%s (%s): %q", s.Key, s.URI, s.Fields[0].Data)
		}
		got = append(got, fmt.Sprintf("%s %s %s=%s", s.Key, s.Fields[0].Name, cls.Data, class.Data))
	}
	want := []string{"cat-big/4.webp webp 2=cat-big", "ant/5.v2.tiff tiff 0=ant", "cat/1.jpg jpg 1=cat", "cat/2.JPEG jpeg 1=cat", "cat/deep/3.png png 1=cat"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("samples (-want +got):\n%s", diff)
	}
	names, err := d.FieldNames(t.Context(), 1)
	if diff := cmp.Diff([]string{"jpg", "jpeg", "png", "cls", "class"}, names); diff != "" || err != nil {
		t.Errorf("FieldNames: %v (-want +got):\n%s", err, diff)
	}
	only := read(t, d, []int64{0}, func(f string) bool { return f == "cls" })
	if len(only[0].Fields) != 1 || string(only[0].Fields[0].Data) != "0" {
		t.Errorf("only cls: %+v", only[0].Fields)
	}
}

func TestAFlatFolderHasNoClasses(t *testing.T) {
	dir := t.TempDir()
	datasettest.WriteFile(t, dir, "b.png", []byte("B"))
	datasettest.WriteFile(t, dir, "a.jpg", []byte("A"))
	datasettest.WriteFile(t, dir, "sub/readme.txt", nil)
	r := files(t)
	m, err := build(t, r, dataset.BuildOptions{}, dir)
	if err != nil || len(m.Classes) != 0 || m.NumSamples() != 2 {
		t.Fatalf("%+v, %v", m, err)
	}
	d := datasettest.Open(t, m, r, nil, dataset.OpenOptions{})
	s := read(t, d, []int64{1, 0}, nil)
	if string(s[0].Fields[0].Data) != "B" || string(s[1].Fields[0].Data) != "A" || len(s[0].Fields) != 1 {
		t.Errorf("samples %+v", s)
	}
}

func TestAFolderThatGrewIsAnotherManifest(t *testing.T) {
	dir := imageFolder(t)
	r, cache := files(t), newCache(t)
	load := func() *dataset.Manifest {
		m, err := dataset.BuildOrLoad(t.Context(), r, []string{dir}, cache, dataset.BuildOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	first := load()
	if load().ID() != first.ID() {
		t.Error("an unchanged folder has another ID")
	}
	datasettest.WriteFile(t, dir, "cat/9.jpg", []byte("new"))
	second := load()
	if second.ID() == first.ID() || second.Shards[0] != first.Shards[0] || second.NumSamples() != first.NumSamples()+1 {
		t.Errorf("after a file was added: %+v, was %+v", second, first)
	}
	d := datasettest.Open(t, first, r, cache, dataset.OpenOptions{})
	read(t, d, upTo(5), nil) // The former manifest still reads: its files are unchanged, and its index is in the cache.
	datasettest.WriteFile(t, dir, "cat/1.jpg", []byte("overwritten"))
	if _, _, err := d.Read(t.Context(), []int64{1}, nil); errkind.Of(err) != errkind.Conflict || !strings.Contains(err.Error(), "1.jpg changed since it was indexed") {
		t.Errorf("Read of a file that changed: %v", err)
	}
}

func TestErrorsSayWhatWasSeen(t *testing.T) {
	dir := t.TempDir()
	w := func(name string) { datasettest.WriteFile(t, dir, name, []byte("x")) }
	w("other/a.csv")
	w("other/b.json")
	w("both/a.jpg")
	datasettest.WriteTar(t, dir, "both/b.tar", datasettest.Samples(1)...)
	w("mixed/a.jpg")
	w("mixed/cat/b.jpg")
	w("file.zip")
	w("nested/train/a.tar")
	w("cats/cat/a.jpg")
	if err := os.Mkdir(dir+"/void", 0o750); err != nil {
		t.Fatal(err)
	}
	datasettest.WriteFile(t, dir, "empty.tar", nil)
	datasettest.WriteTar(t, dir, "none.tar")
	datasettest.WriteTar(t, dir, "plain.tar", datasettest.Sample{Key: "dir.d/__x", Members: []datasettest.Member{{Ext: "", Data: nil}}})
	datasettest.WriteTar(t, dir, "ok.tar", datasettest.Samples(1)...)
	datasettest.WriteTar(t, dir, "dup.tar", datasettest.Sample{Key: "a", Members: []datasettest.Member{{Ext: "jpg"}, {Ext: "JPG"}}})
	for _, c := range []struct {
		source []string
		kind   errkind.Kind
		want   string
	}{
		{nil, errkind.Invalid, "the source is empty"},
		{[]string{dir + "/other"}, errkind.Invalid, "holds neither shards nor images, videos or audio files; seen 2 other files, such as a.csv"},
		{[]string{dir + "/both"}, errkind.Invalid, "holds both shards and images"},
		{[]string{dir + "/mixed"}, errkind.Invalid, "both by itself and in sub-directories such as cat"},
		{[]string{dir + "/file.zip"}, errkind.Invalid, "is a file of 1 bytes, but no shard"},
		{[]string{dir + "/nested"}, errkind.Invalid, "holds no shards itself, but its sub-directories do (train)"},
		{[]string{dir + "/void"}, errkind.NotFound, "nothing is there"},
		{[]string{dir + "/absent"}, errkind.NotFound, "nothing is there"},
		{[]string{dir + "/absent.tar"}, errkind.NotFound, "absent.tar: no such file or object"},
		{[]string{dir + "/empty.tar"}, errkind.BadData, "empty.tar: damaged tar at offset 0: the file is empty"},
		{[]string{dir + "/none.tar"}, errkind.Invalid, "no samples: the 1 shards are empty"},
		{[]string{dir + "/plain.tar"}, errkind.Invalid, "of 1 files none is named key.extension"},
		{[]string{dir + "/ok.tar", dir + "/./ok.tar"}, errkind.Invalid, "twice"},
		{[]string{dir + "/both/b.tar", dir + "/cats"}, errkind.Invalid, "can't be joined"},
		{[]string{dir + "/dup.tar"}, errkind.BadData, `members "a.jpg" and "a.JPG" are both field "jpg" of sample "a"`},
		{[]string{"s3://b/a.tar"}, errkind.Invalid, "unknown scheme"},
		{[]string{dir + "/{00..x}.tar"}, errkind.Invalid, "not a range"},
	} {
		_, err := build(t, files(t), dataset.BuildOptions{}, c.source...)
		if errkind.Of(err) != c.kind || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v: %v (%v), want one line of kind %v with %q", c.source, err, errkind.Of(err), c.kind, c.want)
		}
	}
}

func TestHolesAreListedUpFrontOrTolerated(t *testing.T) {
	for _, n := range []int{30, 300} { // Looked up one by one, and by listing.
		set := datasettest.Synthetic(t, n, 5)
		set.Store.Delete("train-000001.tar")
		set.Store.Delete("train-000004.tar")
		_, err := build(t, set.Resolver, dataset.BuildOptions{}, set.Source...)
		missing, ok := errors.AsType[*dataset.MissingError](err)
		if !ok || errkind.Of(err) != errkind.NotFound {
			t.Fatalf("%d samples: %v, want a MissingError", n, err)
		}
		want := []string{"mem://data/train-000001.tar", "mem://data/train-000004.tar"}
		if diff := cmp.Diff(want, missing.URIs); diff != "" || !strings.Contains(err.Error(), fmt.Sprintf("2 of %d shards are missing: %s, %s", n/5, want[0], want[1])) {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
		m, err := build(t, set.Resolver, dataset.BuildOptions{TolerateMissing: true}, set.Source...)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, m.Missing); diff != "" || m.NumSamples() != int64(n-10) {
			t.Errorf("tolerated: %d samples, missing (-want +got):\n%s", m.NumSamples(), diff)
		}
	}
	_, err := build(t, files(t), dataset.BuildOptions{TolerateMissing: true}, t.TempDir()+"/a-{0..99}.tar")
	if errkind.Of(err) != errkind.NotFound || !strings.Contains(err.Error(), "100 of 100 shards are missing") || !strings.Contains(err.Error(), "and 90 more") {
		t.Errorf("all missing: %v", err)
	}
}

func TestDamageIsAnErrorOrLeavesWhatIsBeforeIt(t *testing.T) {
	samples := datasettest.Samples(10)
	whole := datasettest.Tar(t, samples...)
	cut := whole[:len(whole)*6/10]
	store1 := memstore.New()
	store1.Put("a.tar", cut)
	zipped := compress(t, "gz", whole)
	store1.Put("b.tgz", zipped[:len(zipped)*6/10])
	store1.Put("c.tar.zst", compress(t, "zst", cut))
	flipped := bytes.Clone(zipped)
	flipped[len(flipped)-6] ^= 1 // In the checksum behind the data.
	store1.Put("d.tgz", flipped)
	r := datasettest.Resolver(t, map[string]*memstore.Store{"data": store1})
	for _, name := range []string{"a.tar", "b.tgz", "c.tar.zst", "d.tgz"} {
		cache := newCache(t)
		source := []string{"mem://data/" + name}
		_, err := dataset.BuildOrLoad(t.Context(), r, source, cache, dataset.BuildOptions{})
		if errkind.Of(err) != errkind.BadData || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v, want BadData with the shard's name", name, err)
		}
		if damage, ok := errors.AsType[*tarscan.Error](err); name == "a.tar" && (!ok || damage.Offset != int64(len(cut))) {
			t.Errorf("%s: %v, want damage at %d", name, err, len(cut))
		}
		tolerant, err := dataset.BuildOrLoad(t.Context(), r, source, cache, dataset.BuildOptions{TolerateDamaged: true})
		if err != nil {
			t.Errorf("%s, tolerated: %v", name, err)
			continue
		}
		n := tolerant.NumSamples()
		if len(tolerant.Damaged) != 1 || n < 1 || n > 9 && name != "d.tgz" {
			t.Errorf("%s, tolerated: %d samples, damage %v", name, n, tolerant.Damaged)
		}
		for _, c := range []*dataset.Cache{cache, nil} { // nil: the index is made again from the damaged shard.
			d := datasettest.Open(t, tolerant, r, c, dataset.OpenOptions{})
			datasettest.Check(t, read(t, d, upTo(int(n)), nil), upTo(int(n)), samples)
		}
		if _, err := dataset.BuildOrLoad(t.Context(), r, source, cache, dataset.BuildOptions{}); errkind.Of(err) != errkind.BadData {
			t.Errorf("%s, strict after it was tolerated: %v, want BadData again", name, err)
		}
	}
}

func TestSamplesThatContradictThemselvesAreLeftOutWhenTolerated(t *testing.T) {
	s := memstore.New()
	s.Put("a.tar", datasettest.Tar(t,
		datasettest.Sample{Key: "a", Members: []datasettest.Member{{Ext: "cls", Data: []byte("1")}}},
		datasettest.Sample{Key: "b", Members: []datasettest.Member{{Ext: "cls"}, {Ext: "cls"}, {Ext: "cls"}}},
		datasettest.Sample{Key: "c", Members: []datasettest.Member{{Ext: "cls", Data: []byte("3")}}}))
	r := datasettest.Resolver(t, map[string]*memstore.Store{"data": s})
	m, err := build(t, r, dataset.BuildOptions{TolerateDamaged: true}, "mem://data/a.tar")
	if err != nil || m.NumSamples() != 2 || len(m.Damaged) != 1 {
		t.Fatalf("%+v, %v; want samples a and c, and one damage", m, err)
	}
}

func TestDecompressionIsBounded(t *testing.T) {
	s := memstore.New()
	bomb := datasettest.Tar(t, datasettest.Sample{Key: "a", Members: []datasettest.Member{{Ext: "bin", Data: make([]byte, 70<<20)}}})
	s.Put("a.tar.zst", compress(t, "zst", bomb))
	r := datasettest.Resolver(t, map[string]*memstore.Store{"data": s})
	_, err := build(t, r, dataset.BuildOptions{}, "mem://data/a.tar.zst")
	if errkind.Of(err) != errkind.BadData || !strings.Contains(err.Error(), "over 200 times as many") {
		t.Errorf("a shard of zeros: %v, want BadData", err)
	}
}

func TestOnlyChangedShardsAreScannedAgain(t *testing.T) {
	set := datasettest.Synthetic(t, 50, 10)
	load := func(cache *dataset.Cache) (*dataset.Manifest, int) {
		watch := faultstore.New(set.Store, 1, nil, faultstore.Rule{Op: faultstore.ReadRange}) // Counts, and does no harm.
		m, err := dataset.BuildOrLoad(t.Context(), resolverOf(t, watch), set.Source, cache, dataset.BuildOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return m, watch.Fired(0)
	}
	cache := newCache(t)
	first, n := load(cache)
	if n == 0 {
		t.Fatal("nothing was read to build the first manifest")
	}
	second, n := load(cache)
	if n != 0 || second.ID() != first.ID() {
		t.Errorf("unchanged: %d reads, same ID %v", n, second.ID() == first.ID())
	}
	set.Store.Put("train-000002.tar", datasettest.Tar(t, datasettest.Samples(3)...))
	third, n := load(cache)
	if n == 0 || n > 5 || third.ID() == first.ID() || third.NumSamples() != 43 {
		t.Errorf("one shard changed: %d reads, %d samples", n, third.NumSamples())
	}
	fresh, _ := load(newCache(t))
	if diff := cmp.Diff(third, fresh, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("against a manifest from nothing (-want +got):\n%s", diff)
	}
}

func TestStoresWithoutVersionsNeedConsent(t *testing.T) {
	set := datasettest.Synthetic(t, 10, 10)
	r := resolverOf(t, unpinned{set.Store})
	if _, err := build(t, r, dataset.BuildOptions{}, set.Source...); errkind.Of(err) != errkind.Invalid || !strings.Contains(err.Error(), "--unpinned") {
		t.Errorf("Build: %v, want Invalid with the way out", err)
	}
	cache := newCache(t)
	m, err := dataset.Build(t.Context(), r, set.Source, cache, dataset.BuildOptions{Unpinned: true})
	if err != nil {
		t.Fatal(err)
	}
	d := datasettest.Open(t, m, r, cache, dataset.OpenOptions{})
	datasettest.Check(t, read(t, d, upTo(10), nil), upTo(10), set.Samples)
	if st := d.Stats(); st.IndexRebuilds != 0 {
		t.Error("the index of an unpinned shard was not found in the cache")
	}
}

func TestProgressIsReportedToTheEnd(t *testing.T) {
	set := datasettest.Synthetic(t, 50, 5)
	var reports []dataset.Progress
	m, err := build(t, set.Resolver, dataset.BuildOptions{OnProgress: func(p dataset.Progress) { reports = append(reports, p) }}, set.Source...)
	if err != nil {
		t.Fatal(err)
	}
	var size int64
	for _, s := range m.Shards {
		size += s.Size
	}
	last := reports[len(reports)-1]
	if want := (dataset.Progress{ShardsDone: 10, ShardsTotal: 10, Samples: 50, Bytes: size, Done: true}); last != want || len(reports) < 12 {
		t.Errorf("last of %d reports %+v, want %+v", len(reports), last, want)
	}
	for i := 1; i < len(reports); i++ {
		if reports[i].ShardsDone < reports[i-1].ShardsDone || reports[i].Done != (i == len(reports)-1) {
			t.Errorf("report %d: %+v after %+v", i, reports[i], reports[i-1])
		}
	}
}

func TestListingAFolderShowsProgress(t *testing.T) {
	s := memstore.New()
	for i := range 25_000 {
		s.Put(fmt.Sprintf("f/%c/%05d.jpg", 'a'+i%2, i), []byte("x"))
	}
	r := datasettest.Resolver(t, map[string]*memstore.Store{"data": s})
	var reports []dataset.Progress
	if _, err := build(t, r, dataset.BuildOptions{OnProgress: func(p dataset.Progress) { reports = append(reports, p) }}, "mem://data/f"); err != nil {
		t.Fatal(err)
	}
	want := []dataset.Progress{
		{Samples: 10_000, Bytes: 10_000},
		{ShardsDone: 1, Samples: 12_500, Bytes: 12_500},
		{ShardsDone: 1, Samples: 22_500, Bytes: 22_500},
		{ShardsDone: 2, Samples: 25_000, Bytes: 25_000},
		{ShardsDone: 2, ShardsTotal: 2, Samples: 25_000, Bytes: 25_000, Done: true},
	}
	if diff := cmp.Diff(want, reports); diff != "" {
		t.Errorf("reports (-want +got):\n%s", diff)
	}
}

func TestFailuresOfTheStoreAreNotDamage(t *testing.T) {
	set := datasettest.Synthetic(t, 50, 10)
	for _, op := range []faultstore.Op{faultstore.ReadRange, faultstore.Attributes} {
		b := faultstore.New(set.Store, 3, nil, faultstore.Rule{Op: op, Key: "train-000003.tar", Effect: faultstore.Effect{Err: errkind.Unavailable}})
		_, err := build(t, resolverOf(t, b), dataset.BuildOptions{TolerateDamaged: true, TolerateMissing: true}, set.Source...)
		if errkind.Of(err) != errkind.Unavailable || !strings.Contains(err.Error(), "train-000003.tar") {
			t.Errorf("op %d: %v, want Unavailable with the shard's name", op, err)
		}
	}
}

// A shard of 100,000 samples is scanned in memory of the order of its index.
func TestScanningHoldsLittleMoreThanTheIndex(t *testing.T) {
	const n = 100_000
	var archive bytes.Buffer
	one := datasettest.Tar(t, datasettest.Sample{Key: "0000000", Members: []datasettest.Member{{Ext: "cls", Data: []byte("1")}}})
	for i := range n {
		b := bytes.Clone(one[:1024])
		copy(b, fmt.Sprintf("%07d", i))
		mendChecksum(b)
		archive.Write(b)
	}
	archive.Write(make([]byte, 1024))
	path := datasettest.WriteFile(t, t.TempDir(), "big.tar", archive.Bytes())
	archive = bytes.Buffer{}
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	m, err := build(t, files(t), dataset.BuildOptions{}, path)
	runtime.ReadMemStats(&after)
	if err != nil || m.NumSamples() != n {
		t.Fatalf("%v", err)
	}
	// An index of 100,000 samples is 4.3 MB. Growing to it by doubling, names and read-ahead allocate
	// more over the whole scan, but it stays a small multiple per sample.
	if perSample := (after.TotalAlloc - before.TotalAlloc) / n; perSample > 700 {
		t.Errorf("%d bytes were allocated per sample", perSample)
	}
}

func mendChecksum(b []byte) {
	copy(b[148:], "        ")
	sum := 0
	for _, c := range b[:512] {
		sum += int(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
}

func TestRelativeSourcesBecomeAbsolute(t *testing.T) {
	dir := t.TempDir()
	datasettest.WriteTar(t, dir, "a.tar", datasettest.Samples(1)...)
	t.Chdir(dir)
	m, err := build(t, files(t), dataset.BuildOptions{}, "a.tar")
	if err != nil || !filepath.IsAbs(m.Shards[0].URI) {
		t.Errorf("%+v, %v", m, err)
	}
}
