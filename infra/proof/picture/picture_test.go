package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// The picture beside the documents is of the commands of README.md, and is small.
func TestThePictureIsOfTheReadme(t *testing.T) {
	svg, err := os.ReadFile("../../../docs/two-minutes.svg")
	commontest.OK(t, err)
	if len(svg) > 100_000 {
		t.Errorf("it has %d bytes", len(svg))
	}
	shown := text(t, string(svg))
	page, err := os.ReadFile("../../../README.md")
	commontest.OK(t, err)
	lines := commands(string(page))
	for _, want := range append(lines, "Echo: hi", "asleep after") {
		if !strings.Contains(shown, want) {
			t.Errorf("it does not show %q: make pictures", want)
		}
	}
	if len(lines) < 4 {
		t.Errorf("README.md has only the commands %q", lines)
	}
	if !strings.Contains(string(page), "(docs/two-minutes.svg)") {
		t.Error("README.md does not show it")
	}
}

// text returns the text of a picture, a line for each element. It fails if the picture is no
// XML.
func text(t *testing.T, svg string) string {
	t.Helper()
	var b strings.Builder
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return b.String()
		}
		commontest.OK(t, err)
		switch x := token.(type) {
		case xml.CharData:
			b.Write(x)
		case xml.EndElement:
			if x.Name.Local == "text" {
				b.WriteByte('\n')
			}
		}
	}
}
