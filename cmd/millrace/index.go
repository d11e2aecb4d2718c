package main

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/loader/dataset"
)

func (a *app) indexCmd() *cobra.Command {
	var o dataset.BuildOptions
	var v dataset.VerifyOptions
	c := &cobra.Command{
		Use:   "index URI…",
		Short: "Build the manifest and the index of a source",
		Long: "Build the manifest and the index of a source: brace patterns, tar shards, a directory of shards or a folder of media.\n" +
			"Shards that did not change since the last time are not read again; one that was stopped goes on where it was.",
		Args: usage(cobra.MinimumNArgs(1)),
		RunE: func(c *cobra.Command, args []string) error { return a.index(c, args, o, v) },
	}
	c.Flags().IntVar(&o.Concurrency, "concurrency", 32, "shards read at a time")
	c.Flags().BoolVar(&o.TolerateMissing, "tolerate-missing", false, "leave out shards of a brace pattern that do not exist")
	c.Flags().BoolVar(&o.TolerateDamaged, "tolerate-damaged", false, "take the whole samples of shards that are cut off, and leave out shards that cannot be read")
	c.Flags().BoolVar(&o.Unpinned, "unpinned", false, "accept objects that nothing pins, whose change would go unseen")
	c.Flags().BoolVar(&v.Check, "check", false, "read the shards again and compare them with index and checksums")
	c.Flags().BoolVar(&v.Fill, "checksum", false, "read the shards and keep checksums of their members, by which damage is found later")
	return c
}

func (a *app) index(c *cobra.Command, uris []string, o dataset.BuildOptions, v dataset.VerifyOptions) error {
	cache, err := a.openCache()
	if err != nil {
		return err
	}
	resolver := a.newResolver()
	defer func() { _ = resolver.Close() }()
	show, done := a.indexBar()
	o.OnProgress = show
	started := time.Now()
	m, err := dataset.BuildOrLoad(c.Context(), resolver, uris, cache, o)
	done()
	if err != nil {
		return err
	}
	found := &dataset.Verified{}
	if v.Check || v.Fill {
		show, done := a.bar("checking")
		v.OnProgress, v.Concurrency = show, o.Concurrency
		found, err = dataset.Verify(c.Context(), resolver, m, cache, v)
		done()
		if err != nil {
			return err
		}
	}
	if err := a.indexed(m, found, started); err != nil {
		return err
	}
	if n := len(found.Wrong); n > 0 {
		return errkind.Errorf(errkind.BadData, "%d places are not as they were when the source was indexed", n)
	}
	return nil
}

// indexed says what an index holds, and what was found wrong.
func (a *app) indexed(m *dataset.Manifest, found *dataset.Verified, started time.Time) error {
	id := m.ID()
	if a.json {
		return json.NewEncoder(a.out).Encode(map[string]any{
			"manifest": fmt.Sprintf("%x", id), "format": m.Format, "shards": len(m.Shards), "samples": m.NumSamples(),
			"bytes": m.DataBytes(), "missing": m.Missing, "damaged": m.Damaged, "seconds": time.Since(started).Seconds(),
			"checked": found.Checked, "checksums_filled": found.Filled, "checksums_checked": found.Summed, "wrong": found.Wrong,
		})
	}
	_, err := fmt.Fprintf(a.out, "%s shards · %s samples · %s · %s · manifest %x… (%.1f s)\n", progress.Count(int64(len(m.Shards))),
		progress.Count(m.NumSamples()), progress.Size(m.DataBytes()), m.Format, id[:6], time.Since(started).Seconds())
	for _, uri := range m.Missing {
		_, _ = fmt.Fprintf(a.out, "missing: %s\n", uri)
	}
	for _, d := range m.Damaged {
		_, _ = fmt.Fprintf(a.out, "damaged: %s: %s\n", d.URI, d.Reason)
	}
	if found.Checked > 0 || found.Filled > 0 {
		_, _ = fmt.Fprintf(a.out, "checked: %d shards, %d of them with checksums · checksums taken of %d shards\n", found.Checked, found.Summed, found.Filled)
	}
	for _, w := range found.Wrong {
		_, _ = fmt.Fprintf(a.out, "wrong: %s\n", w)
	}
	return err
}
