package kernels

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"

	"github.com/millrace/millrace/bench/peers"
	"github.com/millrace/millrace/internal/errkind"
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
	for _, s := range Scenarios() {
		if len(files[s.set]) == 0 {
			return nil, errkind.Errorf(errkind.Internal, "no image was made for %s", s.Name)
		}
	}
	return files, nil
}
