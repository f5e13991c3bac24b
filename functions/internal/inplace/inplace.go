// Package inplace wires what executes native servers in a function. It stands beside
// package boot because whoever imports it has go-sdk in the program, which the
// function of the relay has no use for.
package inplace

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/functions/internal/boot"
	"github.com/dormouse-mcp/dormouse/shared/native"
	"github.com/dormouse-mcp/dormouse/shared/relay"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// Backend executes the messages of native servers, and has those of all others go to
// their boxes. The servers file may name those servers only; the error says which.
func Backend(f *boot.Function, servers native.Servers) (*native.Backend, error) {
	for _, name := range f.Catalog.Names() {
		s, _ := f.Catalog.Server(name)
		if _, ok := servers[s.Native]; s.Native != "" && !s.Disabled && !ok {
			there := strings.Join(slices.Sorted(maps.Keys(servers)), ", ")
			if there == "" {
				there = "none"
			}
			return nil, fmt.Errorf("server %q: this program has no native server %q; it has %s", name, s.Native, there)
		}
	}
	return backend(f, func(name string) (native.Hosted, bool) {
		s, ok := f.Catalog.Server(name)
		return native.Hosted{Make: servers[s.Native], ToolTimeout: s.ToolTimeout, AnswerTimeout: s.AnswerTimeout}, ok && s.Native != ""
	})
}

// Janitor is a Backend for a function that executes nothing: what is to be executed
// is left to the function for HTTP.
func Janitor(f *boot.Function) (*native.Backend, error) {
	k, err := backend(f, func(name string) (native.Hosted, bool) {
		s, ok := f.Catalog.Server(name)
		return native.Hosted{ToolTimeout: s.ToolTimeout, AnswerTimeout: s.AnswerTimeout}, ok && s.Native != ""
	})
	if err == nil && k.Invoke == nil {
		k.Invoke = func(context.Context, []byte) error {
			return session.Errorf(session.Unavailable, "%s does not say which function executes native servers", boot.EnvSchedules)
		}
	}
	return k, err
}

func backend(f *boot.Function, servers func(string) (native.Hosted, bool)) (*native.Backend, error) {
	alarms, invoke, err := schedules(f)
	if err != nil {
		return nil, err
	}
	return native.NewBackend(native.Config{
		Store: f.Store, Servers: servers, Next: relay.NewBackend(f.Relay), Clients: f.Relay.Clients,
		Schedule: alarms, Invoke: invoke, EventAge: f.Limits.EventAge, Log: f.Log,
	}), nil
}

// schedules is where alarms are kept, nil for nowhere, and how the function for HTTP
// is invoked without waiting for it.
func schedules(f *boot.Function) (alarms native.Scheduler, invokeHTTP func(ctx context.Context, payload []byte) error, err error) {
	place, api := f.Schedules()
	if place == "" {
		return nil, nil, nil
	}
	var c native.SchedulesConfig
	if err = json.Unmarshal([]byte(place), &c); err == nil && (c.Group == "" || c.Target == "" || c.Role == "") {
		err = errors.New("want group, target and role")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", boot.EnvSchedules, err)
	}
	c.Endpoint, c.Client, c.Sign = api.Endpoint, api.Client, api.Sign
	return native.NewSchedules(c), func(ctx context.Context, payload []byte) error { return f.Invoke(ctx, c.Target, payload) }, nil
}
