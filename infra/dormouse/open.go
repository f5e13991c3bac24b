package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"runtime"

	"github.com/dormouse-mcp/dormouse/shared/api"
)

type openCommand struct {
	NoBrowser bool   `name:"no-browser" help:"Print the link only."`
	Data      string `default:".dormouse" type:"path" help:"The data folder of dormouse run."`
	printing
}

// Run prints a link to the console, and opens the browser if there is a desktop.
func (c *openCommand) Run(t *terminal) error {
	return use(context.Background(), target{Data: c.Data}, patience, func(ctx context.Context, to *client) error {
		var e api.Entry
		if err := to.call(ctx, http.MethodPost, "entry", nil, &e); err != nil {
			return err
		}
		if err := c.show(t, e, func() error { _, err := fmt.Fprintln(t.out, e.URL); return err }); err != nil {
			return err
		}
		if !c.JSON && !c.NoBrowser {
			browse(e.URL)
		}
		_, _ = fmt.Fprintf(t.err, "The link works once, within %d seconds.\n", e.Seconds)
		return nil
	})
}

// browse opens a page in the browser of a desktop. Without a desktop, or without a program
// to ask, the user has the link.
func browse(url string) {
	program := ""
	switch {
	case runtime.GOOS == "darwin":
		program = "open"
	case os.Getenv("DISPLAY") != "" || os.Getenv("WAYLAND_DISPLAY") != "":
		program = "xdg-open"
	default:
		return
	}
	if p, err := exec.LookPath(program); err == nil {
		_ = exec.CommandContext(context.Background(), p, url).Start() //nolint:gosec // the URL is our own
	}
}
