package optest

import (
	"fmt"
	"os"
	"path/filepath"
)

// Images are the test images in folder by file name: every kind of JPEG and PNG that the operators read.
func Images(folder string) (map[string][]byte, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.*g"))
	if err != nil {
		return nil, err
	}
	images := make(map[string][]byte, len(files))
	for _, file := range files {
		if images[filepath.Base(file)], err = os.ReadFile(file); err != nil {
			return nil, fmt.Errorf("reading a test image: %w", err)
		}
	}
	return images, nil
}

// AllImages are those of Images and of the folder formats in it: the other formats that decode_image reads.
func AllImages(folder string) (map[string][]byte, error) {
	images, err := Images(folder)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(filepath.Join(folder, "formats"))
	if err != nil {
		return nil, fmt.Errorf("listing the test images: %w", err)
	}
	for _, e := range entries {
		if images[e.Name()], err = os.ReadFile(filepath.Join(folder, "formats", e.Name())); err != nil {
			return nil, fmt.Errorf("reading a test image: %w", err)
		}
	}
	return images, nil
}
