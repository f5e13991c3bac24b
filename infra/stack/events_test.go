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
	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet/ecs"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
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
	commontest.OK(t, err)
	var e T
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	commontest.OKIn(t, name, d.Decode(&e))
	return e
}

func TestEveryEventIsForAFunctionOfTheTemplate(t *testing.T) {
	all, err := os.ReadDir(root("events"))
	commontest.OK(t, err)
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

// The function itself sends this event.
func TestTheEventToPushIsTheOneTheFunctionSends(t *testing.T) {
	e := decode[apigateway.SocketEvent](t, "socket-push")
	sent, err := apigateway.PushEvent(e.Push.Session)
	commontest.OK(t, err)
	if got := decode[map[string]any](t, "socket-push"); cmp.Diff(unmarshal(t, sent), got) != "" {
		t.Errorf("the file has %v, sent is %s", got, sent)
	}
}

func unmarshal(t *testing.T, raw []byte) (v map[string]any) {
	t.Helper()
	commontest.OK(t, json.Unmarshal(raw, &v))
	return v
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
