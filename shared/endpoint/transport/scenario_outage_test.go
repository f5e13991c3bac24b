package transport_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// outage plays a test for each method of the store and each way to fail: the call does not
// reach the store, or the store does the work and the answer is lost.
func outage(t *testing.T, methods []string, play func(t *testing.T, w *world, fail func())) {
	for _, method := range methods {
		for _, how := range []string{"lost", "unanswered"} {
			in(t, method+" "+how, bubble, func(t *testing.T, w *world) {
				play(t, w, func() {
					if how == "lost" {
						w.down(method)
					} else {
						w.deaf(method)
					}
				})
			})
		}
	}
}

// refusedForNow checks that an answer tells the client to send the request again.
func refusedForNow(t *testing.T, a *answer) {
	t.Helper()
	if a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") != "1" {
		t.Errorf("got %d %s, Retry-After %q; want 503", a.status, a.body, a.header.Get("Retry-After"))
	}
	if _, there := a.header["Mcp-Session-Id"]; there {
		t.Error("a refusal with a session id")
	}
}

// toldToWait checks that the answer to a GET tells the client to come back later, with the
// cursor that it has.
func toldToWait(t *testing.T, a *answer) {
	t.Helper()
	events := a.events(t)
	if len(events) == 0 {
		t.Fatalf("nothing was sent: %d", a.status)
	}
	if last := events[len(events)-1]; !sendsAway(last) || last.Retry < 10*time.Second || len(events) > 1 && !isPriming(events[0]) {
		t.Errorf("got %s", a.body)
	}
}

// C-70: one method of the store fails once. The request is refused for now, and succeeds
// when the client sends it again. Nothing is started a second time.
func TestRequestIsServedOnceTheStoreIsBack(t *testing.T) {
	post := func(body string) func(*client) *answer { return func(v *client) *answer { return v.post(body) } }
	for name, tt := range map[string]struct {
		methods []string
		send    func(*client) *answer
		status  int
	}{
		"call":         {[]string{"", "Load", "Save", "Wait"}, post(callOf("x")), http.StatusOK},
		"initialized":  {[]string{"", "Load", "Save"}, post(initialized), http.StatusAccepted},
		"notification": {[]string{"", "Load"}, post(`{"jsonrpc":"2.0","method":"notifications/x"}`), http.StatusAccepted},
		"answer":       {[]string{"", "Load", "Save", "PutAnswer"}, post(`{"jsonrpc":"2.0","id":"q-1","result":{}}`), http.StatusAccepted},
		"delete":       {[]string{"", "Load", "Save"}, (*client).del, http.StatusNoContent},
		"initialize": {[]string{"", "Handshake", "Create"}, func(v *client) *answer {
			return v.w.do(request("POST", v.path, initialize))
		}, http.StatusOK},
		"initialize of a server that starts": {[]string{"Create", "Box", "Wait"}, func(v *client) *answer {
			return v.w.do(request("POST", "/quiet/mcp", initialize))
		}, http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			outage(t, tt.methods, func(t *testing.T, w *world, fail func()) {
				v := w.greet("/known/mcp") // a session whose messages have not reached the box yet
				w.awake("known")
				fail()
				refusedForNow(t, tt.send(v))
				w.down()
				status := tt.status
				if name == "delete" { // a session ends completely or not at all
					if a := v.call("x"); a.status != http.StatusOK {
						status = http.StatusNotFound
					}
				}
				tt.send(v).is(t, "after it", status, 0)
				if name == "answer" && len(w.backend.answers) != 1 {
					t.Errorf("handed over: %v", w.backend.answers)
				}
			})
		})
	}
}

// An older client whose response has no event yet gets an id to come back with.
func TestOlderClientComesBackAfterAnOutage(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.backend.tool("slow", func(r run) { time.Sleep(time.Minute); r.end(`{"content":[]}`) })
		c := w.visit("quiet")
		c.version = wire.V20250618
		done := w.begin(c.request("POST", callOf("slow")))
		time.Sleep(20 * time.Second)
		w.down("Wait")
		id := done.end().lastID(t)
		w.down()
		commontest.Contains(t, "the response with id "+id, `"id":1,"result"`, c.get(id).body)
	})
}

// The store fails when a client begins to listen, or comes back. The client is told to
// come later, and then gets all events that it missed.
func TestListenerIsServedOnceTheStoreIsBack(t *testing.T) {
	outage(t, []string{"", "Load", "Save", "Wait"}, func(t *testing.T, w *world, fail func()) {
		v := w.visit("pushy")
		v.push("one")
		fail()
		first := v.get("")
		toldToWait(t, first)
		second := v.get(first.lastID(t))
		if !sendsAway(second.events(t)[0]) || len(second.datas(t)) != 0 {
			t.Errorf("got %s", second.body)
		}
		v.push("two")
		w.down()
		var heard []string
		last := second.lastID(t)
		for range 5 {
			time.Sleep(10 * time.Second)
			a := v.get(last)
			heard, last = append(heard, a.datas(t)...), a.lastID(t)
		}
		commontest.SameIn(t, "heard", []string{said("one"), said("two")}, heard)
	})
}

// The store fails when a client polls for the end of its call.
func TestPollIsServedOnceTheStoreIsBack(t *testing.T) {
	outage(t, []string{"", "Load", "Tail", "Wait"}, func(t *testing.T, w *world, fail func()) {
		proceed := make(chan struct{})
		w.backend.tool("steps", func(r run) { r.say("one"); <-proceed; r.say("two"); r.end(`{}`) })
		v := w.visit("quiet")
		last := v.calling("steps").leave().lastID(t)
		fail()
		for range 3 {
			a := v.get(last)
			toldToWait(t, a)
			last = a.lastID(t)
		}
		close(proceed)
		settle()
		w.down()
		commontest.SameIn(t, "after it", []string{said("two"), resultOf(`{}`)}, v.get(last).datas(t))
	})
}

// The store fails while a response is open, either of a call or of a listener. The
// response ends with a longer retry, and the client continues at the same place.
func TestResponseUnderWayIsTakenUpOnceTheStoreIsBack(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		proceed := make(chan struct{})
		w.backend.tool("steps", func(r run) { r.say("one"); <-proceed; r.say("two"); r.end(`{}`) })
		v := w.visit("pushy")
		call, listener := v.calling("steps"), v.listen("")
		v.push("three")
		settle()
		w.down("")
		time.Sleep(time.Minute)
		for _, c := range []*conn{call, listener} {
			if a := c.end(); a.took > 25*time.Second {
				t.Errorf("held for %s", a.took)
			} else {
				toldToWait(t, a)
			}
		}
		close(proceed)
		v.push("four")
		time.Sleep(time.Minute)
		w.down()
		commontest.SameIn(t, "the call", []string{said("two"), resultOf(`{}`)}, v.get(call.end().lastID(t)).datas(t))
		commontest.SameIn(t, "the listener", []string{said("four")}, v.get(listener.end().lastID(t)).datas(t))
	})
}
