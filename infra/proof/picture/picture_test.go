package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/vt"

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

func TestCommandsAreThoseOfTheFirstBlockWithoutComments(t *testing.T) {
	page := "```sh\nother\n```\n<!-- run -->\n```sh\none -x   # what it does ⇒ this\n\ntwo 'a#b'\n```\n<!-- run -->\n```sh\nthree\n```\n"
	commontest.Same(t, []string{"one -x", "two 'a#b'"}, commands(page))
}

// A text is visible from its time until another takes its row. The last one stays to the
// end.
func TestATextIsSeenInItsTime(t *testing.T) {
	r := &reel{last: time.Now()}
	screen := &terminal{reel: r, screen: vt.NewEmulator(columns, 2), changed: make(chan struct{})}
	r.all = append(r.all, screen)
	screen.writes("<one>", time.Second)
	screen.writes("\r\x1b[31mtwo\x1b[0m!  ", time.Second)
	screen.writes("\r\n\x1b[2mthree\x1b[0m", time.Second)
	r.hold(time.Second)
	svg := string(r.svg())
	for _, want := range []string{
		"&lt;one&gt;",
		"animation:4.0s",
		"{25%{visibility:visible}50%{visibility:hidden}}",
		"{50%{visibility:visible}}",
		"{75%{visibility:visible}}",
		`<tspan class="r">two</tspan>!</text>`,
		`<tspan class="d">three</tspan></text>`,
	} {
		if !strings.Contains(svg, want) {
			t.Errorf("the picture lacks %s:\n%s", want, svg)
		}
	}
}
