package kernels_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"image"
	"image/jpeg"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/millrace/millrace/bench/kernels"
	"github.com/millrace/millrace/internal/errkind"
)

// roleVariable makes this test program an interpreter that runs the programs of the peer, in its way.
const roleVariable = "MILLRACE_KERNELS_TEST_ROLE"

func TestMain(m *testing.M) {
	role := os.Getenv(roleVariable)
	switch {
	case role == "":
		goleak.VerifyTestMain(m)
	case strings.HasSuffix(os.Args[1], "kernel_images.py"):
		makeImages(role)
	default:
		play(role)
	}
}

// makeImages writes two grey images of each kind.
func makeImages(role string) {
	if role == "no images" {
		fmt.Fprintln(os.Stderr, "Traceback …\nModuleNotFoundError: No module named 'PIL'")
		os.Exit(1)
	}
	var settings struct{ Out string }
	if err := json.Unmarshal([]byte(os.Args[2]), &settings); err != nil {
		panic(err)
	}
	files := map[string][]string{}
	for _, kind := range []string{"jpeg_44k", "jpeg_103k", "jpeg_1600", "ready"} {
		var data bytes.Buffer
		picture := image.NewGray(image.Rect(0, 0, 224, 224))
		encode := func() error { return jpeg.Encode(&data, picture, nil) }
		if kind == "ready" {
			encode = func() error { return png.Encode(&data, picture) }
		}
		if err := encode(); err != nil {
			panic(err)
		}
		name := filepath.Join(settings.Out, kind)
		if err := os.WriteFile(name, data.Bytes(), 0o600); err != nil {
			panic(err)
		}
		files[kind] = []string{name, name}
	}
	if err := json.NewEncoder(os.Stdout).Encode(files); err != nil {
		panic(err)
	}
}

// play answers orders. All images are black, so that the pixels are zeros whatever is done to them.
func play(role string) {
	passes := 0
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var order struct {
			Do, File string
			Draws    []any
		}
		if err := json.Unmarshal(lines.Bytes(), &order); err != nil {
			panic(err)
		}
		answer := "{}"
		switch order.Do {
		case "prepare":
			passes = len(order.Draws)
		case "pixels":
			pixels := make([]byte, passes*2*3*224*224)
			switch role {
			case "other pixels":
				pixels[5], pixels[7] = 1, 9
			case "fewer pixels":
				pixels = pixels[1:]
			case "dies":
				fmt.Fprintln(os.Stderr, "Traceback …\nOSError: image file is truncated")
				os.Exit(1)
			}
			if err := os.WriteFile(order.File, pixels, 0o600); err != nil {
				panic(err)
			}
		case "time":
			answer = fmt.Sprintf(`{"cpu": 0.5, "images": %d}`, passes*2)
			if role == "babbles" {
				answer = "hello"
			}
		}
		fmt.Println(answer)
	}
}

func start(t *testing.T, role string) (*kernels.Runner, error) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r, err := kernels.Start(t.Context(), kernels.Options{
		Python: self, Env: append(os.Environ(), roleVariable+"="+role), Images: 2, Passes: 3, Rounds: 2, Log: io.Discard,
	})
	if err == nil {
		t.Cleanup(r.Close)
	}
	return r, err
}

// Each scenario has the figures of both sides, and no image takes anything from the heap.
func TestScenariosHaveFigures(t *testing.T) {
	r, err := start(t, "good")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range kernels.Scenarios() {
		if s.Name == "two_cores" {
			continue // How many cores there are is not for a test to say; the command is tested where there are two.
		}
		got, err := r.Run(t.Context(), s)
		if err != nil {
			t.Fatalf("%s: %v", s.Name, err)
		}
		const peer = 0.5e6 / 6
		if got.Scenario != s.Name || got.PerImage <= 0 || got.PeerTime < peer-1 || got.PeerTime > peer+1 || got.OtherTime != got.PeerTime || got.Ratio <= 0 {
			t.Errorf("%+v", got)
		}
		if got.Allocs != 0 && !forgetful {
			t.Errorf("%s allocates %v objects for an image", s.Name, got.Allocs)
		}
		if operator := strings.HasPrefix(s.Name, "j") && !strings.HasPrefix(s.Name, "jpeg"); operator && got.Added == 0 {
			t.Errorf("%s does not say what the operator adds", s.Name)
		}
	}
}

func TestPeersThatFailAreErrorsThatSayWhy(t *testing.T) {
	for role, want := range map[string]string{
		"no images":    "No module named 'PIL'",
		"other pixels": "comparing the pixels of jpeg_44k: 2 of 903168 bytes differ, by up to 9",
		"fewer pixels": "the peer made 903167 bytes, Millrace 903168",
		"dies":         "the peer ended: OSError: image file is truncated",
		"babbles":      `the peer said "hello\n"`,
	} {
		r, err := start(t, role)
		if err == nil {
			_, err = r.Run(t.Context(), kernels.Scenarios()[0])
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: err = %v, want %q in it", role, err, want)
		}
	}
}

func TestWrongRunsAreRefused(t *testing.T) {
	if _, err := kernels.Find("nothing"); errkind.Of(err) != errkind.Invalid {
		t.Errorf("an unknown scenario: %v", err)
	}
	if _, err := kernels.Start(t.Context(), kernels.Options{}); errkind.Of(err) != errkind.Invalid {
		t.Errorf("no images: %v", err)
	}
}
