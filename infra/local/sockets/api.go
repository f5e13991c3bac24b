// Package sockets serves WebSocket APIs on this machine. It has the connections of clients and
// runners, and passes each message to the [Routes] of its API. This package knows nothing about
// MCP.
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

// Conn describes a connection, from its upgrade request.
type Conn struct {
	ID          string // in the form of [awsapi.NewID]
	SourceIP    string
	UserAgent   string
	Host        string
	ConnectedAt time.Time
}

// Reply accepts or refuses a connection. A Status from 200 to 299 accepts it, with Protocol as the
// WebSocket subprotocol. Any other Status refuses it, with Body as the response, in JSON.
type Reply struct {
	Status   int
	Protocol string
	Body     []byte
	Opened   func() // called once [API.Post] can send to the connection; may be nil
	Rooms    Rooms  // limits that the caller's connections share; if empty, only the limits of each connection hold
}

// Rooms are limits that several connections share, such as those of one caller. A connection waits
// while there is no room.
type Rooms struct {
	In    Room // bytes of the messages that are read or handled, until their reply is queued
	Out   Room // bytes that wait for clients that read slowly
	Turns Room // number of messages that are read or handled; after 100 ms a message counts no more
}

// Room limits a number of bytes or messages. A [golang.org/x/sync/semaphore.Weighted] is a Room.
type Room interface {
	TryAcquire(n int64) bool
	Acquire(ctx context.Context, n int64) error
	Release(n int64)
}

// unbounded is a Room without a limit.
type unbounded struct{}

func (unbounded) TryAcquire(int64) bool                { return true }
func (unbounded) Acquire(context.Context, int64) error { return nil }
func (unbounded) Release(int64)                        {}

// Routes handle the events of an API's connections. Several goroutines may call their methods at
// once, even for one connection.
type Routes interface {
	// Connect is called before the upgrade is answered. A post to the connection fails until
	// Connect has accepted it.
	Connect(ctx context.Context, c Conn, r *http.Request) Reply
	// Message handles one text message. If reply is not empty, it is sent on the same connection.
	// Message may keep and change data.
	Message(ctx context.Context, c Conn, data []byte) (reply []byte)
	// Disconnect is called after the connection has ended. The arguments code and reason are those
	// of the close frame.
	Disconnect(ctx context.Context, c Conn, code int, reason string)
}

// Config describes one API. Name, Stage, Routes and Limits are required.
type Config struct {
	Name  string // name in logs, and API Gateway's apiId
	Stage string // the one path segment that clients connect to: ws://HOST/<stage>
	Routes
	Limits Limits
	// Opened and Closed are called with the id of each connection. The argument lived is how long
	// it was open. Both may be nil.
	Opened func(conn string)
	Closed func(conn string, lived time.Duration)
	// Logger may be nil.
	Logger *slog.Logger
}

// Limits are the limits of an API and of each of its connections.
type Limits struct {
	Message      int           // bytes of one message, in either direction
	SendBuffer   int           // bytes that may wait for a slow client
	NewPerSecond int           // new connections in any one second
	InWork       int           // messages of one connection that may be handled at once; the API reads no more until one is done
	Idle         time.Duration // longest time without a message in either direction; pings do not count
	Life         time.Duration // longest life of a connection
	Connect      time.Duration // longest time that Connect may take
	Route        time.Duration // longest time that Message and Disconnect may take
}

// Home returns the limits of `dormouse run`. A message may be as long as on AWS; Dormouse never
// pushes a longer one.
func Home() Limits {
	return Limits{
		Message: 128 << 10, SendBuffer: 1 << 20, NewPerSecond: 500, InWork: 256,
		Idle: 24 * time.Hour, Life: 30 * 24 * time.Hour, Connect: storage.ConnectTimeout, Route: 15 * time.Minute,
	}
}

// API is one WebSocket API. ServeHTTP serves its clients, and [API.Post] sends to them.
//
//   - Routes.Connect runs before the upgrade is answered, and can refuse it. Until Connect has
//     accepted the connection, posts to it fail.
//   - Messages of one connection are handled concurrently, and so in any order.
//   - Routes.Disconnect runs after the connection is closed, whichever side closed it.
//   - The API closes a connection with 1009 for a message over the limit, and with 1003 for a
//     binary message. It closes with 1007 for text that is not UTF-8, and with 1001 if the
//     connection is idle or too old. It answers 429 to too many new connections.
type API struct {
	cfg    Config
	limits Limits
	log    *slog.Logger
	// ctx is the context of all routes. It ends when Close stops waiting for them.
	ctx    context.Context
	cancel context.CancelFunc
	// work counts the running handlers, connections and routes.
	work sync.WaitGroup

	mu     sync.Mutex
	closed bool
	conns  map[string]*wsConn
	recent []time.Time // times at which the connections of the last second were opened
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

// ServeHTTP handles a client's upgrade request. It returns when the connection has ended.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.TrimSuffix(r.URL.Path, "/") != "/"+a.cfg.Stage {
		awsapi.Refuse(w, http.StatusForbidden, "Forbidden")
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
		reply = Reply{Status: http.StatusGatewayTimeout, Body: reply.Body} // Connect has returned too late, so its decision does not count
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
	// start comes before the upgrade: a connected client may tell its id to others, which may post
	// to it at once.
	c.start()
	below := &hijacked{ResponseWriter: w}
	// Connect has checked the Origin header, so the library need not.
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

// hijacked is a ResponseWriter that records the connection that Hijack returns.
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

// admit counts a handler in a.work and returns 200, or returns the status that refuses the request. A
// connection that Connect refuses does not count for Limits.NewPerSecond, so that strangers cannot prevent all new
// connections.
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

// register makes a connection available for posts. It returns false if the API is closing; the
// caller must then end the connection.
func (a *API) register(c *wsConn) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.recent = append(a.recent, time.Now())
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
	if a.cfg.Closed != nil {
		a.cfg.Closed(c.ID, time.Since(c.ConnectedAt))
	}
}

func (a *API) find(id string) (*wsConn, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c, ok := a.conns[id]
	return c, ok
}

// cutTime is how long Close waits for routes whose context has ended.
const cutTime = time.Second

// Close refuses new connections and closes the others with 1001. It returns when every route,
// including Disconnect, has returned. If ctx ends first, Close drops the connections, ends the
// context of the routes, and returns the error of ctx. It then waits for the routes for cutTime at
// most.
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
	_ = awsapi.Wait(last, &a.work) // an error would add nothing to err
	return fmt.Errorf("the WebSocket API %s was cut off: %w", a.cfg.Name, err)
}

// close refuses new connections from now on, and returns the open ones.
func (a *API) close() []*wsConn {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	return slices.Collect(maps.Values(a.conns))
}

// asksForWebSocket reports whether a request asks for an upgrade to WebSocket.
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
