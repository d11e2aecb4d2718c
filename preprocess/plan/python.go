package plan

import (
	"crypto/sha256"
	"fmt"

	"github.com/millrace/millrace/preprocess/op"
)

// PythonFunctions are the functions of users that the plan calls, in order.
func (p *Plan) PythonFunctions() []*op.PythonFunction {
	var out []*op.PythonFunction
	for i := range p.Stages {
		for _, o := range p.Stages[i].Ops {
			if f := op.PythonFunctionOf(o); f != nil {
				out = append(out, f)
			}
		}
	}
	return out
}

// Shipped is a hash of the functions that come with the recipe instead of being imported, empty where there are none. It is
// in no digest: what stands for such a function there is its name and the version that its author gives.
func (p *Plan) Shipped() string {
	h, shipped := sha256.New(), false
	for _, f := range p.PythonFunctions() {
		_, _ = fmt.Fprintf(h, "%d:%s", len(f.Pickle), f.Pickle)
		shipped = shipped || f.Pickle != ""
	}
	if !shipped {
		return ""
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:8])
}
