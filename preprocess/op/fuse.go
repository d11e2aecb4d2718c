package op

import "slices"

// Fuse joins image operators on one field into one operator that does each image in a single kernel call; the layout
// and type that an output operator asks for become its last part. The fused operators give the bytes that the single
// ones give. Operators between two of a group are passed over if they don't touch the field; a group runs at the place of its last.
func Fuse(ops []Operator) []Operator {
	out := make([]Operator, 0, len(ops))
	for _, o := range ops {
		switch o := o.(type) {
		case *imageOp:
			if at, group := joinable(out, o.field); group != nil {
				out = slices.Delete(out, at, at+1)
				o = newImageOp(o.field, slices.Concat(group.parts, o.parts)...)
			}
			out = append(out, o)
		case *outputOp:
			for i, f := range o.fields {
				at, group := joinable(out, f.Name)
				if p := o.imagePart(i); group != nil && p != nil {
					out[at] = newImageOp(group.field, slices.Concat(group.parts, []part{p})...)
				}
			}
			out = append(out, o)
		default:
			out = append(out, o)
		}
	}
	return out
}

// joinable is the last image operator on field that a next one may join, and its place; nil when there is none: nothing
// after it may touch the field or the rows.
func joinable(ops []Operator, field string) (int, *imageOp) {
	for i, o := range slices.Backward(ops) {
		switch o := o.(type) {
		case *imageOp:
			if o.field == field {
				return i, o
			}
		case *labelOp:
			if o.field == field || o.from == field {
				return -1, nil
			}
		case *selectOp:
			if !slices.Contains(o.fields, field) {
				return -1, nil
			}
		default:
			return -1, nil
		}
	}
	return -1, nil
}
