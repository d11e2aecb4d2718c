package archtest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const remedy = "run `make proto` and commit what it writes"

// protoFiles are the files below dir with one of the suffixes, by path from there.
func protoFiles(t *testing.T, dir string, suffixes ...string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		for _, suffix := range suffixes {
			if strings.HasSuffix(path, suffix) {
				src, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				name, err := filepath.Rel(dir, path)
				if err != nil {
					return err
				}
				files[filepath.ToSlash(name)] = src
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// This one needs no tool: proto/.generated.sum has the hashes of the sources and of what was made from them.
func TestGeneratedCodeBelongsToItsSources(t *testing.T) {
	dir := filepath.Join(root, "proto")
	sum, err := os.ReadFile(filepath.Join(dir, ".generated.sum"))
	if err != nil {
		t.Fatalf("%v; %s", err, remedy)
	}
	var want strings.Builder
	files := protoFiles(t, dir, ".proto", ".pb.go")
	for _, name := range slices.Sorted(maps.Keys(files)) {
		digest := sha256.Sum256(files[name])
		fmt.Fprintf(&want, "%s  ./%s\n", hex.EncodeToString(digest[:]), name)
	}
	if want.String() != string(sum) {
		t.Errorf("proto/.generated.sum does not match the files beside it; %s", remedy)
	}
}

// With the pinned tools at hand (`make unit` names them), the code is generated anew and compared.
func TestGeneratedCodeIsWhatThePinnedToolsMake(t *testing.T) {
	buf, plugins := os.Getenv("MILLRACE_BUF"), os.Getenv("MILLRACE_PROTOC_PLUGINS")
	if buf == "" && plugins == "" {
		return // plain `go test`: TestGeneratedCodeBelongsToItsSources stands in
	}
	for _, tool := range []string{
		buf, filepath.Join(plugins, "protoc-gen-go"), filepath.Join(plugins, "protoc-gen-go-grpc"),
	} {
		if _, err := os.Stat(tool); err != nil {
			t.Fatalf("%v; `make setup` installs the pinned tools", err)
		}
	}
	out := t.TempDir()
	cmd := exec.CommandContext(t.Context(), buf, "generate", "-o", out)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "PATH="+plugins+string(os.PathListSeparator)+os.Getenv("PATH"))
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("buf generate: %v\n%s", err, text)
	}
	fresh := protoFiles(t, filepath.Join(out, "proto"), ".pb.go")
	checked := protoFiles(t, filepath.Join(root, "proto"), ".pb.go")
	if len(fresh) == 0 {
		t.Fatal("buf generate made nothing")
	}
	for name, src := range fresh {
		if !bytes.Equal(src, checked[name]) {
			t.Errorf("proto/%s is stale; %s", name, remedy)
		}
		delete(checked, name)
	}
	for name := range checked {
		t.Errorf("proto/%s is made from no .proto file; remove it", name)
	}
}
