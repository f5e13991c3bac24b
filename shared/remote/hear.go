package remote

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// subscribe repeats the subscriptions of a session that a legacy server has not known
// before.
func subscribe(ctx context.Context, x *exchange) error {
	if x.link.Era != eraHTTP {
		return nil
	}
	for _, uri := range x.r.Session.Subscribed() {
		id := requestID()
		params, _ := json.Marshal(map[string]string{"uri": uri}) // a string
		talk, err := x.ask(ctx, wire.NewRequest(id, wire.MethodSubscribe, params), x.sessionHeader())
		if err != nil {
			return err
		}
		_, err = x.await(ctx, talk, id) // a resource may be gone
		talk.close()
		if err != nil {
			return err
		}
	}
	return nil
}

// hear listens to the standalone stream of a session that has subscriptions, while one of
// its requests is at the server. The client then gets what the server says there, and, if
// its events have ids, what it has said since the request before. Call done when the
// request has ended; it returns the id of the last event.
func (x *exchange) hear(ctx context.Context) (done func() (heard string)) {
	if x.link.Era != eraHTTP || x.r.Once || len(x.r.Session.Subscribed()) == 0 {
		return func() string { return "" }
	}
	own := *x // stream may change the link
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan string, 1)
	go func() { ended <- listen(ctx, &own) }()
	return func() string {
		_ = rest(ctx, gather) // the server may tell of the change just after its answer
		stop()
		return <-ended
	}
}

// listen reads the standalone stream until ctx ends, and returns the id of its last event.
func listen(ctx context.Context, x *exchange) (heard string) {
	h := x.sessionHeader()
	if x.link.Heard != "" {
		h.Set(wire.HeaderLastEventID, x.link.Heard)
	}
	talk, err := x.stream(ctx, http.MethodGet, x.url, nil, h)
	if err != nil {
		return "" // many servers have no such stream
	}
	defer talk.close()
	for {
		e, err := talk.next(ctx)
		if err != nil {
			return talk.last
		}
		if m, err := wire.Parse(e.Data); err == nil && m.Kind == wire.Notification && aboutSession(m.Method) {
			telling, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			_ = x.r.Session.Notify(telling, m.Method, m.Params) // the client reads the resource again some day
			cancel()
		}
	}
}
