package local

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"

	"github.com/dormouse-mcp/dormouse/infra/local/datafolder"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

// control serves the API for operators on the control socket.
type control struct{ *machine }

// ServeHTTP implements http.Handler.
func (c control) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o := c.functions.Operators()
	o.Caller, o.Info.URL = api.Owner(c.folder.Key()), c.public.address(0)
	if c.public.shows != nil {
		o.Info.Certificate = c.public.shows()
	}
	o.Entry = func(ctx context.Context) (api.Entry, error) { return c.console.Entry(ctx, c.public.address(0)) }
	o.Meter = nil // AWS has no such socket, so its requests are not billed
	api.New(o).ServeHTTP(w, r)
}

// Control returns a transport to the control socket of the Run that uses a data folder, and the key
// that requests must carry. The transport ignores the host in a URL. The result up is false if no
// Run uses the folder.
func Control(ctx context.Context, data string) (to *http.Transport, key string, up bool, err error) {
	socket, key, err := datafolder.Control(data)
	if errors.Is(err, os.ErrNotExist) {
		return nil, "", false, nil // no Run ever used the folder
	}
	if err != nil {
		return nil, "", false, err
	}
	dial := func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}
	c, err := dial(ctx)
	if err != nil {
		return nil, "", false, ctx.Err() // unless ctx has ended, nobody listens
	}
	_ = c.Close()
	return &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }}, key, true, nil
}
