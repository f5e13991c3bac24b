package emulator

import (
	"testing"

	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/infra/local"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestFunctionsSeeCredentialsOnlyForAStoreOnAWS(t *testing.T) {
	all := []string{
		"DORMOUSE_WAITING_CALLS=1", "DORMOUSE_SESSION_LIFE=2", "DORMOUSE_STORE=no", "OTHER=no",
		"AWS_ACCESS_KEY_ID=id", "AWS_SECRET_ACCESS_KEY=key", "AWS_REGION=eu", "AWS_PROFILE=no",
	}
	settings := map[string]string{"DORMOUSE_WAITING_CALLS": "1", "DORMOUSE_SESSION_LIFE": "2"}
	tests := map[string]struct {
		store   string
		environ []string
		want    map[string]string
	}{
		"this machine":    {"sqlite:/x", all, settings},
		"AWS":             {"dynamodb:T", all, map[string]string{"DORMOUSE_WAITING_CALLS": "1", "DORMOUSE_SESSION_LIFE": "2", "AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key", "AWS_REGION": "eu"}},
		"no credentials":  {"dynamodb:T?endpoint=http://127.0.0.1:1", all[:4], settings}, // package lambda gives every function some
		"nothing is said": {"sqlite:/x", nil, map[string]string{}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			commontest.SameIn(t, name, test.want, passedOn(&local.Site{Config: local.Config{Environ: test.environ}, Store: test.store, Snapshots: "/kept"}))
		})
	}
}

// The functions' programs read every variable that package wiring reads.
func TestFunctionsGetEverySettingThatTheHandlersRead(t *testing.T) {
	var read []string
	if err := new(wiring.Settings).Read(func(name string) string { read = append(read, name); return "" }); err != nil || len(read) < 4 {
		t.Fatalf("%v is read, %v", read, err)
	}
	for _, name := range read {
		if got := passedOn(&local.Site{Config: local.Config{Environ: []string{name + "=7"}}, Store: "sqlite:/x"})[name]; got != "7" && name != wiring.EnvIdle { // which follows from Config
			t.Errorf("%s is %q", name, got)
		}
	}
}
