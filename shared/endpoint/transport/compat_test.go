package transport_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/transport"
)

// OpenAI's connector takes JSON only. It is answered as soon as all its answers are there.
func TestClientThatTakesJSONOnlyIsAnsweredInJSON(t *testing.T) {
	grouped(t, 1, nil, func(t *testing.T, w *world) {
		w.awake("s0")
		w.backend.tool("chatty", func(r run) { r.say("one"); time.Sleep(time.Minute); r.say("two"); r.end(`{"content":[]}`) })
		w.backend.tool("closes", func(r run) { r.pause("", time.Second); time.Sleep(20 * time.Second); r.end(`{"content":[]}`) })
		w.backend.tool("asks", func(r run) { r.asks("q-1", elicit); r.answers("q-1"); r.end(`{"content":[]}`) })
		w.backend.tool("both", func(r run) {
			r.say("one")
			r.append(`{"jsonrpc":"2.0","id":1,"result":{}}`, false)
			r.append(`{"jsonrpc":"2.0","id":2,"result":{}}`, true)
		})
		check := func(what string, a *answer) {
			t.Helper()
			if a.status != http.StatusOK || a.header.Get("Content-Type") != wire.MediaJSON || !strings.Contains(a.body, `"id":1,"result":{"content":[]`) {
				t.Errorf("%s: got %d %s", what, a.status, a.body)
			}
		}
		c := w.visitAt("/s0/mcp")
		for _, tool := range []string{"chatty", "closes", "echo", "asks"} {
			check(tool, c.call(tool, "Accept", "application/*"))
			check(tool+" at /mcp", w.visitAt("/mcp").call("s0__"+tool, "Accept", "application/*"))
		}
		check("in 2026-07-28", w.do(ask{path: "/s0/mcp", id: "1", method: "tools/call", params: `"name":"chatty"`, headers: []string{"Accept", wire.MediaJSON}}.request()))
		c.version = wire.V20250326
		batch := "[" + callOf("both") + "," + strings.Replace(callOf("both"), `"id":1`, `"id":2`, 1) + "]"
		commontest.EqualIn(t, "a batch", `[{"jsonrpc":"2.0","id":1,"result":{}},{"jsonrpc":"2.0","id":2,"result":{}}]`, c.post(batch, "Accept", wire.MediaJSON).body)
	})
}

// A request that was accepted is not sent again, so no error says that it was not executed.
func TestClientThatTakesJSONOnlyIsToldThatTheOutcomeIsUnknown(t *testing.T) {
	for name, trouble := range map[string]func(w *world, c *client){
		"the time is over":      func(*world, *client) {},
		"the store is down":     func(w *world, _ *client) { time.Sleep(time.Minute); w.down("") },
		"the session has ended": func(w *world, c *client) { time.Sleep(time.Minute); w.endSession(c.session) },
	} {
		bubble(t, func(t *testing.T, w *world) {
			w.backend.tool("slow", func(r run) { time.Sleep(time.Hour); w.down(); r.end(`{}`) })
			c := w.visit("quiet")
			done := w.begin(c.request("POST", callOf("slow"), "Accept", wire.MediaJSON))
			trouble(w, c)
			a := done.end()
			a.is(t, name, http.StatusInternalServerError, wire.CodeOutcomeUnknown)
			commontest.Contains(t, name, `"id":1,`, a.body)
			w.backend.running.Wait()
		})
	}
}

func (w *world) endSession(id string) {
	w.t.Helper()
	s, _, err := w.store.Load(w.t.Context(), storage.ID(id), "")
	if s.State = storage.Ended; err != nil || w.store.Save(w.t.Context(), s) != nil {
		w.t.Fatal("the session could not be ended", err)
	}
}

// Clients that match errors by id hang at one without. The id keeps its type and its digits.
func TestErrorCarriesTheIDOfTheFirstRequest(t *testing.T) {
	const absent = "absent"
	for body, id := range map[string]string{
		`{"jsonrpc":"2.0","id":9007199254740993,"method":"tools/list"}`:            `9007199254740993`,
		`[{"jsonrpc":"2.0","method":"m"},{"jsonrpc":"2.0","id":"b","method":"m"}]`: `"b"`,
		`{"id":5,"method":"m"}`:                `5`,
		`{"jsonrpc":"2.0","method":"m"}`:       `null`,
		`{"jsonrpc":"2.0","id":3,"result":{}}`: `null`,
	} {
		got := newWorld(t).do(request("POST", "/quiet/mcp", body, sessionIs, absent))
		if got.status < 400 || !strings.Contains(got.body, `"id":`+id+`,`) {
			t.Errorf("%s: got %d %s", body, got.status, got.body)
		}
	}
	for name, headers := range map[string][]string{ // errors before the body is read
		"Accept": {"Accept", "text/html"}, "version": {versionIs, "1999-01-01"}, "principal": {"Authorization", "Bearer nobody"},
	} {
		a := newWorld(t).do(request("POST", "/quiet/mcp", `{"jsonrpc":"2.0","id":"seven","method":"tools/list"}`, headers...))
		commontest.Contains(t, name, `"id":"seven",`, a.body)
	}
}

// A failed initialize opens no session, so it hands out no id. An initialize that takes longer
// than the first silence is an event stream, whose headers go out before the outcome is known.
func TestInitializeThatFailsHandsOutNoSessionID(t *testing.T) {
	fails := func(after time.Duration) func(*world) {
		return func(w *world) {
			w.backend.tool("initialize", func(r run) {
				time.Sleep(after)
				r.fail(`{"code":-32603,"message":"cannot start"}`)
			})
		}
	}
	for name, breaks := range map[string]func(*world){
		"at once": fails(0), "after a while": fails(10 * time.Second),
		"no room": func(w *world) { w.backend.err = storage.Errorf(storage.Busy, "cannot start") },
	} {
		bubble(t, func(t *testing.T, w *world) {
			breaks(w)
			a := w.do(request("POST", "/quiet/mcp", initialize))
			if _, there := a.header[http.CanonicalHeaderKey(sessionIs)]; a.status != http.StatusOK || there || !strings.Contains(a.body, "cannot start") || a.header.Get("Content-Type") != wire.MediaJSON {
				t.Errorf("%s: got %d %v %s", name, a.status, a.header, a.body)
			}
		})
	}
}

// Java's client resolves the endpoint against its base, and not against the URI of the stream.
// Up to 1.1 it fails at a retry.
func TestSSEEndpointIsAnAbsolutePath(t *testing.T) {
	for _, tt := range []struct{ path, prefix, want string }{
		{"/s0/sse", "", "/s0/message?"},
		{"/sse", "", "/message?"},
		{"/s0/sse", "/prod", "/prod/s0/message?"},
		{"/sse", "/prod/", "/prod/message?"},
		{"/s0/sse", "//evil.example", "/s0/message?"},
		{"/s0/sse", "prod", "/s0/message?"},
	} {
		grouped(t, 1, nil, func(t *testing.T, w *world) {
			ended := w.begin(request("GET", tt.path, "", "Accept", wire.MediaSSE, transport.HeaderPrefix, tt.prefix))
			synctest.Wait()
			if first := ended.gone().events(t)[0]; first.Name != "endpoint" || first.ID == "" || first.Retry != 0 || !strings.HasPrefix(string(first.Data), tt.want) {
				t.Errorf("%s, prefix %q: got %+v", tt.path, tt.prefix, first)
			}
		})
	}
}

func zipped(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := io.WriteString(z, text); err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	return b.String()
}

// HTTP libraries pack bodies, some write a byte order mark, and some JSON encoders null for an
// absent member.
func TestBodiesOfManyFormsAreRead(t *testing.T) {
	const most = 1000
	for name, tt := range map[string]struct {
		body, coding string
		status       int
	}{
		"identity":              {list, "identity", 404},
		"gzip":                  {zipped(t, list), "gzip", 404},
		"gzip of much":          {zipped(t, list+strings.Repeat(" ", 1<<20)), "gzip", 413},
		"gzip of one byte more": {zipped(t, list+strings.Repeat(" ", most-len(list)+1)), "gzip", 413},
		"gzip that is none":     {list, "gzip", 400},
		"deflate":               {list, "deflate", 415},
		"gzip twice":            {zipped(t, zipped(t, list)), "gzip, gzip", 415},
		"a mark":                {"\ufeff" + list, "", 404},
		"params null":           {strings.Replace(list, `"id":7`, `"id":7,"params":null`, 1), "", 404},
	} {
		for _, path := range []string{"/quiet/mcp", "/mcp", "/quiet/message?sessionId=absent"} {
			w := newWorld(t)
			w.opts.MaxBody, w.opts.Names = most, func() []string { return []string{"quiet"} }
			w.opts.Groups = func(name string) (transport.Group, bool) { return transport.Group{}, name == "" }
			a := w.do(request("POST", path, tt.body, sessionIs, "absent", "Content-Encoding", tt.coding))
			if a.status != tt.status || tt.status == 404 && !strings.Contains(a.body, `"id":7,`) || (tt.status == 415) != (a.header.Get("Accept-Encoding") == "gzip") {
				t.Errorf("%s, %s: got %d %s, want %d", name, path, a.status, a.body, tt.status)
			}
		}
	}
}

// counting is a body whose reader says how much it has unpacked.
type counting struct {
	io.ReadCloser
	read     bool
	unpacked int
}

func (c *counting) Read(p []byte) (int, error) { c.read = true; return c.ReadCloser.Read(p) }
func (c *counting) Unpacked(n int)             { c.unpacked = n }

// A stranger's packed body may be a thousand times as large as it says, so it is not read. A
// caller's is counted as what it is in memory.
func TestPackedBodiesAreCountedUnpacked(t *testing.T) {
	body := zipped(t, list+strings.Repeat(" ", 1<<20))
	for auth, want := range map[string]int{"Bearer eve": len(list) + 1<<20, "Bearer nobody": 0} {
		r := request("POST", "/quiet/mcp", body, sessionIs, "absent", "Content-Encoding", "gzip", "Authorization", auth)
		c := &counting{ReadCloser: r.Body}
		r.Body = c
		if a := newWorld(t).do(r); c.read != (want > 0) || c.unpacked != want {
			t.Errorf("%q: %d, read %v, %d bytes unpacked, want %d", auth, a.status, c.read, c.unpacked, want)
		}
	}
}

// A packed body is read until it has given more than may be kept, and no further.
func TestAPackedBodyThatGivesTooMuchIsNotReadToItsEnd(t *testing.T) {
	w := newWorld(t)
	w.opts.MaxBody = 32 << 10
	body := &forever{text: zipped(t, strings.Repeat(" ", 1<<20))}
	r := request("POST", "/quiet/mcp", "", sessionIs, "absent", "Content-Encoding", "gzip")
	r.Body, r.ContentLength = io.NopCloser(io.LimitReader(body, 64<<10)), -1
	if a := w.do(r); a.status != 413 || body.read > 16<<10 {
		t.Errorf("%d after %d packed bytes: %s", a.status, body.read, a.body)
	}
}

type forever struct {
	text string
	read int
}

func (f *forever) Read(p []byte) (n int, err error) {
	for n < len(p) {
		n += copy(p[n:], f.text[(f.read+n)%len(f.text):])
	}
	f.read += n
	return n, nil
}

// A packed body whose bytes give nothing costs time, and its size bounds nothing.
func TestAPackedBodyThatGivesNothingIsGivenUp(t *testing.T) {
	const head = "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
	for name, text := range map[string]string{
		"empty members":       zipped(t, ""),
		"empty stored blocks": "\x00\x00\x00\xff\xff",
		"a name":              "n",
	} {
		endless := &forever{text: text}
		before := map[string]string{"empty stored blocks": head, "a name": head[:3] + "\x08" + head[4:]}[name]
		r := request("POST", "/quiet/mcp", "", sessionIs, "absent", "Content-Encoding", "gzip")
		r.Body, r.ContentLength = io.NopCloser(io.MultiReader(strings.NewReader(before), endless)), -1
		if a := newWorld(t).do(r); a.status != 400 || endless.read > 1<<20 {
			t.Errorf("%s: %d after %d bytes: %s", name, a.status, endless.read, a.body)
		}
	}
}
