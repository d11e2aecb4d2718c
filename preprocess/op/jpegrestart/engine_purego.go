//go:build !cgo || purego

package jpegrestart

func open([]byte, int) (source, error) { return nil, ErrUnsupported }
