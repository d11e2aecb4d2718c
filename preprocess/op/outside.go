package op

import (
	"context"

	"github.com/millrace/millrace/preprocess/op/imagekernel"
)

// Outside decodes image files in other processes, with the same pixels and errors as this one. That a file crashes its
// decoder, hangs it or has it do what it may not is an error of kind BadData, or Exhausted where a limit was passed.
type Outside interface {
	// Takes reports whether files of a format are decoded there.
	Takes(f imagekernel.Format) bool
	// Decode is imagekernel.DecodeForm.
	Decode(ctx context.Context, f imagekernel.Form, data []byte, h imagekernel.Header, buf []byte) ([]byte, error)
	// Run does a job that reads a JPEG.
	Run(ctx context.Context, job *imagekernel.Job, scalar bool) error
}

// outside is what decodes the files of one batch elsewhere.
type outside struct {
	takes  func(imagekernel.Format) bool
	decode func(f imagekernel.Form, data []byte, h imagekernel.Header, buf []byte) ([]byte, error)
	run    func(*imagekernel.Job) error
}

// outsideOf is what env has for that, nil where all is decoded here.
func outsideOf(ctx context.Context, env *Env) *outside {
	o := env.Outside
	if o == nil {
		return nil
	}
	return &outside{
		takes: o.Takes,
		decode: func(f imagekernel.Form, data []byte, h imagekernel.Header, buf []byte) ([]byte, error) {
			return o.Decode(ctx, f, data, h, buf)
		},
		run: func(job *imagekernel.Job) error { return o.Run(ctx, job, env.Scalar) },
	}
}

// decode decodes a file to a form, where its format belongs.
func (r *imageRun) decode(f imagekernel.Form, data []byte, h imagekernel.Header, buf []byte) ([]byte, error) {
	if r.outside != nil && r.outside.takes(h.Format) {
		return r.outside.decode(f, data, h, buf)
	}
	return imagekernel.DecodeForm(f, data, h, buf)
}

// do does a job, where the format that it reads belongs.
func (r *imageRun) do(job *imagekernel.Job) error {
	if job.JPEG != nil && r.outside != nil && r.outside.takes(imagekernel.FormatJPEG) {
		return r.outside.run(job)
	}
	return r.kernel.Run(job)
}
