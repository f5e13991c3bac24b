package main

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/backend/native"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/transport"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// cloud invokes functions in the way of AWS for the servers of this package: new handlers
// serve each message and each alarm.
type cloud struct {
	t      *testing.T
	store  storage.Store
	sealer *storage.Sealer
	server string
}

func newCloud(t *testing.T, server string) *cloud {
	sealer, err := bridge.NewSealer([]byte("a secret of thirty-two bytes, at least"))
	commontest.OK(t, err)
	return &cloud{t: t, store: storagetest.NewMemory(), sealer: sealer, server: server}
}

func (c *cloud) backend() *native.Backend {
	return native.NewBackend(native.Config{
		Store: c.store, Schedule: c, Log: slog.New(slog.DiscardHandler),
		Servers: func(name string) (native.Hosted, bool) {
			return native.Hosted{Make: servers()[c.server]}, name == c.server
		},
		Invoke: func(_ context.Context, event []byte) error {
			a, ok := native.ReadAlarm(event)
			if !ok {
				c.t.Errorf("no event of ours: %s", event)
			}
			return c.Schedule(context.Background(), a)
		},
	})
}

// Schedule implements native.Scheduler.
func (c *cloud) Schedule(_ context.Context, a native.Alarm) error {
	time.AfterFunc(time.Until(a.At), func() {
		commontest.Check(c.t, c.backend().Handle(context.Background(), a))
	})
	return nil
}

// Cancel implements native.Scheduler.
func (c *cloud) Cancel(context.Context, native.Alarm) error { return nil }

// Authenticate implements transport.Authenticator.
func (c *cloud) Authenticate(*http.Request, string) (storage.Identity, error) {
	return storage.Identity{Tenant: "acme", Principal: "ada"}, nil
}

// Members implements transport.Authenticator.
func (c *cloud) Members(r *http.Request, _ string, servers []string) (map[string]storage.Identity, error) {
	return apikey.EachServer(c, r, servers)
}

func (c *cloud) Confirm(context.Context, string, string) error { return nil }

func (c *cloud) ConfirmMembers(_ context.Context, _, _ string, servers []string) ([]string, error) {
	return servers, nil
}

// RoundTrip serves a request of a client.
func (c *cloud) RoundTrip(r *http.Request) (*http.Response, error) {
	verbs := sessions.New(c.store, c.backend(), sessions.Limits{})
	h := native.Handler(transport.New(transport.Options{
		Servers: func(name string) (sessions.Server, bool) {
			return sessions.Server{Name: name, Digest: "d", InPlace: true}, name == c.server
		},
		Host: verbs, Auth: c, Sealer: c.sealer,
	}))
	rec := httptest.NewRecorder()
	in := httptest.NewRequestWithContext(r.Context(), r.Method, r.URL.String(), r.Body)
	in.Header = r.Header
	h.ServeHTTP(rec, in)
	return rec.Result(), nil
}

// connect returns a real client of the legacy or the modern era.
func (c *cloud) connect(t *testing.T, version string, options *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	client := mcp.NewClient(&mcp.Implementation{Name: "t", Version: "1"}, options)
	s, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{
		Endpoint: "http://localhost/" + c.server + "/mcp", HTTPClient: &http.Client{Transport: c}, DisableStandaloneSSE: true,
	}, &mcp.ClientSessionOptions{ProtocolVersion: version})
	commontest.OK(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func call(t *testing.T, s *mcp.ClientSession, tool string, arguments map[string]any) string {
	t.Helper()
	p := &mcp.CallToolParams{Name: tool, Arguments: arguments}
	p.SetProgressToken("p")
	r, err := s.CallTool(t.Context(), p)
	commontest.OK(t, err)
	return r.Content[0].(*mcp.TextContent).Text
}

// eachEra runs a test with a client of each era, in virtual time.
func eachEra(t *testing.T, server string, test func(t *testing.T, c *cloud, version string)) {
	for _, version := range []string{"2025-06-18", "2025-11-25", "2026-07-28"} {
		t.Run(version, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, newCloud(t, server), version) })
		})
	}
}

func TestCounterCountsOnThoughItIsMadeAnewForEachMessage(t *testing.T) {
	eachEra(t, "counter", func(t *testing.T, c *cloud, version string) {
		s := c.connect(t, version, nil)
		var got []string
		for range 3 {
			got = append(got, call(t, s, "add", map[string]any{"by": 5}))
		}
		commontest.EqualIn(t, "counted", "5 10 15", strings.Join(got, " "))
	})
}

func TestBookingWaitsForTheUserAndNothingRuns(t *testing.T) {
	for answer, want := range map[string]string{"accept": "booked: Ulm", "decline": "not booked: the user did not agree"} {
		t.Run(answer, func(t *testing.T) {
			eachEra(t, "booking", func(t *testing.T, c *cloud, version string) {
				s := c.connect(t, version, &mcp.ClientOptions{
					ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
						time.Sleep(time.Hour) // virtual
						return &mcp.ElicitResult{Action: answer, Content: map[string]any{"seats": 2}}, nil
					},
				})
				commontest.Equal(t, want, call(t, s, "book", map[string]any{"trip": "Ulm"}))
			})
		})
	}
}

func TestJobTellsItsProgressAndEndsByAlarms(t *testing.T) {
	eachEra(t, "job", func(t *testing.T, c *cloud, version string) {
		var mu sync.Mutex
		var steps []string
		s := c.connect(t, version, &mcp.ClientOptions{
			ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
				mu.Lock()
				defer mu.Unlock()
				steps = append(steps, r.Params.Message)
			},
		})
		commontest.Equal(t, "worked 3 steps", call(t, s, "work", map[string]any{"steps": 3, "seconds": 60}))
		synctest.Wait() // another goroutine of the client handles the progress
		mu.Lock()
		defer mu.Unlock()
		commontest.EqualIn(t, "told", "step 1, step 2, step 3", strings.Join(steps, ", "))
	})
}
