package api

import (
	"encoding/json"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/store/meter"
)

// Prefix begins the path of every route.
const Prefix = "/api/v1/"

// Info describes the endpoint that answers, and what the caller may do there.
type Info struct {
	Version     string   `json:"version"`                     // of the program
	Protocol    []string `json:"protocol_versions"`           // of MCP, the newest first
	Place       string   `json:"place"`                       // PlaceMachine, PlaceStack or PlaceStore
	URL         string   `json:"url,omitempty"`               // of the endpoint; servers are at URL/NAME/mcp
	Certificate []byte   `json:"certificate,omitempty"`       // of the endpoint, in DER, if it has one and the caller is the user of its machine
	Access      string   `json:"access,omitempty"`            // who may call: open, keys, oauth or idp
	Guests      bool     `json:"guests,omitempty"`            // others than the user of the machine can call, so the system confines servers without a profile, if it can
	SignIn      string   `json:"sign_in,omitempty"`           // the provider at which callers sign in; "" if they send keys
	Principal   string   `json:"principal,omitempty"`         // of the caller's key
	Tenant      string   `json:"tenant,omitempty"`            // whose records the caller sees; "" for all tenants
	Role        string   `json:"role"`                        // of the caller: viewer, auditor or operator
	User        bool     `json:"user,omitempty"`              // the caller is a person who has signed in, and has no key
	Edits       bool     `json:"edits,omitempty"`             // the caller may add servers, switch them on and off, and set their values
	Dashboard   string   `json:"dashboard,omitempty"`         // URL of a stack's dashboard in CloudWatch
	SearchUSD   float64  `json:"search_usd_per_gb,omitempty"` // price of a search for calls, on stacks where each search costs something
}

// Values of Info.Place.
const (
	PlaceMachine = "machine" // `dormouse run`
	PlaceStack   = "stack"   // the functions of a stack on AWS, which know only what the store has
	PlaceStore   = "store"   // a command that reads a store while nothing is up
)

// The states of a server.
const (
	Awake     = "awake"      // a box is up, and a process is ready, or all have ended normally
	Asleep    = "asleep"     // nothing runs
	Remote    = "remote"     // somebody else hosts the server, so nothing runs here
	Starting  = "starting"   // a box is up, and no process has answered initialize yet
	Failed    = "failed"     // no process runs, and the last one failed
	NotServed = "not served" // the servers file has a mistake
	Off       = "off"        // the servers file disables it
)

// Values of Server.Start.
const (
	FailedLast     = "failed last time" // nothing runs, and the last start failed
	NeverStarted   = "never started"
	ProgramMissing = "program missing" // its command is not on this machine
)

// Server is one server of the servers file. Times are RFC 3339, UTC, here and below.
type Server struct {
	Name      string `json:"name"`
	State     string `json:"state"`
	Why       string `json:"why,omitempty"`   // the reason for Failed, NotServed, Off and ProgramMissing
	Start     string `json:"start,omitempty"` // if no box is up: FailedLast for State Failed; NeverStarted or ProgramMissing for State Asleep
	Path      string `json:"path,omitempty"`  // of its endpoint: /NAME/mcp
	Tools     *int   `json:"tools,omitempty"` // in the list that the store keeps; absent if there is none
	Held      int    `json:"held,omitempty"`  // tools that are held back until an operator accepts them
	Boxes     int    `json:"boxes"`
	Processes int    `json:"processes"` // running ones; 0 on a stack, which does not know them
	Sessions  int    `json:"sessions"`
	// MoreSessions reports that the machine has so many sessions that not all were counted.
	MoreSessions bool       `json:"more_sessions,omitempty"`
	LastMessage  *time.Time `json:"last_message,omitempty"`
	// Calls and FailedCalls are of the last 24 hours. Both are absent where calls are not kept.
	Calls       *int64 `json:"calls_24h,omitempty"`
	FailedCalls *int64 `json:"failed_24h,omitempty"`
}

// Tools is a server's list of tools, as its clients get it.
type Tools struct {
	Server string            `json:"server"`
	Taken  time.Time         `json:"taken"` // when the server gave the list
	Tools  []json.RawMessage `json:"tools"`
}

// Session is one session. Only its principal may use it.
type Session struct {
	ID          string    `json:"id"`
	Server      string    `json:"server"`
	Tenant      string    `json:"tenant"`
	Principal   string    `json:"principal"`
	State       string    `json:"state"`
	Quit        string    `json:"quit,omitempty"` // why the session ended
	Client      string    `json:"client,omitempty"`
	Transport   string    `json:"transport"`
	Version     string    `json:"protocol_version"`
	Created     time.Time `json:"created"`
	LastMessage time.Time `json:"last_message"`
	Expires     time.Time `json:"expires"`
}

// Sessions is a page of sessions in order of id. Next, if set, is the query parameter "after" of the
// request for the next page.
type Sessions struct {
	Sessions []Session `json:"sessions"`
	Next     string    `json:"next,omitempty"`
}

// Status says which boxes and processes are up.
type Status struct {
	Boxes []Box `json:"boxes"`
	// Processes are the processes of servers, as their boxes report them, newest first. They include
	// processes that are not started yet, and those that failed or were stopped while their box is
	// still up. On a stack, Processes is null.
	Processes []Process `json:"processes"`
	// Failed says by server why its last start failed, if none has succeeded since; for callers that
	// do not see all tenants, the last start for their tenant. Failed is nil if that is unknown, as on a
	// stack.
	Failed map[string]string `json:"-"`
}

// Box is one box that is up.
type Box struct {
	Box       string    `json:"box"` // TENANT/SERVER
	Server    string    `json:"server"`
	State     string    `json:"state,omitempty"` // starting, awake or asleep
	Task      string    `json:"task"`
	PID       int       `json:"pid"` // of its runner, 0 on a stack
	Started   time.Time `json:"started"`
	Processes []Member  `json:"processes"`
}

// Member is one process of a box, other than its runner.
type Member struct {
	PID     int       `json:"pid"`
	Command string    `json:"command"`
	Started time.Time `json:"started"`
	Memory  int64     `json:"memory_bytes,omitempty"` // in RAM
	Group   int       `json:"-"`                      // its process group
}

// Process is one process of a server, which is of one session or shared by several.
type Process struct {
	Server    string     `json:"server"`
	Box       string     `json:"box"`
	Process   string     `json:"process"`  // id of its session, or a name if several sessions share it
	Sessions  []string   `json:"sessions"` // the sessions that it has served
	PID       int        `json:"pid,omitempty"`
	State     string     `json:"state"`           // staging, started, ready, stopped, exited
	Phase     string     `json:"phase,omitempty"` // the phase in which it failed
	Detail    string     `json:"detail,omitempty"`
	Since     time.Time  `json:"since"` // when it reached State
	Restarts  int        `json:"restarts"`
	Memory    int64      `json:"memory_bytes,omitempty"` // of it and its children, in RAM
	Principal string     `json:"principal,omitempty"`    // of its sessions; "N people" for several
	Client    string     `json:"client,omitempty"`
	LastCall  *time.Time `json:"last_call,omitempty"`
}

// Stop asks to stop processes. Calls in flight get 30 seconds to end, or no time if Now is set. The
// stored answers of the servers to initialize and to lists are forgotten, unless Keep is set.
type Stop struct {
	Now  bool `json:"now"`
	Keep bool `json:"keep,omitempty"`
}

// Give asks to hand a session over to another principal of its tenant.
type Give struct {
	Principal string `json:"principal"`
}

// Stopped says which boxes were told to stop. A box that sleeps is not told, unless it keeps the
// memory of a process.
type Stopped struct {
	Boxes []string `json:"boxes"`         // TENANT/SERVER
	Why   string   `json:"why,omitempty"` // for a native or remote server: why there is nothing to stop
}

// ownTenant is the tenant of the owner of a stack or machine.
const ownTenant = "default"

// Push is a servers file for all Lambda functions of a stack.
type Push struct {
	Name     string `json:"name"`               // name of the file, for error messages
	Text     string `json:"text,omitempty"`     // at most override.MaxFile bytes
	Withdraw bool   `json:"withdraw,omitempty"` // instead of Text: go back to the file that was deployed with the functions
}

// Pushed is the result of a push. The Lambda functions take the file within 30 seconds.
type Pushed struct {
	Version int64 `json:"version"`
}

// Reload asks to read the servers file now. What the servers in Forget have answered to initialize and
// to lists is forgotten. If Forget is nil, that holds for all servers.
type Reload struct {
	Forget []string `json:"forget"`
}

// Reloaded is the result of a [Reload].
type Reloaded struct {
	Changes string `json:"changes"` // in one line, "" for none
	Error   string `json:"error"`   // why the file is not served, with one mistake on each line; "" if it is
}

// Prepared is what is known of a server after its first start.
type Prepared struct {
	Version string `json:"version"` // of the server; may be ""
	Tools   int    `json:"tools"`
	Warning string `json:"warning,omitempty"` // about its tools
}

// Key describes an API key.
type Key struct {
	Key       string     `json:"key,omitempty"` // the key itself, with its secret; only in the answer to the request that makes it
	ID        string     `json:"id"`
	Tenant    string     `json:"tenant"`
	Principal string     `json:"principal"`
	Role      string     `json:"role"` // user, viewer, auditor or operator
	Servers   []string   `json:"servers"`
	Created   time.Time  `json:"created"`
	LastUsed  *time.Time `json:"last_used,omitempty"` // exact to an hour
	Expires   *time.Time `json:"expires,omitempty"`   // when the key expires; of a revoked key, when the store forgets it
	Revoked   *time.Time `json:"revoked,omitempty"`
}

// KeyDays is how many days a key is valid by default.
const KeyDays = 365

// NewKey asks to create an API key.
type NewKey struct {
	Principal string          `json:"principal"`
	Tenant    string          `json:"tenant,omitempty"` // the caller's own by default
	Servers   []string        `json:"servers"`          // "*" for all
	Role      string          `json:"role,omitempty"`   // user by default
	Props     json.RawMessage `json:"props,omitempty"`
	Seconds   int64           `json:"life_seconds"` // KeyDays if it is absent; 0: until the key is revoked
}

// Rotate asks for a key that replaces another one.
type Rotate struct {
	Seconds int64 `json:"grace_seconds"` // how long the old key still works
}

// Rotated is the new key, and the old one with the time at which it expires.
type Rotated struct {
	Key Key `json:"key"`
	Old Key `json:"old"`
}

// Output is a piece of the kept output of one process: whole lines.
type Output struct {
	Server  string    `json:"server"`
	Process string    `json:"process"` // id of the process's session, or a name if several sessions share it
	Shared  []string  `json:"-"`       // the sessions that share the process
	Began   time.Time `json:"began"`   // start of the process
	Text    string    `json:"text"`
}

// Outputs selects output of processes.
type Outputs struct {
	Of     string        // a server, or the beginning of a session's id; "" for everything
	Lines  int           // how many of the last lines of each process; 0 for all
	Since  time.Duration // only processes that have written within this time; 0 for all
	Follow bool          // go on with the lines that are written from now on
}

// Bill is the use since a time, in shares. The largest share comes first.
type Bill struct {
	Since  time.Time `json:"since"`
	Until  time.Time `json:"until"`
	USD    float64   `json:"usd"`    // cost of all shares, at the published prices of AWS
	Prices string    `json:"prices"` // the date of these prices
	Shares []Share   `json:"shares"`
}

// Share is the use of one session. If Session is "", it is the use of the boxes of a server and tenant,
// which several sessions share. If Server and Tenant are "" too, it is the rest: regular work such as
// the search for lost boxes, and refused callers.
type Share struct {
	Server    string      `json:"server,omitempty"`
	Tenant    string      `json:"tenant,omitempty"`
	Session   string      `json:"session,omitempty"`
	Principal string      `json:"principal,omitempty"` // whose session it is; "" in a share of boxes, because several principals may use a box
	Tool      string      `json:"tool,omitempty"`      // the tool that was called, "" for boxes and other requests; absent without the query parameter since
	Day       string      `json:"day,omitempty"`       // such as 2026-11-22, UTC; absent without the query parameter since
	USD       float64     `json:"usd"`                 // at the published prices of AWS
	Units     meter.Units `json:"units"`
}

// Entry is a link to the console.
type Entry struct {
	URL     string `json:"url"`
	Seconds int64  `json:"expires_in"` // the link works once, and for this long
}

// Failure is the body of every answer that is not 2xx.
type Failure struct {
	Error struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}
