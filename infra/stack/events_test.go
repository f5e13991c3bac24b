package stack_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-lambda-go/events"

	"github.com/dormouse-mcp/dormouse/shared/fleet/ecs"
	"github.com/dormouse-mcp/dormouse/shared/relay"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// files are the names of the events for a function, without folder and ending.
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

// decode reads an event, all of whose fields must be known.
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
				f, err := relay.Decode([]byte(e.Body))
				if err != nil || "relay-"+string(f.Type) != name || string(relay.Encode(f)) != e.Body {
					t.Errorf("%s: a %s frame, %v; a runner would write %s", name, f.Type, err, relay.Encode(f))
				}
			}
		}
		if len(routes) != 3 {
			t.Errorf("%s: events for the routes %v only", function, routes)
		}
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
