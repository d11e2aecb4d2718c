package worker

import (
	"github.com/millrace/millrace/preprocess/op"
)

// cut is rows from..to of b, sharing its memory.
func cut(b *op.Batch, from, to int) *op.Batch {
	if from == 0 && to == b.NumRows {
		return b
	}
	out := &op.Batch{
		NumRows: to - from, Samples: b.Samples[from:to], Keys: b.Keys[from:to],
		Columns: make([]op.Column, len(b.Columns)),
	}
	if origin := b.Origin; origin != nil {
		out.Origin = func(i int) op.Origin { return origin(from + i) }
	}
	for i := range b.Columns {
		c := &out.Columns[i]
		*c = b.Columns[i]
		switch c.Kind {
		case op.KindBytes, op.KindText:
			c.Bytes = c.Bytes[from:to]
		case op.KindInt64:
			c.Ints = c.Ints[from:to]
		case op.KindFloat64:
			c.Floats = c.Floats[from:to]
		case op.KindImage:
			c.Images = c.Images[from:to]
		case op.KindTensor:
			n := c.RowBytes()
			c.Tensor = c.Tensor[from*n : to*n]
		case op.KindInvalid:
		}
	}
	return out
}

// rowBytes is the size of row i of b. It decides where outputs end, so it may depend on nothing but the data.
func rowBytes(b *op.Batch, i int) int64 {
	total := int64(0)
	for j := range b.Columns {
		c := &b.Columns[j]
		switch c.Kind {
		case op.KindBytes, op.KindText:
			total += int64(len(c.Bytes[i]))
		case op.KindImage:
			total += int64(len(c.Images[i].Pix))
		case op.KindInt64, op.KindFloat64:
			total += 8
		case op.KindTensor:
			total += int64(c.RowBytes())
		case op.KindInvalid:
		}
	}
	return total
}

// batchBytes is the size of all rows of b.
func batchBytes(b *op.Batch) int64 {
	total := int64(0)
	for i := range b.NumRows {
		total += rowBytes(b, i)
	}
	return total
}

// concat makes one batch of several of the same schema. Tensors are copied into memory of to; all else is shared.
func concat(parts []*op.Batch, to *arena) *op.Batch {
	first := parts[0]
	out := &op.Batch{Columns: make([]op.Column, len(first.Columns))}
	for _, p := range parts {
		out.NumRows += p.NumRows
		out.Samples = append(out.Samples, p.Samples...)
		out.Keys = append(out.Keys, p.Keys...)
	}
	out.Origin = originOf(parts)
	for i := range out.Columns {
		c := &out.Columns[i]
		c.Field = first.Columns[i].Field
		if c.Kind == op.KindTensor {
			c.Tensor = to.alloc(out.NumRows * c.RowBytes())
		}
		at := 0
		for _, p := range parts {
			from := &p.Columns[i]
			c.Bytes = append(c.Bytes, from.Bytes...)
			c.Ints = append(c.Ints, from.Ints...)
			c.Floats = append(c.Floats, from.Floats...)
			c.Images = append(c.Images, from.Images...)
			at += copy(c.Tensor[at:], from.Tensor)
		}
	}
	return out
}

// originOf finds rows of a concatenation in its parts; nil if a part does not know.
func originOf(parts []*op.Batch) func(int) op.Origin {
	for _, p := range parts {
		if p.Origin == nil {
			return nil
		}
	}
	return func(i int) op.Origin {
		for _, p := range parts {
			if i < p.NumRows {
				return p.Origin(i)
			}
			i -= p.NumRows
		}
		return op.Origin{}
	}
}
