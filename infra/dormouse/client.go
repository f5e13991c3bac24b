package dormouse

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

// client is a client of the API for operators. The API is that of an endpoint, or this program
// itself serves it from a store.
type client struct {
	http  *http.Client
	base  string // URL that the paths of requests are added to
	key   string
	where string // name of the data folder or endpoint, for errors
	up    bool   // whether a dormouse run or a stack answers; otherwise this program itself answers from a store
	end   func() // closes the client
	shows []byte // certificate of the endpoint on this machine, in DER; set by the method endpoint

	progress atomic.Pointer[progress] // where the progress of the current call is shown
}

// placed is a [target] for commands that can also read the store themselves, if no dormouse run
// uses the data folder.
type placed struct {
	target
	storeFlag
}

// open returns a client for the target. The caller must call the client's end function.
func (t target) open(ctx context.Context) (*client, error) {
	if t.remote() {
		u, err := url.Parse(t.URL)
		if err != nil || u.Host == "" {
			return nil, failure{exitUsage, fmt.Errorf("--url %q is no URL; want https://HOST", t.URL)}
		}
		base := address(t.URL)
		return &client{http: http.DefaultClient, base: base, key: t.Key, where: base, up: true, end: func() {}}, nil
	}
	transport, key, up, err := local.Control(ctx, t.folder())
	if err != nil {
		return nil, err
	}
	if !up {
		data, err := t.elsewhere(ctx)
		if err != nil {
			return nil, err
		}
		if data != "" {
			if t.says != nil && exists("servers.json") {
				_, _ = fmt.Fprintf(t.says, "no dormouse run is up here; the only one answers: --data %s\n", quoted(data))
			}
			return target{Data: data}.open(ctx)
		}
		return nil, notUp(ctx, t.folder())
	}
	return &client{http: &http.Client{Transport: transport}, base: "http://local", key: key, where: t.folder(), up: true, end: transport.CloseIdleConnections}, nil
}

// open returns a client for the target. If no dormouse run uses the data folder, the client reads
// the store instead.
func (p placed) open(ctx context.Context) (*client, error) {
	if p.Store == "" {
		c, err := p.target.open(ctx)
		if !isNotUp(err) {
			return c, err
		}
		if !exists(p.folder()) {
			return nil, err
		}
	}
	store, err := openStore(ctx, p.Store, p.folder())
	if err != nil {
		return nil, err
	}
	pipes := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	server := &http.Server{Handler: local.Stored(store, p.Store, p.folder())} //nolint:gosec // this program is its only client
	go func() { _ = server.Serve(pipes) }()
	return &client{
		http: &http.Client{Transport: &http.Transport{DialContext: pipes.dial}}, base: "http://local", where: cmp.Or(p.Store, p.folder()),
		end: func() { _, _ = server.Close(), store.Close() },
	}, nil
}

// use opens a client with place.open, passes it to fn, and closes it. The argument limit is the
// time limit for all three; 0 means none.
func use(ctx context.Context, place interface {
	open(context.Context) (*client, error)
}, limit time.Duration, fn func(context.Context, *client) error,
) error {
	if limit > 0 {
		limited, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		ctx = limited
	}
	c, err := place.open(ctx)
	if err != nil {
		return err
	}
	defer c.end()
	return fn(ctx, c)
}

// isNotUp reports whether an error says that no dormouse run uses the data folder, or that no
// endpoint answers.
func isNotUp(err error) bool {
	var f failure
	return errors.As(err, &f) && f.code == exitNotUp
}

// pipeListener is a listener that only this process can connect to.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (l *pipeListener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case l.conns <- far:
		return near, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Accept implements net.Listener.
func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. It is called once.
func (l *pipeListener) Close() error {
	close(l.closed)
	return nil
}

// Addr implements net.Listener.
func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "inside", Net: "unix"} }

// call sends a request to a route of the API, and decodes the response into out. in and out may be
// nil.
func (c *client) call(ctx context.Context, method, path string, in, out any) error {
	return c.ask(ctx, method, api.Prefix+path, in, out)
}

// ask is like call, but takes a full path.
func (c *client) ask(ctx context.Context, method, path string, in, out any) error {
	body, err := c.send(ctx, method, path, in)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(body).Decode(out); err != nil {
		return fmt.Errorf("%s did not answer as expected: %w", c.where, err)
	}
	return nil
}

// stream sends a request to a route of the API, and returns the body of a response with status
// 200.
func (c *client) stream(ctx context.Context, method, path string, in any) (io.ReadCloser, error) {
	return c.send(ctx, method, api.Prefix+path, in)
}

// send is like stream, but takes a full path.
func (c *client) send(ctx context.Context, method, path string, in any) (io.ReadCloser, error) {
	var text []byte
	if in != nil {
		var err error
		if text, err = json.Marshal(in); err != nil {
			return nil, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	res, err := c.http.Do(req)
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		return nil, context.Cause(ctx) // such as "interrupt signal received"
	}
	if err != nil {
		return nil, failure{exitNotUp, fmt.Errorf("nothing answers at %s: %w", c.where, err)}
	}
	if res.StatusCode == http.StatusOK {
		return res.Body, nil
	}
	defer func() { _ = res.Body.Close() }()
	return nil, c.refused(res)
}

func (c *client) refused(res *http.Response) error {
	var f api.Failure
	if err := json.NewDecoder(io.LimitReader(res.Body, 1<<20)).Decode(&f); err != nil || f.Error.Message == "" {
		return stranger{c.where, res.Status}
	}
	if res.StatusCode == http.StatusUnauthorized && c.key == "" {
		return errors.New(f.Error.Message + " (--key, or DORMOUSE_KEY)")
	}
	return refusal{f.Error.Code, f.Error.Message}
}

// stranger is the error for a response that does not come from the API.
type stranger struct{ where, status string }

func (s stranger) Error() string {
	return fmt.Sprintf("%s answers %s: is it a dormouse of this version?", s.where, s.status)
}

// refusal is an error response of the API, with the API's code.
type refusal struct{ code, message string }

func (r refusal) Error() string { return r.message }

// forbidden is the code of a refusal if the key's role does not permit the request.
const forbidden = "forbidden"

// isCode reports whether an error is a refusal with this code.
func isCode(err error, code string) bool {
	var r refusal
	return errors.As(err, &r) && r.code == code
}

func (c *client) servers(ctx context.Context) ([]api.Server, error) {
	all, _, err := c.serversFile(ctx)
	return all, err
}

// serversFile returns the servers in a machine's servers file, including rejected ones. The result
// notes has other remarks about the file.
func (c *client) serversFile(ctx context.Context) (all []api.Server, notes []string, err error) {
	var answer struct {
		Servers []api.Server
		Notes   []string
	}
	err = c.call(ctx, http.MethodGet, "servers", nil, &answer)
	return answer.Servers, answer.Notes, err
}

func (c *client) server(ctx context.Context, name string) (api.Server, error) {
	all, err := c.servers(ctx)
	if err != nil {
		return api.Server{}, err
	}
	return serverOf(all, name)
}

// mistyped returns an error if there is no server of this name. A name for which a search has found
// records is accepted, because a removed server may have left data. If the client only reads a
// store, mistyped returns nil: a store does not know which servers there are.
func (c *client) mistyped(ctx context.Context, server string, found int) error {
	if server == "" || found > 0 || !c.up {
		return nil
	}
	_, err := c.server(ctx, server)
	return err
}

func serverOf(all []api.Server, name string) (api.Server, error) {
	return choose("server", name, all, func(s api.Server) string { return s.Name })
}

// sessions lists the sessions that a query such as server=NAME selects, in order of id. Unless
// whole is set, it lists only the first onAScreen, and the result more is true if there are others.
func (c *client) sessions(ctx context.Context, query url.Values, whole bool) (list []api.Session, more bool, err error) {
	list = []api.Session{}
	query.Set("limit", strconv.Itoa(onAScreen))
	if whole {
		query.Set("limit", "1000")
	}
	for {
		var page api.Sessions
		if err := c.call(ctx, http.MethodGet, "sessions?"+query.Encode(), nil, &page); err != nil {
			return nil, false, err
		}
		list = append(list, page.Sessions...)
		if page.Next == "" || !whole {
			return list, page.Next != "", nil
		}
		query.Set("after", page.Next)
	}
}

// onAScreen is how many sessions a command lists without --json.
const onAScreen = 500
