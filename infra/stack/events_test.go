package stack_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-lambda-go/events"
	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet/ecs"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/apigateway"
)

// files returns the names of the events for a function, without folder and ending.
func files(t *testing.T, function string) []string {
	t.Helper()
	found, err := filepath.Glob(root("events", function+"-*.json"))
	if err != nil || len(found) == 0 {
		t.Fatalf("no events of %s, %v", function, err)
	}
	for i, f := range found {
		found[i] = strings.TrimSuffix(filepath.Base(f), ".json")
	}
	return found
}

// decode reads an event and fails on unknown fields.
func decode[T any](t *testing.T, name string) T {
	t.Helper()
	raw, err := os.ReadFile(root("events", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var e T
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&e); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return e
}

func TestEveryEventIsForAFunctionOfTheTemplate(t *testing.T) {
	all, err := os.ReadDir(root("events"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		if e.Name() == "README.md" || e.Name() == "env.json" { // of a function
			continue
		}
		function, _, _ := strings.Cut(e.Name(), "-")
		if !slices.Contains([]string{"http", "socket", "relay", "sweep"}, function) || filepath.Ext(e.Name()) != ".json" {
			t.Errorf("events/%s begins with no function", e.Name())
		}
	}
}

func TestEventsOfWebSocketAPIsAreReadable(t *testing.T) {
	for _, function := range []string{"socket", "relay"} {
		routes := map[string]bool{}
		for _, name := range files(t, function) {
			if name == "socket-push" {
				continue
			}
			e := decode[events.APIGatewayWebsocketProxyRequest](t, name)
			c := e.RequestContext
			kind := map[string]string{"$connect": "CONNECT", "$default": "MESSAGE", "$disconnect": "DISCONNECT"}[c.RouteKey]
			if c.EventType != kind || kind == "" || c.ConnectionID == "" || c.Stage != "v1" || (e.Body != "") != (kind == "MESSAGE") {
				t.Errorf("%s: route %q, type %q, connection %q, stage %q, %d bytes", name, c.RouteKey, c.EventType, c.ConnectionID, c.Stage, len(e.Body))
			}
			routes[c.RouteKey] = true
			switch {
			case kind != "MESSAGE":
			case function == "socket":
				if _, err := wire.Parse([]byte(e.Body)); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			default:
				f, err := frame.Decode([]byte(e.Body))
				if err != nil {
					t.Errorf("%s: %v", name, err)
				} else if "relay-"+string(frame.Kind(f)) != name || string(frame.Encode(f)) != e.Body {
					t.Errorf("%s: a %s frame; a runner would write %s", name, frame.Kind(f), frame.Encode(f))
				}
			}
		}
		if len(routes) != 3 {
			t.Errorf("%s: events for the routes %v only", function, routes)
		}
	}
}

// The function itself sends this event.
func TestTheEventToPushIsTheOneTheFunctionSends(t *testing.T) {
	e := decode[apigateway.SocketEvent](t, "socket-push")
	sent, err := apigateway.PushEvent(e.Push.Session)
	if err != nil {
		t.Fatal(err)
	}
	if got := decode[map[string]any](t, "socket-push"); cmp.Diff(unmarshal(t, sent), got) != "" {
		t.Errorf("the file has %v, sent is %s", got, sent)
	}
}

func unmarshal(t *testing.T, raw []byte) (v map[string]any) {
	t.Helper()
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestEventsOfTheRESTAPIAreReadable(t *testing.T) {
	methods := map[string]bool{}
	for _, name := range files(t, "http") {
		raw, err := os.ReadFile(root("events", name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		var e events.APIGatewayProxyRequest // this type does not know all fields that AWS sends
		if err := json.Unmarshal(raw, &e); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		methods[e.HTTPMethod] = true
		if e.Resource != "/{proxy+}" || e.Path != "/"+e.PathParameters["proxy"] || e.RequestContext.Stage != "v1" || e.IsBase64Encoded != (e.Body != "") {
			t.Errorf("%s: resource %q, path %q, stage %q, base64 %t", name, e.Resource, e.Path, e.RequestContext.Stage, e.IsBase64Encoded)
		}
		for header, values := range e.MultiValueHeaders {
			if len(values) != 1 || values[0] != e.Headers[header] || len(e.Headers) != len(e.MultiValueHeaders) {
				t.Errorf("%s: %s is %q and %q", name, header, values, e.Headers[header])
			}
		}
		body, err := base64.StdEncoding.DecodeString(e.Body)
		if err == nil && len(body) > 0 {
			_, _, err = wire.ParseBody(body)
		}
		if err != nil && name != "http-put" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if want := []string{"DELETE", "GET", "OPTIONS", "POST", "PUT"}; cmp.Diff(want, slices.Sorted(maps.Keys(methods))) != "" {
		t.Errorf("events for the methods %v only", methods)
	}
}

func TestEventsOfTheSweepAreReadable(t *testing.T) {
	for _, name := range files(t, "sweep") {
		e := decode[events.CloudWatchEvent](t, name)
		switch e.DetailType {
		case "Scheduled Event":
		case ecs.EventDetailType:
			if _, ours, err := ecs.TaskEvent(e.Detail); err != nil || !ours {
				t.Errorf("%s: ours %t, %v", name, ours, err)
			}
		default:
			t.Errorf("%s: detail type %q", name, e.DetailType)
		}
	}
}
