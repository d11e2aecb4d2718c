package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/millrace/millrace/cmd/millrace/lookback"
	"github.com/millrace/millrace/cmd/millrace/sheet"
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/order"
	"github.com/millrace/millrace/preprocess/op"
)

// previewOptions are the flags of preview.
type previewOptions struct {
	sheet.Options
	out, shuffle string
	processes    processOptions
}

func (a *app) previewCmd() *cobra.Command {
	var o previewOptions
	c := &cobra.Command{
		Use:   "preview RECIPE",
		Short: "Draw samples before and after the operators of a recipe, with what was drawn at random",
		Long: "Draw samples before and after the operators of a recipe, with their keys and what was drawn at random.\n" +
			"Samples and draws are those that a job of this seed has at the beginning of the epoch.\n" +
			"The sheet is shown in terminals that show images (kitty, Ghostty, iTerm2, WezTerm), else written to a file.",
		Args: usage(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, args []string) error { return a.preview(c.Context(), args[0], o) },
	}
	c.Flags().StringVar(&o.out, "out", "", "PNG file to write; without, the sheet is shown here or goes to RECIPE.png")
	c.Flags().IntVar(&o.Samples, "samples", 12, "samples to show, at most 300")
	c.Flags().Uint64Var(&o.Seed, "seed", 0, "seed of the order and of random operators")
	c.Flags().Uint64Var(&o.Epoch, "epoch", 0, "epoch, from 0")
	c.Flags().StringVar(&o.shuffle, "shuffle", "block", "none, block or full")
	o.processes.register(c)
	return c
}

func (a *app) preview(ctx context.Context, path string, o previewOptions) error {
	const most = 300 // a sheet stays small enough for viewers
	kind, err := order.ParseShuffle(o.shuffle)
	if err = errors.Join(err, o.processes.check()); err != nil {
		return usageError{err}
	}
	if o.Samples < 1 || o.Samples > most {
		return usageError{errkind.Errorf(errkind.Invalid, "--samples is 1 to %d, not %d", most, o.Samples)}
	}
	r, _, err := readRecipe(path)
	if err != nil {
		return err
	}
	s, err := a.planned(ctx, r, kind)
	if err != nil {
		return fmt.Errorf("recipe %s: %w", path, err)
	}
	defer s.Close()
	logger, err := a.logger()
	if err != nil {
		return err
	}
	python, outside, done, err := o.processes.session(s.Plan, logger)
	if err != nil {
		return fmt.Errorf("recipe %s: %w", path, err)
	}
	defer done()
	o.Scalar, o.Python, o.Outside = a.scalar(), python, outside
	samples, err := sheet.Take(ctx, s, o.Options)
	if err != nil {
		return fmt.Errorf("recipe %s: %w", path, err)
	}
	var picture bytes.Buffer
	m, err := sheet.Draw(heading(path, s, o, kind), samples)
	if err == nil {
		err = png.Encode(&picture, m)
	}
	if err != nil {
		return fmt.Errorf("drawing the sheet: %w", err)
	}
	return a.showSheet(path, o.out, picture.Bytes(), samples)
}

// heading names recipe and dataset.
func heading(path string, s *lookback.Source, o previewOptions, kind order.Shuffle) sheet.Heading {
	id := s.Manifest.ID()
	ops := s.Plan.Operators()
	names := make([]string, 0, len(ops))
	for _, i := range ops {
		names = append(names, i.Name)
	}
	// A crop that directly follows the decoder is one of the image as it is stored, when that is upright.
	at := slices.Index(names, "decode_image")
	whole := at >= 0 && slices.Contains([]string{"random_resized_crop", "random_crop"}, names[at+1]) && first(ops, at+1)
	return sheet.Heading{
		Title: fmt.Sprintf("%s: %s", filepath.Base(path), strings.Join(names[:len(names)-1], " → ")),
		Below: fmt.Sprintf("left as read, right after the operators · manifest %x… · epoch %d · seed %d · shuffle %s", id[:3], o.Epoch, o.Seed, kind), CropOfWhole: whole,
	}
}

// first says whether nothing before operator at draws anything.
func first(ops []op.Info, at int) bool {
	return !slices.ContainsFunc(ops[:at], func(i op.Info) bool { return i.Name != "decode_image" && i.Name != "label" && i.Name != "select" })
}

// showSheet puts the sheet where it was asked for, and says where it is and what is bad.
func (a *app) showSheet(recipe, out string, picture []byte, samples []*sheet.Sample) error {
	protocol := sheet.ProtocolNone
	if f, ok := a.out.(*os.File); ok && out == "" && !a.json && term.IsTerminal(int(f.Fd())) {
		protocol = sheet.ProtocolOf(a.lookup)
	}
	where := "shown above"
	if protocol != sheet.ProtocolNone {
		if err := sheet.Show(a.out, protocol, picture); err != nil {
			return err
		}
	} else {
		if out == "" {
			out = strings.TrimSuffix(filepath.Base(recipe), filepath.Ext(recipe)) + ".png"
		}
		if err := os.WriteFile(out, picture, 0o644); err != nil { //nolint:gosec // A picture that the user asked for.
			return fmt.Errorf("writing the sheet: %w", err)
		}
		where = out
	}
	if a.json {
		return json.NewEncoder(a.out).Encode(map[string]any{"out": where, "samples": samples})
	}
	var bad []string
	for _, s := range samples {
		if s.Error != "" {
			bad = append(bad, "bad: "+s.Error+"\n")
		}
	}
	_, err := fmt.Fprintf(a.out, "%d samples, %d bad · %s\n%s", len(samples), len(bad), where, strings.Join(bad, ""))
	return err
}
