package api

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/dormouse-mcp/dormouse/shared/access/quota"
	"github.com/dormouse-mcp/dormouse/shared/config/clientfile"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Edits change the servers file of a machine, as the commands of dormouse do. Errors are in words
// for the user, and quote no value.
type Edits struct {
	// Add adds a server, starts it once, and returns what `dormouse add` prints. A server that
	// does not start is not added.
	Add    func(ctx context.Context, s NewServer) (said string, err error)
	Switch func(ctx context.Context, server string, on bool) error
	// SetValue gives the process of a server a variable. The value goes into .env.
	SetValue func(ctx context.Context, server, name, value string) error
}

// NewServer asks to add a server. The field What has what a user types after `dormouse add`: a
// command line, a URL, or the name of a server in the registry.
type NewServer struct {
	Name string   `json:"name"` // may be "" for a name in the registry
	What string   `json:"what"`
	Env  []string `json:"env,omitempty"` // NAME=VALUE
}

// Switch asks to switch a server off or on.
type Switch struct {
	On bool `json:"on"`
}

// NewValue is a variable for the process of a server.
type NewValue struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Said is the response to a change of the servers file. After an addition it has what
// `dormouse add` prints; after other changes it is empty.
type Said struct {
	Said string `json:"said,omitempty"`
}

// ForClients is a request for the ways in which clients can connect to a server. Key is the API key
// that they are to use; "" means none.
type ForClients struct {
	Key string `json:"key,omitempty"`
}

// ClientWays is how one client connects, the shortest way first.
type ClientWays struct {
	Name  string             `json:"name"`
	Title string             `json:"title"`
	Ways  []clientfile.Paste `json:"ways"`
}

// Quota is the limits of a tenant, and what it has used of them.
type Quota struct {
	quota.Report
	Limits quota.Limits `json:"limits"` // the limits that apply now
}

// Vitals is the load of a machine, and its memory and disk. Fields that the system does not tell
// are 0.
type Vitals struct {
	Processors  int     `json:"processors"`
	Load        float64 `json:"load"` // programs that wanted a processor, on average over a minute
	Memory      int64   `json:"memory_bytes"`
	MemoryFree  int64   `json:"memory_free_bytes"`
	MemoryBoxes int64   `json:"memory_boxes_bytes"` // of all processes of servers
	Disk        int64   `json:"disk_bytes"`         // the part of the data folder's disk that users may fill
	DiskFree    int64   `json:"disk_free_bytes"`
}

const (
	noEdits  missing = "the servers file is not changed here: that of a stack changes by dormouse push"
	noVitals missing = "only dormouse run tells of its machine: to its user, and to holders of keys for all servers of the tenant default"
	noLimits missing = "limits are not set here; dormouse quotas sets them"
)

func (c Caller) usesMachine() bool { return c.Tenant == "" && c.seesAll() && c.reads() }

// edit reads the body of a request that changes the servers file, and passes it to the function
// change. No API key gives the right to change the servers file, because it has commands that the
// machine executes.
func edit[T any](x *exchange, change func(order T) (string, error)) (any, error) {
	if !x.caller.usesMachine() {
		return nil, storage.Errorf(storage.Forbidden, "only the user of the machine changes its servers file: dormouse open makes a link that signs in")
	}
	var order T
	if err := x.body(&order); err != nil {
		return nil, err
	}
	said, err := change(order)
	if err != nil {
		return nil, storage.Errorf(storage.Invalid, "%s", err.Error())
	}
	return Said{said}, nil
}

func (x *exchange) addServer() (any, error) {
	return edit(x, func(s NewServer) (string, error) { return x.h.Add(x.r.Context(), s) })
}

func (x *exchange) switchServer() (any, error) {
	return edit(x, func(s Switch) (string, error) { return "", x.h.Switch(x.r.Context(), x.r.PathValue("server"), s.On) })
}

func (x *exchange) setValue() (any, error) {
	return edit(x, func(v NewValue) (string, error) {
		return "", x.h.SetValue(x.r.Context(), x.r.PathValue("server"), v.Name, v.Value)
	})
}

// clients answers with the ways in which each client connects to a server.
func (x *exchange) clients() (any, error) {
	s, err := x.server()
	if err != nil {
		return nil, err
	}
	var asked ForClients
	if err := x.body(&asked); err != nil {
		return nil, err
	}
	out := []ClientWays{}
	for _, c := range clientfile.Clients() {
		out = append(out, ClientWays{c.Name, c.Title, c.Pastes(clientfile.Server{Name: s.Name, URL: x.h.Info.URL + "/" + s.Name + "/mcp", Key: asked.Key})})
	}
	return map[string]any{"clients": out}, nil
}

// quotas answers with the limits of the tenants that the caller sees, and that have keys,
// sessions or limits.
func (x *exchange) quotas() (any, error) {
	tenants, err := x.tenants()
	if err != nil {
		return nil, err
	}
	if x.caller.Tenant == "" {
		limited, err := quota.Limited(x.r.Context(), x.h.Store)
		if err != nil {
			return nil, err
		}
		tenants = append(append(tenants, limited...), ownTenant)
		slices.Sort(tenants)
		tenants = slices.Compact(tenants)
	}
	all := []Quota{}
	for _, tenant := range tenants {
		r, err := quota.Show(x.r.Context(), x.h.Store, tenant)
		if err != nil {
			return nil, err
		}
		q, err := x.h.inForce(r)
		if err != nil {
			return nil, err
		}
		all = append(all, q)
	}
	return map[string]any{"quotas": all, "on": x.h.Servers().Limits() != nil}, nil
}

// inForce returns what a tenant has used, with the limits that apply to it now.
func (o Options) inForce(r quota.Report) (Quota, error) {
	limits, err := quota.InForce(o.Servers().Limits(), r.Own)
	return Quota{r, limits}, err
}

// setQuota changes limits of a tenant. In the request, null removes a limit, and "file" restores
// that of the servers file. Only the owner of the machine or stack changes limits, so that no
// tenant lifts its own.
func (x *exchange) setQuota() (any, error) {
	if !x.caller.owns() {
		return nil, storage.Errorf(storage.Forbidden, "limits are set by the operator of the place: with a key for all servers of the tenant %s", ownTenant)
	}
	var change json.RawMessage
	if err := x.body(&change); err != nil {
		return nil, err
	}
	r, err := quota.Set(x.r.Context(), x.h.Store, x.r.PathValue("tenant"), change)
	if err != nil {
		return nil, err
	}
	return x.h.inForce(r)
}

func (x *exchange) vitals() (any, error) {
	if !x.caller.seesAll() || x.caller.Tenant != "" && x.caller.Tenant != ownTenant {
		return nil, noVitals
	}
	return x.h.Vitals(x.r.Context())
}
