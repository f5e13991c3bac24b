package dormouse

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

// crowd is a machine with 20 servers and 50 people, each of whom has a process.
func crowd() report {
	called := noon().Add(-time.Minute)
	r := report{Running: true, Sessions: 50}
	for i := range 50 {
		p := api.Process{
			Server: fmt.Sprintf("server-%02d", i%20), State: "ready", Since: noon().Add(-time.Duration(i) * time.Second),
			Principal: fmt.Sprintf("person-%02d", i), Client: "cursor", Memory: 81 << 20, LastCall: &called,
		}
		if i == 3 {
			p.State, p.Phase, p.Detail = "exited", "runtime", "ZeroDivisionError: division by zero"
		}
		r.Processes = append(r.Processes, p)
	}
	return r
}

func TestPsOfTwentyServersAndFiftyPeopleFitsOnAScreen(t *testing.T) {
	var all strings.Builder
	commontest.OK(t, crowd().print(&all, noon(), false, false))
	text := all.String()
	if lines := strings.Count(text, "\n"); lines > 40 {
		t.Errorf("%d lines, want at most 40:\n%s", lines, text)
	}
	for _, want := range []string{
		"server-03  2 awake, 1 failed  60s ago    243 MB  ZeroDivisionError: division by zero\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %q in\n%s", want, text)
		}
	}
	var one strings.Builder // of somebody who has asked for each
	if err := crowd().print(&one, noon(), false, true); err != nil || strings.Count(one.String(), "person-") != 50 {
		t.Errorf("%v\n%s", err, one.String())
	}
}

// One command shows who called get_forecast yesterday, and which calls failed.
func TestYesterdaysFailuresOfAToolAreOneCommand(t *testing.T) {
	yesterday := noon().Add(-20 * time.Hour)
	var asked []api.CallQuery
	machine := httptest.NewServer(api.New(api.Options{
		Info:   api.Info{Place: api.PlaceMachine},
		Caller: func(*http.Request, apikey.Right) (api.Caller, error) { return api.Machine("me"), nil },
		History: api.History{Calls: func(_ context.Context, q api.CallQuery) (api.Calls, error) {
			asked = append(asked, q)
			return api.Calls{Calls: []api.Call{
				{Time: yesterday, Principal: "bob", Server: "weather", Tool: "get_forecast", MS: 31, Failed: true, Reason: "the server exited, code 1"},
				{Time: yesterday, Principal: "ada", Server: "weather", Tool: "get_forecast", Client: "cursor", MS: 8},
			}}, nil
		}},
	}))
	defer machine.Close()
	got, code := newShell(t).run("calls --tool get_forecast --since 2d --key k --url " + machine.URL)
	want := `ENDED                WHO  SERVER   TOOL          CLIENT  TOOK   OUTCOME
2026-11-21 16:00:00  bob  weather  get_forecast  –       31 ms  the server exited, code 1
2026-11-21 16:00:00  ada  weather  get_forecast  cursor  8 ms   done
`
	if d := cmp.Diff(want, got); d != "" || code != exitDone {
		t.Errorf("exit code %d (-want +got):\n%s", code, d)
	}
	if len(asked) != 1 || asked[0].Tool != "get_forecast" || time.Since(asked[0].Since).Round(time.Hour) != 48*time.Hour {
		t.Errorf("the machine was asked for %+v", asked)
	}
}
