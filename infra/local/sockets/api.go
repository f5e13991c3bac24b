// Package sockets serves WebSocket APIs of this machine: it holds the connections of
// clients and of runners, and hands each message to the routes of its API. The routes are
// Dormouse's handlers in this process, or functions behind API Gateway's events (package
// apigw). It knows nothing of MCP.
package sockets

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/dormouse-mcp/dormouse/infra/local/awsapi"
)

// Conn is what is known of a connection from its upgrade request.
type Conn struct {
	ID          string // as [awsapi.NewID]
	SourceIP    string
	UserAgent   string
	Host        string
	ConnectedAt time.Time
}

// Reply decides on a connection. A Status from 200 to 299 accepts it, with Protocol as
// subprotocol; any other refuses it, with Body (JSON) as reason.
type Reply struct {
	Status   int
	Protocol string
	Body     []byte
	Opened   func() // is called once the connection can be posted to; may be nil
}

// Routes handle what happens on the connections of an API. Their methods are called by
// several goroutines at once, also for one connection.
type Routes interface {
	// Connect is called before the upgrade is answered. Nothing can be posted to the
	// connection until it has returned.
	Connect(ctx context.Context, c Conn, r *http.Request) Reply
	// Message takes one text message. A reply that is not empty is sent back on the
	// same connection. The routes keep data.
	Message(ctx context.Context, c Conn, data []byte) (reply []byte)
	// Disconnect is called after the connection has ended, with the code and reason of
	// the close frame.
	Disconnect(ctx context.Context, c Conn, code int, reason string)
}

// Config describes one API. Name, Stage and Routes are needed.
type Config struct {
	Name  string // in logs, and as API Gateway's apiId
	Stage string // the one path segment that clients connect to: ws://HOST/<stage>
	Routes
	// Limits: a zero field has the value of [AWS].
	Limits Limits
	// DropDisconnect leaves out every $disconnect, which AWS does not guarantee.
	DropDisconnect bool
	// Shuffle, if set, delays each message's invocation by chance.
	Shuffle *Shuffle
	// Opened and Closed are told of each connection, and of how long it was open; may
	// be nil.
	Opened func(conn string)
	Closed func(conn string, lived time.Duration)
	// Logger may be nil.
	Logger *slog.Logger
}

// Limits bound the connections of an API.
type Limits struct {
	Message      int           // bytes of one message, either way
	Frame        int           // bytes of payload of one WebSocket frame, either way
	SendBuffer   int           // bytes that wait for a slow client
	NewPerSecond int           // new connections in any one second
	InWork       int           // messages of one connection that are handled at once; more are not read
	Idle         time.Duration // without a message in either direction; pings do not count
	Life         time.Duration // of a connection
	Route        time.Duration // a route has to return within
}

// AWS is API Gateway's limits; it does not say how large its buffer is, and hands on
// any number of messages at once.
func AWS() Limits {
	return Limits{
		Message: 128 << 10, Frame: 32 << 10, SendBuffer: 1 << 20, NewPerSecond: 500, InWork: 1 << 20,
		Idle: 10 * time.Minute, Life: 2 * time.Hour, Route: 29 * time.Second,
	}
}

// Home is the limits of `dormouse run`. Messages are bounded as on AWS, because the log
// cuts what it pushes to that size.
func Home() Limits {
	return Limits{
		Message: 128 << 10, Frame: 128 << 10, SendBuffer: 1 << 20, NewPerSecond: 500, InWork: 256,
		Idle: 24 * time.Hour, Life: 30 * 24 * time.Hour, Route: 15 * time.Minute,
	}
}

func (l Limits) withDefaults() Limits {
	aws := AWS()
	l.Message = cmp.Or(l.Message, aws.Message)
	l.Frame = cmp.Or(l.Frame, aws.Frame)
	l.SendBuffer = cmp.Or(l.SendBuffer, aws.SendBuffer)
	l.NewPerSecond = cmp.Or(l.NewPerSecond, aws.NewPerSecond)
	l.InWork = cmp.Or(l.InWork, aws.InWork)
	l.Idle = cmp.Or(l.Idle, aws.Idle)
	l.Life = cmp.Or(l.Life, aws.Life)
	l.Route = cmp.Or(l.Route, aws.Route)
	return l
}

// Shuffle makes the disorder of real invocations visible: each message waits for a
// time between 0 and MaxDelay, drawn in the order of arrival from Seed.
type Shuffle struct {
	Seed     uint64
	MaxDelay time.Duration
}

// Usage is what a bill is made of, counted since the API was made.
type Usage struct {
	Connections   int64         // accepted so far
	Open          int64         // open now
	ConnectedTime time.Duration // of all connections together, also of the open ones
	MessagesIn    int64         // from clients, in units of 32 KB, each begun one counted
	MessagesOut   int64         // to clients, as above
}

const meterUnit = 32 << 10

// API serves one WebSocket API: its clients (ServeHTTP), and those that post to them
// ([API.Post], or over HTTP [Connections]).
//
//   - Routes.Connect runs before the upgrade is answered and can refuse it. A post to
//     the connection before that finds no connection.
//   - Every message is handled in a goroutine of its own: two messages of one
//     connection are in no order.
//   - Routes.Disconnect runs after the connection is closed, whoever closed it.
//   - Over a limit: frame or message, close 1009; binary message, close 1003; text
//     that is not UTF-8, close 1007; idle or too old, close 1001; too many new
//     connections, 429.
type API struct {
	cfg    Config
	limits Limits
	log    *slog.Logger
	// ctx is that of all routes; it ends when Close may wait no longer.
	ctx    context.Context
	cancel context.CancelFunc
	// work is the handlers, connections and routes under way.
	work sync.WaitGroup

	mu     sync.Mutex
	closed bool
	conns  map[string]*wsConn
	recent []time.Time // starts of the connections of the last second
	usage  Usage
	dice   *rand.Rand
}

var _ http.Handler = (*API)(nil)

// New returns an API that serves nobody yet. An error says which field
// of cfg is missing.
func New(cfg Config) (*API, error) {
	switch {
	case cfg.Routes == nil:
		return nil, errors.New("a WebSocket API needs routes")
	case cfg.Stage == "" || strings.Contains(cfg.Stage, "/"):
		return nil, fmt.Errorf("the stage of a WebSocket API must be one path segment, not %q", cfg.Stage)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	a := &API{
		cfg:    cfg,
		limits: cfg.Limits.withDefaults(),
		log:    cfg.Logger.With("api", cfg.Name),
		conns:  map[string]*wsConn{},
	}
	if cfg.Shuffle != nil {
		a.dice = rand.New(rand.NewPCG(cfg.Shuffle.Seed, 0))
	}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	return a, nil
}

// ServeHTTP takes a client's upgrade request and returns when its connection has
// ended.
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
	ctx, cancel := context.WithTimeout(a.ctx, a.limits.Route)
	reply := a.cfg.Connect(ctx, c.Conn, r)
	cancel()
	if reply.Status < 200 || reply.Status > 299 {
		a.log.Info("a WebSocket connection was refused", "connection", c.ID, "status", reply.Status)
		awsapi.JSON(w, reply.Status, reply.Body)
		return
	}
	if reply.Protocol != "" {
		w.Header().Set("Sec-WebSocket-Protocol", reply.Protocol)
	}
	// Before the client can know that it is connected, and tell others.
	c.open()
	guarded := &guardedWriter{ResponseWriter: w, limit: a.limits.Frame}
	// The origin is the routes' business.
	var err error
	c.ws, err = websocket.Accept(guarded, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		a.log.Info("a WebSocket connection broke off while it was opened", "connection", c.ID, "error", err)
		c.shut(cutOff)
	} else {
		if reply.Opened != nil {
			reply.Opened()
		}
		c.serve(guarded.conn)
	}
	c.ended()
}

// admit counts a new connection in, or says with which status to turn it away.
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
	a.recent = append(a.recent, now)
	a.work.Add(1)
	return http.StatusOK
}

// register makes an open connection known to posts; false means that the API is
// being closed and the connection must not live.
func (a *API) register(c *wsConn) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
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

// delay is how long the next message has to wait.
func (a *API) delay() time.Duration {
	if a.cfg.Shuffle == nil || a.cfg.Shuffle.MaxDelay <= 0 {
		return 0
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return time.Duration(a.dice.Int64N(int64(a.cfg.Shuffle.MaxDelay) + 1))
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

// Close refuses new connections, closes all with 1001 and returns when the last
// route, the Disconnect ones included, has returned. When ctx ends first, it
// cuts the connections, ends the context of the routes and returns ctx's error, a
// second later at most if routes do not return.
func (a *API) Close(ctx context.Context) error {
	for _, c := range a.close() {
		c.shut(goingAway)
	}
	defer a.cancel()

	done := make(chan struct{})
	go func() {
		a.work.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	a.cancel()
	for _, c := range a.close() {
		c.cut()
	}
	select {
	case <-done:
	case <-time.After(cutTime):
	}
	return fmt.Errorf("the WebSocket API %s was cut off: %w", a.cfg.Name, ctx.Err())
}

// close turns new connections away and returns the open ones.
func (a *API) close() []*wsConn {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	return slices.Collect(maps.Values(a.conns))
}

// asksForWebSocket says whether the upgrade can be made, so that no route is asked about
// one that cannot.
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
