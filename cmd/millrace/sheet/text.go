package sheet

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/image/font"
	"golang.org/x/image/font/gofont/gomedium"
	"golang.org/x/image/font/gofont/goregular"
	"golang.org/x/image/font/opentype"
)

// faces are the letters of a sheet.
type faces struct{ bold, small font.Face }

func openFaces() (*faces, error) {
	f := &faces{}
	for _, want := range []struct {
		to   *font.Face
		file []byte
		size float64
	}{{&f.bold, gomedium.TTF, 13}, {&f.small, goregular.TTF, 12}} {
		parsed, err := opentype.Parse(want.file)
		if err == nil {
			*want.to, err = opentype.NewFace(parsed, &opentype.FaceOptions{Size: want.size, DPI: 72, Hinting: font.HintingFull})
		}
		if err != nil {
			return nil, fmt.Errorf("opening the font of a sheet: %w", err)
		}
	}
	return f, nil
}

// plain is a JSON object without what only machines need, its numbers with the digits that matter to people.
func plain(values string) string {
	values = regexp.MustCompile(`-?\d+\.\d+(e[-+]?\d+)?`).ReplaceAllStringFunc(values, func(number string) string {
		v, err := strconv.ParseFloat(number, 64)
		if err != nil {
			return number
		}
		return strconv.FormatFloat(v, 'g', 4, 64)
	})
	return strings.NewReplacer(`{`, "", `}`, "", `"`, "", `:`, " ", `,`, ", ").Replace(values)
}

// wrap breaks text into lines of at most width pixels: between words, or within one that is too long.
func wrap(face font.Face, text string, width int) []string {
	var lines []string
	now := ""
	for word := range strings.FieldsSeq(text) {
		next := strings.TrimPrefix(now+" "+word, " ")
		if fits(face, next, width) {
			now = next
			continue
		}
		if now != "" {
			lines = append(lines, now)
		}
		for !fits(face, word, width) {
			n := longest(face, word, width)
			lines, word = append(lines, word[:n]), word[n:]
		}
		now = word
	}
	return append(lines, now)
}

func fits(face font.Face, text string, width int) bool {
	return font.MeasureString(face, text).Ceil() <= width
}

// longest is the number of bytes of whole letters of text that fit into width, at least one letter.
func longest(face font.Face, text string, width int) int {
	end := 0
	for i, r := range text {
		next := i + len(string(r))
		if end > 0 && !fits(face, text[:next], width) {
			break
		}
		end = next
	}
	return min(end, len(text))
}

// head is as much of the beginning of text as fits.
func head(face font.Face, text string, width int) string {
	const more = "…"
	room := width - font.MeasureString(face, more).Ceil()
	return text[:longest(face, text, room)] + more
}

// middle leaves out of a long name what is in the middle: both ends tell more.
func middle(face font.Face, text string, width int) string {
	letters := []rune(text)
	for cut := range letters {
		left := (len(letters) - cut) / 2
		short := text
		if cut > 0 {
			short = string(letters[:left]) + "…" + string(letters[left+cut:])
		}
		if fits(face, short, width) {
			return short
		}
	}
	return text
}
