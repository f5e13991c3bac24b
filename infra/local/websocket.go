package local

import (
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
)

// WebSocketConfig describes one WebSocket API with the routes $connect, $default
// (with a route response) and $disconnect, all integrated with one function.
type WebSocketConfig struct {
	// Name is the API's id (requestContext.apiId) and its name in logs.
	Name string
	// Stage is the one path segment clients connect to: ws://HOST/<stage>.
	Stage string
	// Function runs all three routes by way of Invoker.
	Function string
	Invoker  Invoker
	// Limits: a zero field has API Gateway's own value.
	Limits WebSocketLimits
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

// WebSocketLimits are API Gateway's, here as fields so that a test can shorten
// them.
type WebSocketLimits struct {
	Message      int           // bytes of one message, either way; 131,072
	Frame        int           // bytes of payload of one WebSocket frame, either way; 32,768
	SendBuffer   int           // bytes waiting for a slow client; 1 MiB (AWS does not say)
	NewPerSecond int           // new connections in any one second; 500
	Idle         time.Duration // without a message in either direction; 10 min. Pings do not count.
	Life         time.Duration // of a connection; 2 h
	Integration  time.Duration // a function has to answer within; 29 s
}

func (l WebSocketLimits) withDefaults() WebSocketLimits {
	l.Message = orElse(l.Message, 128<<10)
	l.Frame = orElse(l.Frame, 32<<10)
	l.SendBuffer = orElse(l.SendBuffer, 1<<20)
	l.NewPerSecond = orElse(l.NewPerSecond, 500)
	l.Idle = orElse(l.Idle, 10*time.Minute)
	l.Life = orElse(l.Life, 2*time.Hour)
	l.Integration = orElse(l.Integration, 29*time.Second)
	return l
}

func orElse[T int | time.Duration](v, standard T) T {
	if v <= 0 {
		return standard
	}
	return v
}

// Shuffle makes the disorder of real invocations visible: each message waits for a
// time between 0 and MaxDelay, drawn in the order of arrival from Seed.
type Shuffle struct {
	Seed     uint64
	MaxDelay time.Duration
}

// WebSocketUsage is what a bill is made of, counted since the API was made.
type WebSocketUsage struct {
	Connections   int64         // accepted so far
	Open          int64         // open now
	ConnectedTime time.Duration // of all connections together, also of the open ones
	MessagesIn    int64         // from clients, in units of 32 KB, each begun one counted
	MessagesOut   int64         // to clients, as above
	Invocations   int64         // of the function, all routes
}

const meterUnit = 32 << 10

// WebSocketAPI is an API Gateway WebSocket API on this machine. It serves the
// clients itself (ServeHTTP) and gives functions the @connections API
// ([WebSocketAPI.Connections]).
//
//   - $connect runs before the upgrade is answered and can refuse it by a status
//     other than 2xx. A post to the connection before that is answered 410.
//   - Every message is its own invocation of $default, in a goroutine of its own:
//     two messages of one connection are in no order. What a route answers with 2xx
//     and a body is sent back on the connection; a failure is sent as API Gateway's
//     "Internal server error" message.
//   - $disconnect runs after the connection is closed, whoever closed it.
//   - Over a limit: frame or message, close 1009; binary message, close 1003; text
//     that is not UTF-8, close 1007; idle or too old, close 1001; too many new
//     connections, 429.
//
// Authorizers, custom routes, stage variables and models are not imitated.
type WebSocketAPI struct {
	cfg    WebSocketConfig
	limits WebSocketLimits
	log    *slog.Logger
	// ctx is that of all invocations; it ends when Close may wait no longer.
	ctx    context.Context
	cancel context.CancelFunc
	// work is the handlers, connections and invocations under way.
	work sync.WaitGroup

	mu     sync.Mutex
	closed bool
	conns  map[string]*wsConn
	recent []time.Time // starts of the connections of the last second
	usage  WebSocketUsage
	dice   *rand.Rand
}

var _ http.Handler = (*WebSocketAPI)(nil)

// NewWebSocketAPI returns an API that serves nobody yet. An error says which field
// of cfg is missing.
func NewWebSocketAPI(cfg WebSocketConfig) (*WebSocketAPI, error) {
	switch {
	case cfg.Invoker == nil || cfg.Function == "":
		return nil, errors.New("a WebSocket API needs a function and an invoker for it")
	case cfg.Stage == "" || strings.Contains(cfg.Stage, "/"):
		return nil, fmt.Errorf("the stage of a WebSocket API must be one path segment, not %q", cfg.Stage)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	a := &WebSocketAPI{
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
func (a *WebSocketAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.TrimSuffix(r.URL.Path, "/") != "/"+a.cfg.Stage {
		refuse(w, http.StatusForbidden, "Forbidden")
		return
	}
	if !asksForWebSocket(r) {
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "websocket")
		refuse(w, http.StatusUpgradeRequired, "Upgrade Required")
		return
	}
	if status := a.admit(time.Now()); status != http.StatusOK {
		refuse(w, status, http.StatusText(status))
		return
	}
	defer a.work.Done()

	c := newWSConn(a, r)
	event := c.connectEvent(r)
	answer, err := a.invoke(event)
	if status := connectStatus(answer, err); status != http.StatusOK {
		a.log.Info("a WebSocket connection was refused", "connection", c.id, "status", status, "error", err)
		refuseConnect(w, status, event)
		return
	}
	if protocol := answer.header("Sec-WebSocket-Protocol"); protocol != "" {
		w.Header().Set("Sec-WebSocket-Protocol", protocol)
	}
	// Before the client can know that it is connected, and tell others.
	c.open()
	guarded := &guardedWriter{ResponseWriter: w, limit: a.limits.Frame}
	// The origin is the function's business: API Gateway passes every one on.
	c.ws, err = websocket.Accept(guarded, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		a.log.Info("a WebSocket connection broke off while it was opened", "connection", c.id, "error", err)
		c.shut(cutOff)
	} else {
		c.serve(guarded.conn)
	}
	c.ended()
}

// admit counts a new connection in, or says with which status to turn it away.
func (a *WebSocketAPI) admit(now time.Time) int {
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
func (a *WebSocketAPI) register(c *wsConn) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.usage.Connections++
	a.conns[c.id] = c
	if a.cfg.Opened != nil {
		a.cfg.Opened(c.id)
	}
	return !a.closed
}

func (a *WebSocketAPI) unregister(c *wsConn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.conns, c.id)
	lived := time.Since(c.connectedAt)
	a.usage.ConnectedTime += lived
	if a.cfg.Closed != nil {
		a.cfg.Closed(c.id, lived)
	}
}

func (a *WebSocketAPI) find(id string) (*wsConn, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c, ok := a.conns[id]
	return c, ok
}

// delay is how long the next message has to wait.
func (a *WebSocketAPI) delay() time.Duration {
	if a.cfg.Shuffle == nil || a.cfg.Shuffle.MaxDelay <= 0 {
		return 0
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return time.Duration(a.dice.Int64N(int64(a.cfg.Shuffle.MaxDelay) + 1))
}

func (a *WebSocketAPI) meter(count func(*WebSocketUsage)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	count(&a.usage)
}

// Usage returns the counters as they are now.
func (a *WebSocketAPI) Usage() WebSocketUsage {
	a.mu.Lock()
	defer a.mu.Unlock()
	u := a.usage
	u.Open = int64(len(a.conns))
	for _, c := range a.conns {
		u.ConnectedTime += time.Since(c.connectedAt)
	}
	return u
}

// Close refuses new connections, closes all with 1001 and returns when the last
// invocation, the $disconnect ones included, has ended. When ctx ends first, it
// cuts the connections, waits for no function any more and returns ctx's error.
func (a *WebSocketAPI) Close(ctx context.Context) error {
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
	<-done
	return fmt.Errorf("the WebSocket API %s was cut off: %w", a.cfg.Name, ctx.Err())
}

// close turns new connections away and returns the open ones.
func (a *WebSocketAPI) close() []*wsConn {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	return slices.Collect(maps.Values(a.conns))
}
