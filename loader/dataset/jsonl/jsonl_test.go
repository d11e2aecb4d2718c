package jsonl_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/loader/dataset/datasettest"
	"github.com/millrace/millrace/loader/dataset/format"
	"github.com/millrace/millrace/loader/dataset/formattest"
	"github.com/millrace/millrace/loader/dataset/jsonl"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func gz(t *testing.T, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func zst(t *testing.T, data []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll(data, nil)
}

func TestLawsPlainAndCompressed(t *testing.T) {
	var rows []formattest.Row
	shard := func(from, to int) []byte {
		var b bytes.Buffer
		for i := from; i < to; i++ {
			text := strings.Repeat(fmt.Sprintf("word \"%d\"\n", i), i%50)
			quoted, err := json.Marshal(text)
			if err != nil {
				t.Fatal(err)
			}
			row := formattest.Row{"text": text, "n": fmt.Sprint(i), "meta": fmt.Sprintf(`{"tags": [%d, "}{"]}`, i), "ok": fmt.Sprint(i % 2), "score": fmt.Sprint(float64(i) / 4)}
			end := "\n"
			if i%7 == 0 {
				delete(row, "score")
				end = "\r\n\n  \n"
				_, _ = fmt.Fprintf(&b, `  {"text": %s, "n": %d, "score": null, "meta": %s, "ok":%v}%s`, quoted, i, row["meta"], i%2 == 1, end)
			} else {
				_, _ = fmt.Fprintf(&b, `{"n":%d,"text":%s,"meta":%s , "ok":%v, "score":%s}%s`, i, quoted, row["meta"], i%2 == 1, row["score"], end)
			}
			rows = append(rows, row)
		}
		return bytes.TrimSuffix(b.Bytes(), []byte("\n")) // the last line need not end
	}
	files := map[string][]byte{"a.jsonl": append([]byte("\xef\xbb\xbf"), shard(0, 120)...), "b.jsonl.gz": gz(t, shard(120, 250)), "c.ndjson.zst": zst(t, shard(250, 300))}
	formattest.Check(t, os.Getenv("MILLRACE_S3_SERVERS"), formattest.Set{Files: files, Format: "jsonl", Rows: rows})
}

func TestColumnsHaveTheTypesOfAllLines(t *testing.T) {
	text := `{"a": 1, "b": 1, "c": "x", "d": [1], "e": null, "f": true, "g\u0021": 1e3}
{"a": 2.5, "b": "one", "c": {"y": 1}, "late": "z", "f": 7}`
	x, err := jsonl.Format{}.Index(t.Context(), formattest.Bytes(text), func(err error) error { return err })
	if err != nil {
		t.Fatal(err)
	}
	s, err := jsonl.Format{}.Open(x.Raw)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(s.Columns()); got != "[{a float64} {b text} {c json} {d json} {f int64} {g! float64} {late text}]" {
		t.Errorf("columns %s", got)
	}
}

func TestABadLineIsAnErrorOfItsSampleAlone(t *testing.T) {
	for _, bad := range []string{`[1]`, `{"a": 1`, `{"a": 1} x`, `{"a" 1}`, `{"a": 01}`, `{"a": nul}`, `{"a": "\x"}`, `not json`, `{"a": ` + strings.Repeat("[", 2000) + `}`, `{"a":}`} {
		dir := t.TempDir()
		datasettest.WriteFile(t, dir, "x.jsonl", []byte("{\"a\": 5}\n"+bad+"\n{\"a\": 6}\n"))
		r := datasettest.Resolver(t, nil)
		m, err := dataset.Build(t.Context(), r, []string{dir + "/x.jsonl"}, nil, dataset.BuildOptions{})
		if err != nil {
			t.Fatalf("%s: %v", bad, err)
		}
		samples, release, err := datasettest.Open(t, m, r, nil, dataset.OpenOptions{}).Read(t.Context(), []int64{0, 1, 2}, nil)
		defer release()
		if err != nil {
			t.Fatalf("%s: %v", bad, err)
		}
		if samples[0].Err != nil || samples[2].Err != nil || string(samples[2].Fields[0].Data) != "6" {
			t.Errorf("%s: samples beside it: %+v", bad, samples)
		}
		if err := samples[1].Err; errkind.Of(err) != errkind.BadData || !strings.Contains(err.Error(), "x.jsonl!1 (") || !strings.Contains(err.Error(), "at offset 9 of "+dir) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// Whatever encoding/json writes is read back, value by value.
func TestReadsWhatEncodingJSONWrites(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		object := rapid.MapOf(rapid.String(), rapid.OneOf(
			rapid.Map(rapid.String(), func(s string) any { return s }),
			rapid.Map(rapid.Int(), func(i int) any { return i }),
			rapid.Map(rapid.SliceOf(rapid.String()), func(s []string) any { return s }),
		)).Draw(r, "object")
		line, err := json.Marshal(object)
		if err != nil {
			r.Fatal(err)
		}
		x, err := jsonl.Format{}.Index(t.Context(), formattest.Bytes(line), func(err error) error { return err })
		if err != nil || x.Samples != 1 {
			r.Fatalf("%d samples, %v", x.Samples, err)
		}
		s, err := jsonl.Format{}.Open(x.Raw)
		if err != nil {
			r.Fatal(err)
		}
		wanted := make([]bool, len(s.Columns()))
		for i := range wanted {
			wanted[i] = true
		}
		b, err := s.Decode(t.Context(), format.Unit{Count: 1}, wanted, [][]byte{line}, 1<<20)
		if err != nil {
			r.Fatal(err)
		}
		got := map[string]string{}
		if err := b.Values(0, func(i int, data []byte) { got[s.Columns()[i].Name] = string(data) }); err != nil {
			r.Fatal(err)
		}
		var want map[string]json.RawMessage
		if err := json.Unmarshal(line, &want); err != nil {
			r.Fatal(err)
		}
		for key, value := range want {
			expected := string(value)
			if value[0] == '"' {
				if err := json.Unmarshal(value, &expected); err != nil {
					r.Fatal(err)
				}
			}
			if text, ok := got[key]; ok == (expected == "null" && value[0] != '"') || ok && text != expected {
				r.Errorf("%q is %q (%v), want %q", key, text, ok, expected)
			}
		}
		if len(got) > len(want) {
			r.Errorf("%v, want %v", got, want)
		}
	})
}

func TestALineOfAnyLengthUpToTheLimit(t *testing.T) {
	long := `{"a": "` + strings.Repeat("x", 1<<20) + `"}`
	x, err := jsonl.Format{}.Index(t.Context(), formattest.Bytes(long+"\n"+long), func(err error) error { return err })
	if err != nil || x.Samples != 2 {
		t.Errorf("%d samples, %v", x.Samples, err)
	}
	path := t.TempDir() + "/long.jsonl"
	f, err := os.Create(path)
	if err == nil {
		err = f.Truncate(65 << 20) // zero bytes, no line end
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = dataset.Build(t.Context(), datasettest.Resolver(t, nil), []string{path}, nil, dataset.BuildOptions{})
	if errkind.Of(err) != errkind.BadData || !strings.Contains(err.Error(), "the line at offset 0 has more than") {
		t.Errorf("a line of 65 MiB: %v", err)
	}
}

func FuzzSurvive(f *testing.F) {
	f.Add([]byte("{\"a\": [1, {\"b\": \"\\\"\"}], \"c\": null}\n\n[]\n{"))
	f.Fuzz(func(t *testing.T, data []byte) { formattest.Survive(t, jsonl.Format{}, data) })
}
