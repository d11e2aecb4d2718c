package main

import (
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/bench/kernels"
)

func (a *app) benchKernelsCmd() *cobra.Command {
	var name, photos string
	o := kernels.Options{Log: a.err}
	c := &cobra.Command{
		Use:   "kernels",
		Short: "Decode and augment images on one core, beside Pillow and torchvision",
		Long: "Decode and augment images on one core, with Pillow and torchvision, and torchvision.io, on the same files and with the\n" +
			"same parameters beside it, in turns. Pixels are compared first. Without --scenario all are run, one JSON line each.",
		Args: usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			todo := kernels.Scenarios()
			if name != "" {
				s, err := kernels.Find(name)
				if err != nil {
					return usageError{err}
				}
				todo = []kernels.Scenario{s}
			}
			if err := o.Check(); err != nil {
				return usageError{err}
			}
			var err error
			if o.Env, o.Python, err = a.benchPython(o.Python); err != nil {
				return err
			}
			if o.Photos, err = photographs(photos); err != nil {
				return err
			}
			r, err := kernels.Start(c.Context(), o)
			if err != nil {
				return err
			}
			defer r.Close()
			for _, s := range todo {
				result, err := r.Run(c.Context(), s)
				if err != nil {
					return err
				}
				if err := json.NewEncoder(a.out).Encode(result); err != nil {
					return err
				}
			}
			return nil
		},
	}
	c.Flags().StringVar(&name, "scenario", "", "one of those that bench/README.md lists")
	c.Flags().StringVar(&photos, "photos", "", "folder of photographs to make the files of (default: those of make demo-data, else drawings)")
	c.Flags().IntVar(&o.Images, "images", 32, "files of a scenario; of the large ones a quarter")
	c.Flags().IntVar(&o.Passes, "passes", 8, "how often a turn takes each file, with other parameters every time")
	c.Flags().IntVar(&o.Rounds, "rounds", 5, "turns of each side")
	c.Flags().StringVar(&o.Python, "python", "", "interpreter of the peer (default: that of make setup-demo, else python3)")
	return c
}

// photographs is the folder to use: the one named, else that of the demo beside this binary, if it is there.
func photographs(named string) (string, error) {
	if named != "" {
		return filepath.Abs(named)
	}
	self, err := os.Executable()
	if err != nil {
		return "", nil //nolint:nilerr // Then there are drawings.
	}
	folder := filepath.Join(filepath.Dir(filepath.Dir(self)), ".cache/demo-photos")
	if info, err := os.Stat(folder); err != nil || !info.IsDir() {
		return "", nil //nolint:nilerr // Then there are drawings.
	}
	return folder, nil
}
