package kernels

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/millrace/millrace/bench/peers"
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/op/jpegrestart"
)

// makeImages makes the files of all scenarios in dir. They follow from the photographs, their number and Pillow's version.
func makeImages(ctx context.Context, o Options, dir string) (map[string][]string, error) {
	settings, err := json.Marshal(map[string]any{"out": dir, "photos": o.Photos, "images": max(2, o.Images)})
	if err != nil {
		return nil, errkind.Errorf(errkind.Internal, "making the images: %w", err)
	}
	cmd := command(ctx, o, dir, peers.Images, string(settings))
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		words := strings.Split(strings.TrimSpace(said.String()), "\n")
		return nil, errkind.Errorf(errkind.Unavailable, "making the images: %w: %s", err, words[len(words)-1])
	}
	files := map[string][]string{}
	if err := json.Unmarshal(out.Bytes(), &files); err != nil {
		return nil, errkind.Errorf(errkind.Internal, "making the images: %w", err)
	}
	if err := addRestarts(files); err != nil {
		return nil, err
	}
	for _, s := range Scenarios() {
		if len(files[s.set]) == 0 {
			return nil, errkind.Errorf(errkind.Internal, "no image was made for %s", s.Name)
		}
	}
	return files, nil
}

// addRestarts makes the files with restart markers, as reshard does.
func addRestarts(files map[string][]string) error {
	for _, name := range files["jpeg_103k"] {
		data, err := os.ReadFile(name)
		if err != nil {
			return fmt.Errorf("reading an image: %w", err)
		}
		made, err := jpegrestart.Add(data, jpegrestart.DefaultOptions())
		if err != nil {
			return fmt.Errorf("giving %s restart markers: %w", name, err)
		}
		name += ".restarts.jpg"
		if err := os.WriteFile(name, made.Data, 0o600); err != nil {
			return fmt.Errorf("writing an image: %w", err)
		}
		files["jpeg_103k_restart"] = append(files["jpeg_103k_restart"], name)
	}
	return nil
}
