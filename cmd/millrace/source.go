package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/preprocess/recipe"
)

// cachePath is the directory that keeps manifests, indices and plans.
func (a *app) cachePath() (string, error) {
	if a.cacheDir != "" {
		return a.cacheDir, nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", errkind.Errorf(errkind.Invalid, "there is no cache directory (%w); give one with --cache-dir", err)
	}
	return filepath.Join(dir, "millrace"), nil
}

func (a *app) openCache() (*dataset.Cache, error) {
	dir, err := a.cachePath()
	if err != nil {
		return nil, err
	}
	return dataset.NewCache(dir)
}

// indexBar shows the progress of indexing.
func (a *app) indexBar() (show func(dataset.Progress), done func()) {
	return a.bar("indexing")
}

// bar shows the progress of what is done to each shard.
func (a *app) bar(doing string) (show func(dataset.Progress), done func()) {
	bar := progress.New(a.err, doing, "shards")
	return func(p dataset.Progress) { bar.Set(indexState(p)) }, bar.Close
}

func indexState(p dataset.Progress) progress.State {
	return progress.State{
		Done: int64(p.ShardsDone), Total: int64(p.ShardsTotal),
		Detail: fmt.Sprintf("%s samples, %s", progress.Count(p.Samples), progress.Size(p.Bytes)),
	}
}

// readRecipe reads a recipe file; its mistakes are reported with its name.
func readRecipe(path string) (*recipe.Recipe, []byte, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, errkind.Errorf(errkind.NotFound, "recipe %s does not exist; name a YAML file", path)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("reading recipe: %w", err)
	}
	if info.IsDir() {
		return nil, nil, errkind.Errorf(errkind.Invalid, "recipe %s is a directory; name a YAML file", path)
	}
	if info.Size() > recipe.MaxBytes {
		return nil, nil, errkind.Errorf(errkind.Invalid, "recipe %s has %d bytes; at most %d are read", path, info.Size(), recipe.MaxBytes)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("reading recipe: %w", err) // which names the file
	}
	r, err := recipe.Parse(text)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, text, nil
}
