package api

import (
	"maps"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
)

// Settings is how the servers file defines a server. Settings has the names of variables, but not
// their values.
type Settings struct {
	Name      string   `json:"name"`
	Native    string   `json:"native,omitempty"`
	Remote    string   `json:"remote,omitempty"`  // URL of a remote server, without its query
	Headers   []string `json:"headers,omitempty"` // the names of its headers
	Command   string   `json:"command,omitempty"`
	Args      []string `json:"args,omitempty"` // values of secret variables are hidden in them
	Cwd       string   `json:"cwd,omitempty"`
	Variables []string `json:"variables,omitempty"` // of its environment, sorted

	IdleSeconds    float64 `json:"idle_seconds,omitempty"` // 0: the default
	StartupSeconds float64 `json:"startup_timeout_sec"`
	ToolSeconds    float64 `json:"tool_timeout_sec,omitempty"` // 0: no limit

	Box      serversfile.Box `json:"box,omitzero"`
	Disabled bool            `json:"disabled,omitempty"`
}

const noSettings missing = "settings are shown by dormouse run only; the servers file of a stack is part of its functions"

func (x *exchange) settings() (any, error) {
	s, err := x.server()
	if err != nil {
		return nil, err
	}
	out := Settings{
		Name: s.Name, Native: s.Native, Remote: s.Remote.Address(), Headers: namesOf(s.Remote.Headers, s.Remote.Commands), Command: s.Command, Cwd: s.Cwd, Variables: namesOf(s.Env, s.Commands),
		IdleSeconds: s.Idle.Seconds(), StartupSeconds: s.StartupTimeout.Seconds(), ToolSeconds: s.ToolTimeout.Seconds(),
		Box: s.Box, Disabled: s.Disabled,
	}
	for _, a := range s.Args {
		out.Args = append(out.Args, x.h.Hide(a))
	}
	return out, nil
}

// Start says that a process of a server became ready, or that it failed, at its start or later.
type Start struct {
	Time      time.Time `json:"time"` // when it was ready or failed
	Tenant    string    `json:"tenant"`
	Principal string    `json:"principal,omitempty"` // the principal whose message started the process
	Client    string    `json:"client,omitempty"`
	Session   string    `json:"session"`
	MS        float64   `json:"duration_ms"`          // from the start of the program until it was ready
	InstallMS float64   `json:"install_ms,omitempty"` // of the installation before that
	Failed    bool      `json:"failed"`
	Phase     string    `json:"phase,omitempty"` // the step in which it failed
	Reason    string    `json:"reason,omitempty"`
}

// StartQuery selects starts of a server. Tenant "" selects those for all tenants.
type StartQuery struct {
	Tenant, Server string
	Limit          int
}

// newestStarts is how many starts an answer has.
const newestStarts = 20

func (x *exchange) starts() (any, error) {
	s, err := x.server()
	if err != nil {
		return nil, err
	}
	all, err := x.h.Starts(x.r.Context(), StartQuery{Tenant: x.caller.Tenant, Server: s.Name, Limit: newestStarts})
	for i := range all {
		if !x.caller.reads() {
			all[i].Reason = withoutOutput(all[i].Reason)
		}
	}
	return map[string]any{"starts": all}, err
}

func namesOf(values, commands map[string]string) []string {
	return slices.Sorted(slices.Values(slices.Concat(slices.Collect(maps.Keys(values)), slices.Collect(maps.Keys(commands)))))
}
