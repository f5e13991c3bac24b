// Package sockets serves WebSocket APIs on this machine. It holds the connections of
// clients and runners, and passes each message to the routes of its API. The routes are
// Dormouse's handlers in this process, or functions behind API Gateway's events (package
// apigw). The package knows nothing of MCP.
package sockets

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/dormouse-mcp/dormouse/infra/local/awsapi"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Conn describes a connection by the facts of its upgrade request.
type Conn struct {
	ID          string // as [awsapi.NewID]
	SourceIP    string
	UserAgent   string
	Host        string
	ConnectedAt time.Time
}

// Reply accepts or refuses a connection. A Status from 200 to 299 accepts it, with
// Protocol as subprotocol. Any other Status refuses it, with Body (JSON) as reason.
type Reply struct {
	Status   int
	Protocol string
	Body     []byte
	Opened   func() // called when routes can post to the connection; may be nil
	Rooms    Rooms  // of the caller; without them only the limits of the connection hold
}

// Rooms bound what several connections do together, such as those of one caller. A
// connection waits while there is no room.
type Rooms struct {
	In    Room // bytes of the messages that are read or handled, until their reply is queued
	Out   Room // bytes that wait for clients that read slowly
	Turns Room // messages that are read or handled, for their first 100 ms
}

// Room bounds bytes or messages, as a [golang.org/x/sync/semaphore.Weighted] does.
type Room interface {
	TryAcquire(n int64) bool
	Acquire(ctx context.Context, n int64) error
	Release(n int64)
}

// unbounded always has room.
type unbounded struct{}

func (unbounded) TryAcquire(int64) bool                { return true }
func (unbounded) Acquire(context.Context, int64) error { return nil }
func (unbounded) Release(int64)                        {}

// Routes handle the events of an API's connections. Several goroutines call their
// methods at once, even for one connection.
type Routes interface {
	// Connect is called before the upgrade is answered. Posts to the connection fail
	// until Connect has returned.
	Connect(ctx context.Context, c Conn, r *http.Request) Reply
	// Message handles one text message. A reply that is not empty goes back on the same
	// connection. The routes own data.
	Message(ctx context.Context, c Conn, data []byte) (reply []byte)
	// Disconnect is called after the connection has ended, with the code and reason of
	// the close frame.
	Disconnect(ctx context.Context, c Conn, code int, reason string)
}

// Config describes one API. Name, Stage, Routes and Limits are required.
type Config struct {
	Name  string // in logs, and as API Gateway's apiId
	Stage string // the one path segment that clients connect to: ws://HOST/<stage>
	Routes
	// Elsewhere is what a request for another path is told, with status 403. If it is
	// empty, that is "Forbidden", as at API Gateway.
	Elsewhere string
	Limits    Limits // limits of the connections, such as [Home]
	// Opened and Closed are called for each connection; Closed also gets how long it was
	// open. Both may be nil.
	Opened func(conn string)
	Closed func(conn string, lived time.Duration)
	// Logger may be nil.
	Logger *slog.Logger
}

// Limits limit the connections of an API.
type Limits struct {
	Message      int           // bytes of one message, either way
	SendBuffer   int           // bytes that wait for a slow client
	NewPerSecond int           // new connections in any one second
	InWork       int           // how many messages of one connection are handled at once; the API does not read more
	Idle         time.Duration // longest time without a message in either direction; pings do not count
	Life         time.Duration // longest life of a connection
	Connect      time.Duration // longest time of the Connect route
	Route        time.Duration // longest time of any other route
}

// Home returns the limits of `dormouse run`. A message may be as long as on AWS,
// because the log cuts pushed messages to that size.
func Home() Limits {
	return Limits{
		Message: 128 << 10, SendBuffer: 1 << 20, NewPerSecond: 500, InWork: 256,
		Idle: 24 * time.Hour, Life: 30 * 24 * time.Hour, Connect: storage.ConnectTimeout, Route: 15 * time.Minute,
	}
}

// Usage holds the numbers for a bill, counted since the API was created.
type Usage struct {
	Connections   int64         // accepted so far
	Open          int64         // open now
	ConnectedTime time.Duration // time of all connections together, including the open ones
	MessagesIn    int64         // messages from clients, in units of 32 KB; a unit that was begun counts
	MessagesOut   int64         // messages to clients, in the same units
}

const meterUnit = 32 << 10

// API serves one WebSocket API: its clients (ServeHTTP), and the callers that post to them
// ([API.Post]).
//
//   - Routes.Connect runs before the upgrade is answered and can refuse it. A post to
//     the connection before that finds no connection.
//   - Messages are handled at the same time, so two messages of one connection may be
//     handled in any order.
//   - Routes.Disconnect runs after the connection is closed, whichever side closed it.
//   - Over a limit: message, close 1009; binary message, close 1003; text
//     that is not UTF-8, close 1007; idle or too old, close 1001; too many new
//     connections, 429.
type API struct {
	cfg    Config
	limits Limits
	log    *slog.Logger
	// ctx is the context of all routes. It ends when Close must not wait any longer.
	ctx    context.Context
	cancel context.CancelFunc
	// work counts the handlers, connections and routes that are running.
	work sync.WaitGroup

	mu     sync.Mutex
	closed bool
	conns  map[string]*wsConn
	recent []time.Time // when the connections of the last second were opened
	usage  Usage
}

var _ http.Handler = (*API)(nil)

// New returns an API without connections.
func New(cfg Config) *API {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	a := &API{
		cfg:    cfg,
		limits: cfg.Limits,
		log:    cfg.Logger.With("api", cfg.Name),
		conns:  map[string]*wsConn{},
	}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	return a
}

// ServeHTTP handles a client's upgrade request and returns when the connection has ended.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.TrimSuffix(r.URL.Path, "/") != "/"+a.cfg.Stage {
		awsapi.Refuse(w, http.StatusForbidden, cmp.Or(a.cfg.Elsewhere, "Forbidden"))
		return
	}
	if !asksForWebSocket(r) {
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "websocket")
		awsapi.Refuse(w, http.StatusUpgradeRequired, "Upgrade Required")
		return
	}
	if status := a.admit(time.Now()); status != http.StatusOK {
		awsapi.Refuse(w, status, http.StatusText(status))
		return
	}
	defer a.work.Done()

	c := newWSConn(a, r)
	ctx, cancel := context.WithTimeout(a.ctx, a.limits.Connect)
	reply := a.cfg.Connect(ctx, c.Conn, r)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		reply = Reply{Status: http.StatusGatewayTimeout, Body: reply.Body} // the reply came too late, whatever it says
	}
	cancel()
	if reply.Status < 200 || reply.Status > 299 {
		a.log.Info("a WebSocket connection was refused", "connection", c.ID, "status", reply.Status)
		awsapi.JSON(w, reply.Status, reply.Body)
		return
	}
	if reply.Protocol != "" {
		w.Header().Set("Sec-WebSocket-Protocol", reply.Protocol)
	}
	c.rooms = Rooms{
		In: cmp.Or[Room](reply.Rooms.In, unbounded{}), Out: cmp.Or[Room](reply.Rooms.Out, unbounded{}),
		Turns: cmp.Or[Room](reply.Rooms.Turns, unbounded{}),
	}
	// start comes before the upgrade: a connected client may tell its id to other callers,
	// which may post at once.
	c.start()
	below := &hijacked{ResponseWriter: w}
	// The routes check the origin.
	var err error
	c.ws, err = websocket.Accept(below, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		a.log.Info("a WebSocket connection broke off while it was opened", "connection", c.ID, "error", err)
		c.shut(cutOff)
	} else {
		if reply.Opened != nil {
			reply.Opened()
		}
		c.serve(below.conn)
	}
	c.ended()
}

// hijacked is a ResponseWriter that keeps the connection that was taken from it.
type hijacked struct {
	http.ResponseWriter
	conn net.Conn
}

// Hijack implements [http.Hijacker].
func (h *hijacked) Hijack() (conn net.Conn, rw *bufio.ReadWriter, err error) {
	conn, rw, err = http.NewResponseController(h.ResponseWriter).Hijack()
	h.conn = conn
	return conn, rw, err
}

// admit counts a handler, or returns the status that refuses it. A connection that the routes
// refuse takes no place of the new ones: strangers could take all.
func (a *API) admit(now time.Time) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return http.StatusServiceUnavailable
	}
	a.recent = slices.DeleteFunc(a.recent, func(t time.Time) bool { return now.Sub(t) >= time.Second })
	if len(a.recent) >= a.limits.NewPerSecond {
		return http.StatusTooManyRequests
	}
	a.work.Add(1)
	return http.StatusOK
}

// register makes an open connection available for posts. It returns false if the API is
// closing; the connection must then end.
func (a *API) register(c *wsConn) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.recent = append(a.recent, time.Now())
	a.usage.Connections++
	a.conns[c.ID] = c
	if a.cfg.Opened != nil {
		a.cfg.Opened(c.ID)
	}
	return !a.closed
}

func (a *API) unregister(c *wsConn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.conns, c.ID)
	lived := time.Since(c.ConnectedAt)
	a.usage.ConnectedTime += lived
	if a.cfg.Closed != nil {
		a.cfg.Closed(c.ID, lived)
	}
}

func (a *API) find(id string) (*wsConn, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c, ok := a.conns[id]
	return c, ok
}

func (a *API) meter(count func(*Usage)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	count(&a.usage)
}

// Usage returns the counters as they are now.
func (a *API) Usage() Usage {
	a.mu.Lock()
	defer a.mu.Unlock()
	u := a.usage
	u.Open = int64(len(a.conns))
	for _, c := range a.conns {
		u.ConnectedTime += time.Since(c.ConnectedAt)
	}
	return u
}

// cutTime is how long routes may take to return after their context has ended.
const cutTime = time.Second

// Close refuses new connections, closes all others with 1001, and returns when every
// route, including Disconnect, has returned. If ctx ends first, Close cuts the
// connections, ends the context of the routes and returns ctx's error. It waits at
// most another second for the routes.
func (a *API) Close(ctx context.Context) error {
	for _, c := range a.close() {
		c.shut(goingAway)
	}
	defer a.cancel()
	err := awsapi.Wait(ctx, &a.work)
	if err == nil {
		return nil
	}
	a.cancel()
	for _, c := range a.close() {
		c.cut()
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), cutTime)
	defer cancel()
	_ = awsapi.Wait(last, &a.work) // an error says only what the error below says already
	return fmt.Errorf("the WebSocket API %s was cut off: %w", a.cfg.Name, err)
}

// close refuses new connections from now on and returns the open ones.
func (a *API) close() []*wsConn {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	return slices.Collect(maps.Values(a.conns))
}

// asksForWebSocket reports whether the upgrade is possible. Other requests do not reach
// the routes.
func asksForWebSocket(r *http.Request) bool {
	return r.Method == http.MethodGet && r.ProtoAtLeast(1, 1) &&
		hasToken(r.Header, "Connection", "upgrade") && hasToken(r.Header, "Upgrade", "websocket") &&
		r.Header.Get("Sec-WebSocket-Version") == "13" && r.Header.Get("Sec-WebSocket-Key") != ""
}

func hasToken(h http.Header, name, token string) bool {
	for _, line := range h.Values(name) {
		for t := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(t), token) {
				return true
			}
		}
	}
	return false
}
