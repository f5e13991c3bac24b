package dormouse

import (
	"io"
	"os"

	"golang.org/x/term"

	"github.com/dormouse-mcp/dormouse/infra/local/display"
)

// screen is the display of dormouse run, and the keyboard that controls it.
type screen struct {
	*display.Terminal
	keys *keyboard // nil if stdin is no terminal, or belongs to another program
}

// open opens the display on stderr. The user calls reload with the key r, and quit with q.
func (c says) open(t *terminal, reload, quit func()) screen {
	o := c.display(t.err, os.Getenv)
	var s screen
	if o.Screen {
		s.keys = takeKeyboard(os.Stdin)
	}
	o.Keys = s.keys != nil
	s.Terminal = display.New(o)
	if s.keys != nil {
		go s.keys.read(map[byte]func(){'c': s.Clients, 'r': reload, 'v': s.ToggleVerbose, 'q': quit})
	}
	return s
}

// Close closes the display, and restores the terminal modes.
func (s screen) Close() {
	s.Terminal.Close()
	if s.keys != nil {
		s.keys.giveBack()
	}
}

// display returns the options for writing to out. A terminal is a screen, except in CI and if TERM
// is dumb.
func (c says) display(out io.Writer, getenv func(string) string) display.Options {
	o := display.Options{Out: out, Verbose: c.Verbose, Version: builtAs().Version, Stamps: getenv("JOURNAL_STREAM") == ""}
	out = raw(out) // the display removes control characters itself
	o.Out = out
	f, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return o
	}
	o.Screen = getenv("TERM") != "dumb" && getenv("CI") == ""
	o.Color = o.Screen && getenv("NO_COLOR") == ""
	o.Width = func() int {
		width, _, err := term.GetSize(int(f.Fd()))
		if err != nil || width < 20 {
			return 80
		}
		return width
	}
	return o
}
