package webconsole_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/dormouse-mcp/dormouse/functions/wiring/webconsole"
	"github.com/dormouse-mcp/dormouse/shared/backend/awscall"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/observe"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
	"github.com/dormouse-mcp/dormouse/shared/operate/bodies"
)

// cloudWatch answers as CloudWatch Logs does, and keeps what it was asked.
type cloudWatch struct {
	mu      sync.Mutex
	queries []map[string]any
	looks   int
	fails   bool          // each search
	looked  func()        // called at each look at results; may be nil
	stopped []any         // searches that were ended
	sealed  []bodies.Line // what a search for bodies finds, the newest first
}

func (c *cloudWatch) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var asked map[string]any
	if json.NewDecoder(r.Body).Decode(&asked) != nil || !strings.HasPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 Credential=THEROLE/") || r.Header.Get("Content-Type") != "application/x-amz-json-1.1" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	switch r.Header.Get("X-Amz-Target") {
	case "Logs_20140328.StartQuery":
		c.queries = append(c.queries, asked)
		_, _ = w.Write([]byte(`{"queryId":"q-1"}`))
	case "Logs_20140328.StopQuery":
		c.stopped = append(c.stopped, asked["queryId"])
		_, _ = w.Write([]byte(`{"success":true}`))
	case "Logs_20140328.GetQueryResults":
		if c.looked != nil {
			c.looked()
		}
		if c.looks++; asked["queryId"] != "q-1" || c.looks < 2 {
			_, _ = w.Write([]byte(`{"status":"Running","results":[]}`))
			return
		}
		if c.fails {
			_, _ = w.Write([]byte(`{"status":"Failed"}`))
			return
		}
		if strings.Contains(c.queries[len(c.queries)-1]["queryString"].(string), "sealed") { //nolint:forcetypeassert // as StartQuery has it
			rows := make([]string, len(c.sealed))
			for i, l := range c.sealed {
				rows[i] = `[{"field":"msg","value":"` + l.Message + `"},{"field":"tenant","value":"` + l.Tenant + `"},{"field":"server","value":"` + l.Server + `"},{"field":"sealed","value":"` + l.Sealed + `"}]`
			}
			_, _ = w.Write([]byte(`{"status":"Complete","results":[` + strings.Join(rows, ",") + `]}`))
			return
		}
		row := func(tenant, why string) string {
			return `[{"field":"@timestamp","value":"2026-11-23 10:11:12.345"},{"field":"tenant","value":"` + tenant + `"},{"field":"principal","value":"ada"},{"field":"server","value":"one"},
				{"field":"tool","value":"echo"},{"field":"duration_ms","value":"51"},{"field":"outcome","value":"failed"},{"field":"why","value":"` + why + `"},{"field":"wakes","value":"1"},{"field":"bytes_out","value":"410"},{"field":"@ptr","value":"x"}]`
		}
		_, _ = w.Write([]byte(`{"status":"Complete","statistics":{"bytesScanned":2000000000.0,"recordsMatched":2.0},"results":[` + row("acme", "TOP SECRET") + `,` + row("globex", "other") + `]}`))
	}
}

// searching returns a stack with logs to search, and the CloudWatch that it asks.
func searching(t *testing.T) (*stack, *cloudWatch) {
	t.Helper()
	c := &cloudWatch{}
	logs := httptest.NewServer(c)
	t.Cleanup(logs.Close)
	s := newStack(t)
	s.logs = &webconsole.Logs{
		Service: awscall.Service{Name: "logs", Endpoint: logs.URL, Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "THEROLE", SecretAccessKey: "secret"}, nil
		})},
		Groups: []string{"/dormouse/stack/http", "/dormouse/stack/socket"},
	}
	return s, c
}

func TestCallsOfAStackAreSearchedInItsLogsWhenSomebodyAsks(t *testing.T) {
	s, c := searching(t)
	s.signIn(s.key(storage.RoleOperator, "acme", "olga"))
	if _, text := s.do("GET", "/console/api/v1/", ""); !strings.Contains(text, `"search_usd_per_gb":0.005`) {
		t.Errorf("the page is not told what a search costs: %s", text)
	}
	for _, path := range []string{"servers", "sessions", "processes", "keys"} {
		s.do("GET", "/console/api/v1/"+path, "")
	}
	commontest.EqualIn(t, "queries of views that nobody asked to search", 0, len(c.queries))
	var got api.Calls
	res, text := s.do("GET", "/console/api/v1/calls?server=one&principal=ada&tool=echo&failed=true&since=1h&limit=50", "")
	if err := json.Unmarshal([]byte(text), &got); err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%d %s, %v", res.StatusCode, text, err)
	}
	q := c.queries[0]
	text, _ = q["queryString"].(string)
	for _, want := range []string{`tenant = "acme"`, `server = "one"`, `principal = "ada"`, `tool = "echo"`, `outcome = "failed"`, "sort @timestamp desc"} {
		commontest.Contains(t, "the query", want, text)
	}
	from, _ := q["startTime"].(float64)
	to, _ := q["endTime"].(float64)
	if to-from != 3600 || q["limit"] != 50.0 || len(q["logGroupNames"].([]any)) != 2 {
		t.Errorf("asked is %v", q)
	}
	// The console drops rows of other tenants, even if CloudWatch finds some.
	want := api.Call{Time: time.Date(2026, 11, 23, 10, 11, 12, 345e6, time.UTC), Tenant: "acme", Principal: "ada", Server: "one", Tool: "echo", MS: 51, Failed: true, Reason: "TOP SECRET", Woke: true, Out: 410}
	if len(got.Calls) != 1 || got.Calls[0] != want {
		t.Errorf("found is %+v, want %+v", got.Calls, want)
	}
	if got.Search == nil || got.Search.Bytes != 2e9 || got.Search.USD != 0.01 {
		t.Errorf("it cost %+v", got.Search)
	}
	s.signIn(s.key(storage.RoleViewer, "acme", "vic"))
	if _, text := s.do("GET", "/console/api/v1/calls", ""); strings.Contains(text, "TOP SECRET") || !strings.Contains(text, `"tool":"echo"`) {
		t.Errorf("a viewer sees %s", text)
	}
}

// The lines that functions write are those that the console of the stack opens for an auditor,
// and for nobody else.
func TestBodiesOfAStackAreSearchedInItsLogs(t *testing.T) {
	s, c := searching(t)
	s.servers = `{"mcpServers":{"one":{"command":"a"}},"x-dormouse":{"audit":{"bodies":"auditor"}}}`
	s.logs.Relay = "/dormouse/stack/relay"
	var out bytes.Buffer
	file, _, err := serversfile.Parse([]byte(s.servers), "servers.json", nil)
	commontest.OK(t, err)
	k := bodies.Keeper{Server: file.Server, Secret: []byte(strings.Repeat("s", 32)), Out: slog.New(slog.NewJSONHandler(&out, nil)), Hider: func(map[string]string, []string) func(string) string { return func(text string) string { return text } }}
	of := storage.Account{Tenant: "acme", Principal: "ada", Server: "one"}
	for _, said := range []observe.Said{{Stream: "1", Arguments: json.RawMessage(`{"a":1}`)}, {Stream: "1", Response: json.RawMessage(`{"result":{"r":2}}`)}} {
		k.Before(nil)(t.Context(), &observe.Event{Account: of, Tool: "echo", Outcome: observe.Done, Said: &said})
	}
	for line := range strings.Lines(out.String()) {
		var l bodies.Line
		commontest.OK(t, json.Unmarshal([]byte(line), &l))
		c.sealed = append([]bodies.Line{l}, c.sealed...)
	}
	for role, want := range map[storage.Role]string{storage.RoleAuditor: `"arguments":{"a":1},"result":{"r":2}`, storage.RoleOperator: "", storage.RoleViewer: "forbidden"} {
		s.signIn(s.key(role, "acme", "olga"))
		_, text := s.do("GET", "/console/api/v1/bodies?server=one", "")
		if !strings.Contains(text, want) || want == "" && text != "" {
			t.Errorf("%s reads %s", role, text)
		}
	}
	if groups := c.queries[0]["logGroupNames"].([]any); len(groups) != 3 || groups[2] != s.logs.Relay { //nolint:forcetypeassert // as above
		t.Errorf("searched are %v", groups)
	}
	s.signIn(s.key(storage.RoleAuditor, "globex", "gus"))
	if _, text := s.do("GET", "/console/api/v1/bodies", ""); text != "" {
		t.Errorf("an auditor of another tenant reads %s", text)
	}
}

// The console refuses a name that would end its quotes in the query: such a name could
// ask for the calls of other tenants.
func TestNamesDoNotLeaveTheirPlaceInAQuery(t *testing.T) {
	s, c := searching(t)
	s.signIn(s.key(storage.RoleOperator, "acme", "olga"))
	for _, name := range []string{`a" or tenant = "globex`, `a\`, "a'", "a`", "a\n| fields @message"} {
		r := func(req *http.Request) {
			q := req.URL.Query()
			q.Set("principal", name)
			req.URL.RawQuery = q.Encode()
		}
		if res, text := s.do("GET", "/console/api/v1/calls", "", r); res.StatusCode != http.StatusBadRequest {
			t.Errorf("%q: %d %s", name, res.StatusCode, text)
		}
	}
	commontest.EqualIn(t, "queries", 0, len(c.queries))
}

// A search costs money as long as it reads, so the console ends one whose visitor has
// gone. For the same reason a search may not go back too far.
func TestASearchThatNobodyWaitsForIsEnded(t *testing.T) {
	s, c := searching(t)
	ctx, gone := context.WithCancel(t.Context())
	c.looked = gone
	if _, err := s.logs.Calls(ctx, api.CallQuery{}); storage.CodeOf(err) != storage.Unavailable {
		t.Errorf("a search whose visitor is gone: %v", err)
	}
	if len(c.stopped) != 1 || c.stopped[0] != "q-1" {
		t.Errorf("ended are %v", c.stopped)
	}
	c.looked, c.stopped = nil, nil
	if _, err := s.logs.Calls(t.Context(), api.CallQuery{}); err != nil || len(c.stopped) != 0 {
		t.Errorf("a whole search: %v; ended are %v", err, c.stopped)
	}
	c.fails = true
	if _, err := s.logs.Calls(t.Context(), api.CallQuery{}); storage.CodeOf(err) != storage.Unavailable {
		t.Errorf("a search that fails: %v", err)
	}
	s.signIn(s.key(storage.RoleViewer, "acme", "vera"))
	for _, since := range []string{"800h", "2000000h"} {
		if res, text := s.do("GET", "/console/api/v1/calls?since="+since, ""); res.StatusCode != http.StatusBadRequest || !strings.Contains(text, "31 days") {
			t.Errorf("since %s: %d %s", since, res.StatusCode, text)
		}
	}
}
