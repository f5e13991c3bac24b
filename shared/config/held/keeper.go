package held

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/observe"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// Keeper reads and changes which tools of servers are accepted. It is safe for concurrent use.
type Keeper struct {
	store storage.Values
	lock  *Lock // nil: there is none. If it cannot be read, methods return Invalid
	log   *slog.Logger
	tells observe.Observer // gets an event when tools are held back; may be nil

	mu    sync.Mutex
	known map[storage.Pin]names
}

type names struct {
	accepted map[string]bool
	read     time.Time
}

const (
	// current is how long Permit trusts the accepted names that it has read. Only a new lock file
	// can remove names from the accepted ones.
	current   = 30 * time.Second
	mostKnown = 1000
)

// NewKeeper returns a Keeper. The arguments lock and tells may be nil. The observer gets an event
// when a list has tools that are held back.
func NewKeeper(store storage.Values, lock *Lock, log *slog.Logger, tells observe.Observer) *Keeper {
	return &Keeper{store: store, lock: lock, log: log, tells: tells, known: map[storage.Pin]names{}}
}

func key(server string) storage.ValueKey {
	return storage.ValueKey{Server: server, Scope: storage.ValueOfServer, Name: "accepted tools"}
}

// load reads the record of a server. A record without tools means that nothing is accepted yet.
func (k *Keeper) load(ctx context.Context, pin storage.Pin) (r record, rev int64, err error) {
	v, err := k.store.LoadValue(ctx, key(pin.Server))
	if err != nil {
		return r, 0, err
	}
	if len(v.Data) > 0 {
		if r, err = decode(v.Data); err != nil {
			return r, 0, storage.Errorf(storage.Internal, "the accepted tools of server %q cannot be read", pin.Server).Because(err)
		}
	}
	if r.Source != pin.Source {
		r = record{} // the record is of another server, which had this name before
	}
	entry, ok, err := k.lock.entry(pin.Server)
	if err != nil {
		return r, 0, err
	}
	if print := fingerprint(entry.tools); ok && entry.Source == pin.Source && r.Lock != print {
		r = record{Source: pin.Source, Lock: print, Since: r.Since, Tools: slices.Clone(entry.tools), Held: r.Held}
		r.Held = slices.DeleteFunc(r.Held, func(h heldTool) bool {
			name, _ := nameOf(h.Tool)
			i := find(r.Tools, name)
			return i >= 0 && same(r.Tools[i], h.Tool)
		})
	}
	return r, v.Rev, nil
}

// save writes a record if its stored revision is still rev. The argument accepted says that the
// accepted tools have changed.
func (k *Keeper) save(ctx context.Context, pin storage.Pin, r record, rev int64, accepted bool) error {
	before := r.Lock
	writes := accepted && k.lock.writes()
	if writes {
		r.Lock = fingerprint(r.Tools)
	}
	v, err := k.put(ctx, pin, r, rev)
	if err != nil || !writes {
		return err
	}
	if err := k.lock.put(pin.Server, locked{Source: pin.Source, tools: r.Tools}); err != nil {
		k.log.Warn("the lock file of the servers file is not written; the store has what is accepted", "server", pin.Server, "error", err)
		r.Lock = before
		_, err = k.put(ctx, pin, r, v.Rev)
		return err
	}
	return nil
}

func (k *Keeper) put(ctx context.Context, pin storage.Pin, r record, rev int64) (v storage.Value, err error) {
	for {
		data, err := r.encode()
		if err != nil {
			return v, err
		}
		v, err = k.store.SaveValue(ctx, storage.Value{Key: key(pin.Server), Rev: rev, Data: data})
		if !errors.Is(err, storage.TooLarge) || len(r.Held) == 0 {
			return v, err
		}
		r.Held = r.Held[:len(r.Held)/2] // safe to forget: a tool that is not among the accepted ones is held back even if Held lacks it
	}
}

// attempts is how often a Keeper tries to change a record that others change at the same time.
const attempts = 20

// Show returns a list of tools as clients may see it. It accepts the first list of a server, and
// records which tools of later lists are held back. Cost: one read, and one write if the record
// changes.
//
// Errors: TooLarge if the first list is too long to be kept; Unavailable; Internal.
func (k *Keeper) Show(ctx context.Context, pin storage.Pin, list json.RawMessage) (json.RawMessage, error) {
	if wire.Lookup(list, "tools") == nil {
		return list, nil
	}
	for range attempts {
		r, rev, err := k.load(ctx, pin)
		if err != nil {
			return nil, err
		}
		accepted, news := r.listed(pin, list, time.Now())
		if news {
			switch err = k.save(ctx, pin, r, rev, accepted); {
			case errors.Is(err, storage.Conflict):
				continue
			case err != nil && accepted:
				return nil, err
			case err != nil: // r is right even if it is not stored
				k.log.Warn("the held tools are not noted", "server", pin.Server, "error", err)
			case len(r.Held) > 0 && !accepted:
				added, changed := r.counts()
				k.tells.Tell(ctx, nil, &observe.Event{
					Kind: observe.Held, Level: slog.LevelWarn, Account: storage.Account{Server: pin.Server}, What: fmt.Sprintf("%d new, %d changed", added, changed),
				})
			}
		}
		return r.show(list), nil
	}
	return nil, storage.Errorf(storage.Unavailable, "the accepted tools of server %q are being changed by too many requests at once; try again", pin.Server)
}

// counts returns how many of the tools in r.Held are new, and how many have changed.
func (r record) counts() (added, changed int) {
	for _, h := range r.Held {
		if name, _ := nameOf(h.Tool); find(r.Tools, name) < 0 {
			added++
		} else {
			changed++
		}
	}
	return added, changed
}

// Permit returns nil if tools may be called: they are accepted, or no list is accepted yet. Cost: one
// read every 30 seconds, and one for each call of a tool that is not accepted.
//
// Errors: *[wire.Error] for a tool that is not accepted; Unavailable; Internal.
func (k *Keeper) Permit(ctx context.Context, pin storage.Pin, tools []string) error {
	k.mu.Lock()
	of := k.known[pin]
	k.mu.Unlock()
	lacks := func(tool string) bool { return !of.accepted[tool] }
	if len(tools) == 0 || time.Since(of.read) < current && !slices.ContainsFunc(tools, lacks) {
		return nil
	}
	r, _, err := k.load(ctx, pin)
	if err != nil || !r.accepts() {
		return err
	}
	of = names{map[string]bool{}, time.Now()}
	for _, t := range r.Tools {
		name, _ := nameOf(t)
		of.accepted[name] = true
	}
	k.mu.Lock()
	if len(k.known) >= mostKnown {
		clear(k.known)
	}
	k.known[pin] = of
	k.mu.Unlock()
	if i := slices.IndexFunc(tools, lacks); i >= 0 {
		return &wire.Error{
			Code: wire.CodeInvalidParams,
			Message: fmt.Sprintf("the tool %q of server %q is held back: it is not in the list that was accepted. Its operator takes it with: dormouse accept %s",
				wire.Clip(Visible(tools[i])), pin.Server, pin.Server),
			Data: map[string]string{"dormouse/held": wire.Clip(tools[i])},
		}
	}
	return nil
}

// Server says which tools of a server are held back until an operator accepts them.
type Server struct {
	Server string    `json:"server"`
	Source string    `json:"source"`         // what the server runs, without a version
	Since  time.Time `json:"since,omitzero"` // of the last acceptance; zero: nothing is accepted yet
	Tools  int       `json:"tools"`          // how many tools are accepted
	Held   []Tool    `json:"held"`
}

// Tool is one tool that is held back: clients do not get it in this form.
type Tool struct {
	Change
	Since time.Time `json:"since"` // when the server first listed the tool in this form
	Seen  time.Time `json:"seen"`  // when the server last listed the tool in this form, to the hour
}

// State returns which tools of a server are held back. Cost: one read.
//
// Errors: Unavailable, Internal.
func (k *Keeper) State(ctx context.Context, pin storage.Pin) (Server, error) {
	r, _, err := k.load(ctx, pin)
	if err != nil {
		return Server{}, err
	}
	return r.state(pin), nil
}

// Count returns how many tools are held back from clients. Cost: one read.
//
// Errors: Unavailable, Internal.
func (k *Keeper) Count(ctx context.Context, pin storage.Pin) (int, error) {
	r, _, err := k.load(ctx, pin)
	return len(r.Held), err
}

// Look returns tools as Show would show them, and changes nothing. If no list is accepted yet, it
// returns all tools. Cost: one read.
//
// Errors: Unavailable, Internal.
func (k *Keeper) Look(ctx context.Context, pin storage.Pin, tools []json.RawMessage) ([]json.RawMessage, error) {
	r, _, err := k.load(ctx, pin)
	if err != nil || !r.accepts() {
		return tools, err
	}
	shown := []json.RawMessage{}
	seen := map[string]bool{}
	for _, t := range tools {
		name, _ := nameOf(tool(t))
		if i := find(r.Tools, name); i >= 0 && !seen[name] {
			seen[name] = true
			shown = append(shown, json.RawMessage(r.Tools[i]))
		}
	}
	return shown, nil
}

func (r record) state(pin storage.Pin) Server {
	s := Server{Server: pin.Server, Source: pin.Source, Since: r.Since, Tools: len(r.Tools), Held: []Tool{}}
	for _, h := range r.Held {
		name, _ := nameOf(h.Tool)
		was := tool("")
		if i := find(r.Tools, name); i >= 0 {
			was = r.Tools[i]
		}
		s.Held = append(s.Held, Tool{changeOf(name, was, h.Tool), h.Since.UTC(), h.Seen.UTC()})
	}
	slices.SortFunc(s.Held, func(a, b Tool) int { return strings.Compare(a.Name, b.Name) })
	return s
}

// Accept accepts tools that are held back. The argument versions maps the name of each tool to
// the Hash of the version that the operator has seen. Accept returns the accepted tools.
//
// Errors: NotFound (no such tool is held back), Conflict (the server has listed another version in the
// meantime), Unavailable, Internal.
func (k *Keeper) Accept(ctx context.Context, pin storage.Pin, versions map[string]string) ([]Tool, error) {
	for range attempts {
		r, rev, err := k.load(ctx, pin)
		if err != nil {
			return nil, err
		}
		var taken []Tool
		state := r.state(pin)
		for _, name := range slices.Sorted(maps.Keys(versions)) {
			i := slices.IndexFunc(state.Held, func(t Tool) bool { return t.Name == name })
			switch {
			case i < 0:
				return nil, storage.Errorf(storage.NotFound, "server %q has no tool %q that is held back", pin.Server, wire.Clip(Visible(name)))
			case state.Held[i].Hash != versions[name]:
				return nil, storage.Errorf(storage.Conflict, "server %q lists the tool %q otherwise now: look at it again", pin.Server, wire.Clip(Visible(name)))
			}
			taken = append(taken, state.Held[i])
			r.take(name)
		}
		if len(taken) == 0 {
			return taken, nil
		}
		r.Since, r.Open = time.Now(), time.Time{}
		err = k.save(ctx, pin, r, rev, true)
		if err == nil {
			k.log.Info("held tools are accepted", "server", pin.Server, "tools", len(taken))
		}
		if !errors.Is(err, storage.Conflict) {
			return taken, err
		}
	}
	return nil, storage.Errorf(storage.Unavailable, "the accepted tools of server %q are being changed by too many requests at once; try again", pin.Server)
}

func (r *record) take(name string) {
	r.Tools = slices.Clone(r.Tools)
	r.Held = slices.DeleteFunc(slices.Clone(r.Held), func(h heldTool) bool {
		has, _ := nameOf(h.Tool)
		if has != name {
			return false
		}
		if i := find(r.Tools, name); i >= 0 {
			r.Tools[i] = h.Tool
		} else {
			r.Tools = append(r.Tools, h.Tool)
		}
		return true
	})
}
