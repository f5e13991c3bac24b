package aggregate

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/group"
)

const (
	// mostKept is how many names the indexes of a Kept may have together. A single index may have
	// more.
	mostKept = 100_000
	// lookAgain is the age at which an index is made anew if it lacks a name that is looked up.
	lookAgain = time.Second
)

// Kept caches which member of a group has which tool, prompt or resource, so that not every call
// reads the lists of all members. Only this program may write the store's handshake records, and only
// through [Kept.Watch]. The zero value is ready. A Kept is safe for concurrent use.
type Kept struct {
	mu     sync.Mutex
	of     map[[sha256.Size]byte]*index // the indexes, by Group.key
	making map[*index]bool
	names  int // the sum of the names in all indexes
}

// index has the names of one kind in a group: of tools, prompts, resources or resource templates.
// Callers with the same [Group.key] see the same names.
type index struct {
	records map[string]bool   // the handshake records that the index depends on
	whole   bool              // members without a list in a record were asked, even sleeping ones
	made    time.Time         // when a caller last began to make the index; Kept.mu guards it
	stale   bool              // a record has changed since made; Kept.mu guards it
	entries []group.Entry     // the entries, without Raw
	names   map[string]int    // maps a name in the group to the index of its entry in entries
	owned   map[string]int    // maps a member's own name to the index of its entry in entries, or to -1 if several members have the name
	silent  map[string]string // members whose list is not known, with the reason
}

func (x *index) fill(entries []group.Entry) {
	x.entries, x.names, x.owned = make([]group.Entry, len(entries)), make(map[string]int, len(entries)), make(map[string]int, len(entries))
	for i, e := range entries {
		e = group.Entry{Member: e.Member, Own: strings.Clone(e.Own), Name: strings.Clone(e.Name)} // clones, because substrings would keep the bytes of the whole lists in memory
		x.entries[i] = e
		if _, twice := x.names[e.Name]; !twice {
			x.names[e.Name] = i
		}
		if _, twice := x.owned[e.Own]; twice {
			i = -1
		}
		x.owned[e.Own] = i
	}
}

// entry returns the entry of a name. The argument positions is x.names or x.owned.
func (x *index) entry(positions map[string]int, name string) (group.Entry, bool) {
	if i, ok := positions[name]; ok && i >= 0 {
		return x.entries[i], true
	}
	return group.Entry{}, false
}

// index returns the index for a list method (kind) and a session with the group. The function finds
// reports whether an index has the name that the caller looks up. index makes the index anew if a
// handshake record has changed, or if the name is not found and the index is older than lookAgain. If
// wakes is false, the index leaves out sleeping members whose list no record has.
func (g *Group) index(ctx context.Context, kind string, s storage.Session, wakes bool, finds func(*index) bool) (*index, error) {
	x := &index{whole: wakes, made: time.Now(), records: make(map[string]bool, len(g.Members))}
	if g.Kept != nil {
		key := g.key(kind, s)
		if kept := g.Kept.get(key, wakes, finds); kept != nil {
			return kept, nil
		}
		for _, c := range g.Members {
			x.records[storage.RecordFor(c.Tenant, c.Server.Digest)] = true
		}
		g.Kept.begin(x)
		defer func() { g.Kept.end(key, x) }()
	}
	entries, silent, err := g.entriesFor(ctx, kind, s, nil, wakes)
	if err != nil {
		return nil, err
	}
	x.silent = silent
	x.fill(entries)
	return x, nil
}

// confirm drops the index of a kind if it lacks an entry of the list that a client gets now. [Kept.Watch]
// does not see changes of lists that no handshake record has.
func (g *Group) confirm(kind string, s storage.Session, list []group.Entry) {
	if g.Kept == nil {
		return
	}
	key := g.key(kind, s)
	x := g.Kept.get(key, false, func(*index) bool { return true })
	if x == nil {
		return
	}
	for _, e := range list {
		if own, ok := x.entry(x.names, e.Name); !ok || own.Member != e.Member || own.Own != e.Own {
			g.Kept.drop(key, x)
			return
		}
	}
}

// key is a hash of everything that an index depends on besides the handshake records.
func (g *Group) key(kind string, s storage.Session) [sha256.Size]byte {
	var text []byte
	add := func(part string) { text = append(binary.AppendUvarint(text, uint64(len(part))), part...) }
	for _, part := range []string{kind, strconv.FormatBool(g.Plain), g.As.Tenant, g.As.Principal, g.As.Kind, string(s.Transport), s.Version} {
		add(part)
	}
	if s.Transport != storage.Modern { // for modern clients s is always the made-up session of Group.model
		add(string(wire.Lookup(s.Init, "capabilities")))
	}
	for _, c := range g.Members {
		add(c.Server.Name)
		add(c.Server.Digest)
		if !c.Tools.IsZero() {
			tools, _ := json.Marshal(c.Tools) // cannot fail: a ToolFilter holds only strings
			add(string(tools))
		}
	}
	return sha256.Sum256(text)
}

// get returns the index of a key, or nil if the caller must make it. If finds returns false for an index
// that is older than lookAgain, the first caller makes a new one, and the others get the old one meanwhile.
func (k *Kept) get(key [sha256.Size]byte, wakes bool, finds func(*index) bool) *index {
	k.mu.Lock()
	defer k.mu.Unlock()
	x, now := k.of[key], time.Now()
	switch {
	case x == nil || wakes && !x.whole:
		return nil
	case finds(x) || now.Sub(x.made) < lookAgain:
		return x
	default:
		x.made = now
		return nil
	}
}

// begin makes k set x.stale if a record of x changes while x is being made.
func (k *Kept) begin(x *index) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.of == nil {
		k.of, k.making = map[[sha256.Size]byte]*index{}, map[*index]bool{}
	}
	k.making[x] = true
}

// end stores x, unless its making failed or a record has changed meanwhile. It drops other indexes if
// there are too many names.
func (k *Kept) end(key [sha256.Size]byte, x *index) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.making, x)
	if x.stale || x.names == nil {
		return
	}
	k.remove(key)
	for other := range k.of {
		if k.names+len(x.entries) <= mostKept {
			break
		}
		k.remove(other)
	}
	k.of[key] = x
	k.names += len(x.entries)
}

func (k *Kept) drop(key [sha256.Size]byte, x *index) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.of[key] == x {
		k.remove(key)
	}
}

// remove drops an index. Call it with mu held.
func (k *Kept) remove(key [sha256.Size]byte) {
	if x := k.of[key]; x != nil {
		k.names -= len(x.entries)
		delete(k.of, key)
	}
}

// forget drops the indexes that depend on a handshake record.
func (k *Kept) forget(record string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for key, x := range k.of {
		if x.records[record] {
			k.remove(key)
		}
	}
	for x := range k.making {
		x.stale = x.stale || x.records[record]
	}
}

// Watch returns a store that tells k when it saves a list in a handshake record.
func (k *Kept) Watch(of storage.Store) storage.Store { return watched{of, k} }

type watched struct {
	storage.Store
	kept *Kept
}

// Unwrap returns the watched store, so that callers find its optional interfaces, such as
// [storage.Writable].
func (w watched) Unwrap() storage.Store { return w.Store }

func (w watched) SaveHandshake(ctx context.Context, h storage.Handshake) error {
	err := w.Store.SaveHandshake(ctx, h) // the handshake may have been saved even if there is an error
	if list, _, _ := strings.Cut(h.Version, " "); isListed(list) {
		w.kept.forget(h.Digest)
	}
	return err
}
