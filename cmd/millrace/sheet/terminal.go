package sheet

import (
	"encoding/base64"
	"fmt"
	"io"
	"strings"
)

// Protocol is a way to show an image in a terminal.
type Protocol int

const (
	// ProtocolNone is that of terminals that show text alone.
	ProtocolNone Protocol = iota
	// ProtocolKitty is the graphics protocol of kitty, which Ghostty speaks too.
	ProtocolKitty
	// ProtocolITerm2 is that of iTerm2, which WezTerm, mintty and others speak too.
	ProtocolITerm2
)

// ProtocolOf tells by its environment what a terminal speaks. A multiplexer between would swallow images.
func ProtocolOf(lookup func(string) (string, bool)) Protocol {
	env := func(name string) string { v, _ := lookup(name); return v }
	if env("TMUX") != "" || strings.HasPrefix(env("TERM"), "screen") || strings.HasPrefix(env("TERM"), "tmux") {
		return ProtocolNone
	}
	switch program := env("TERM_PROGRAM"); {
	case env("KITTY_WINDOW_ID") != "" || env("TERM") == "xterm-kitty" || program == "ghostty":
		return ProtocolKitty
	case program == "iTerm.app" || program == "WezTerm" || program == "mintty" || env("LC_TERMINAL") == "iTerm2":
		return ProtocolITerm2
	}
	return ProtocolNone
}

// Show writes a PNG to a terminal that speaks p.
func Show(w io.Writer, p Protocol, png []byte) error {
	text := base64.StdEncoding.EncodeToString(png)
	if p == ProtocolITerm2 {
		_, err := fmt.Fprintf(w, "\x1b]1337;File=inline=1;size=%d:%s\a\n", len(png), text)
		return err
	}
	const chunk = 4096
	control := "a=T,f=100,"
	for len(text) > 0 {
		n, more := min(chunk, len(text)), 1
		if n == len(text) {
			more = 0
		}
		if _, err := fmt.Fprintf(w, "\x1b_G%sm=%d;%s\x1b\\", control, more, text[:n]); err != nil {
			return err
		}
		control, text = "", text[n:]
	}
	_, err := fmt.Fprintln(w)
	return err
}
