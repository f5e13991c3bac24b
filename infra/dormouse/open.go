package dormouse

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"runtime"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
	"github.com/dormouse-mcp/dormouse/shared/operate/console"
)

type openCommand struct {
	target
	printing
}

// Run prints a link to the console. At a terminal of a desktop it also opens the browser.
func (c *openCommand) Run(t *terminal) error {
	return use(context.Background(), c, patience, func(ctx context.Context, to *client) error {
		e, err := c.entry(ctx, to)
		if err != nil {
			return err
		}
		if err := c.show(t, e, func() error { _, err := fmt.Fprintln(t.out, e.URL); return err }); err != nil {
			return err
		}
		if _, shown := t.out.(cleaned); shown && !c.JSON {
			browse(e.URL)
		}
		_, _ = fmt.Fprintf(t.err, "The link works once, within %d seconds.\n", e.Seconds)
		return nil
	})
}

// entry returns a link to the console. Without --url the link signs in the user of this machine,
// and with --url the holder of the key.
func (c *openCommand) entry(ctx context.Context, to *client) (e api.Entry, err error) {
	if !c.remote() {
		err = to.call(ctx, http.MethodPost, "entry", nil, &e)
		return e, err
	}
	err = to.ask(ctx, http.MethodPost, console.EntryPath, nil, &e)
	var s stranger
	if errors.As(err, &s) || isCode(err, string(storage.NotFound)) {
		return e, fmt.Errorf("%s has no console: dormouse run and a stack on AWS serve one", to.where)
	}
	e.URL = to.base + e.URL
	return e, err
}

// browse opens a page in the browser of a desktop.
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
