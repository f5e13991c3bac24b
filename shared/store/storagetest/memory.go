package storagetest

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Memory is a [storage.Store] in the memory of one program, for tests and for simulations that
// read the whole log ([Memory.Batches]). It is never Unavailable, and limits nothing but the age
// of records. Wait waits on channels and timers only, so that testing/synctest regards it as
// durably blocked. Memory is safe for concurrent use.
type Memory struct {
	mu             sync.Mutex // not held while Wait waits
	sessions       map[storage.ID]storage.Session
	answers        map[storage.ID]map[string]storage.Answer
	conns          map[string]storage.Connection
	keys           *collection[storage.Key]
	tickets        map[string]storage.EntryTicket
	grants         *collection[storage.Grant]
	upstreamTokens *collection[storage.UpstreamToken]
	states         map[storage.ValueKey]storage.Value
	handshakes     map[[2]string]storage.Handshake
	streams        map[streamKey]map[storage.Index]storage.Batch // by first index
	boxes          map[storage.BoxID]storage.Box
	items          map[storage.BoxID]map[storage.StreamID]storage.Item
	parts          map[partKey]map[int]storage.Part
	changed        map[streamKey]chan struct{} // closed when a batch or an item of the stream is stored
}

type streamKey struct {
	session storage.ID
	stream  storage.StreamID
}

type partKey struct {
	box   storage.BoxID
	frame string
}

var _ storage.Store = (*Memory)(nil)

// NewMemory makes an empty Memory.
func NewMemory() *Memory {
	m := &Memory{
		sessions:   map[storage.ID]storage.Session{},
		answers:    map[storage.ID]map[string]storage.Answer{},
		conns:      map[string]storage.Connection{},
		tickets:    map[string]storage.EntryTicket{},
		states:     map[storage.ValueKey]storage.Value{},
		handshakes: map[[2]string]storage.Handshake{},
		streams:    map[streamKey]map[storage.Index]storage.Batch{},
		boxes:      map[storage.BoxID]storage.Box{},
		items:      map[storage.BoxID]map[storage.StreamID]storage.Item{},
		parts:      map[partKey]map[int]storage.Part{},
		changed:    map[streamKey]chan struct{}{},
	}
	m.keys, m.grants, m.upstreamTokens = newCollection(m, storage.KeyKind()), newCollection(m, storage.GrantKind()), newCollection(m, storage.UpstreamTokenKind())
	return m
}

// Close implements storage.Store. It does nothing.
func (m *Memory) Close() error { return nil }

// lock locks m.mu and returns the present time, by which its caller sees what has expired.
func (m *Memory) lock() (now time.Time) {
	m.mu.Lock()
	return time.Now()
}

// alive reports whether a record has not expired. A zero expires means never.
func alive(expires, now time.Time) bool { return expires.IsZero() || expires.After(now) }

// Create implements storage.Sessions.
func (m *Memory) Create(_ context.Context, s storage.Session) error {
	now := m.lock()
	defer m.mu.Unlock()
	if old, ok := m.sessions[s.ID]; ok && alive(old.Expires, now) {
		return storage.Errorf(storage.Conflict, "session %s is there already", s.ID)
	}
	s.Rev = 1
	m.sessions[s.ID] = s.Clone()
	return nil
}

// Load implements storage.Sessions.
func (m *Memory) Load(_ context.Context, id storage.ID, box storage.BoxID) (storage.Session, storage.Box, error) {
	now := m.lock()
	defer m.mu.Unlock()
	b := m.box(box)
	s, ok := m.sessions[id]
	if !ok || !alive(s.Expires, now) {
		return storage.Session{}, b, storage.Errorf(storage.NotFound, "there is no session %s", id).Because(expiredIf(ok))
	}
	return s.Clone(), b, nil
}

// expiredIf returns the cause of a NotFound error for a session, given whether its record is
// still there.
func expiredIf(there bool) error {
	if there {
		return storage.QuitExpired
	}
	return nil
}

// Save implements storage.Sessions.
func (m *Memory) Save(_ context.Context, s storage.Session) error {
	now := m.lock()
	defer m.mu.Unlock()
	old, ok := m.sessions[s.ID]
	if !ok || !alive(old.Expires, now) {
		return storage.Errorf(storage.NotFound, "there is no session %s", s.ID)
	}
	if old.Rev != s.Rev {
		return storage.Errorf(storage.Conflict, "session %s has revision %d, not %d", s.ID, old.Rev, s.Rev)
	}
	s.Rev++
	m.sessions[s.ID] = s.Clone()
	return nil
}

// List implements storage.Sessions.
func (m *Memory) List(_ context.Context, tenant string, after storage.ID, limit int) ([]storage.Session, error) {
	now := m.lock()
	defer m.mu.Unlock()
	var out []storage.Session
	for _, id := range slices.Sorted(maps.Keys(m.sessions)) {
		s := m.sessions[id]
		if len(out) < limit && id > after && alive(s.Expires, now) && (tenant == "" || s.Tenant == tenant) {
			out = append(out, s.Clone())
		}
	}
	return out, nil
}

// PutAnswer implements storage.Answers.
func (m *Memory) PutAnswer(_ context.Context, a storage.Answer) (first bool, err error) {
	now := m.lock()
	defer m.mu.Unlock()
	if old, ok := m.answers[a.Session][a.Question]; ok && alive(old.Expires, now) {
		return false, nil
	}
	if m.answers[a.Session] == nil {
		m.answers[a.Session] = map[string]storage.Answer{}
	}
	a.Raw = bytes.Clone(a.Raw)
	m.answers[a.Session][a.Question] = a
	return true, nil
}

// Answers implements storage.Answers.
func (m *Memory) Answers(_ context.Context, id storage.ID, questions []string) ([]storage.Answer, error) {
	now := m.lock()
	defer m.mu.Unlock()
	var out []storage.Answer
	for _, q := range questions {
		if a, ok := m.answers[id][q]; ok && alive(a.Expires, now) {
			a.Raw = bytes.Clone(a.Raw)
			out = append(out, a)
		}
	}
	return out, nil
}

// SaveHandshake implements storage.Handshakes.
func (m *Memory) SaveHandshake(_ context.Context, h storage.Handshake) error {
	m.lock()
	defer m.mu.Unlock()
	h.Result = bytes.Clone(h.Result)
	m.handshakes[[2]string{h.Digest, h.Version}] = h
	return nil
}

// Recorded implements storage.Handshakes.
func (m *Memory) Recorded(ctx context.Context, keys []storage.RecordKey) ([]storage.Recorded, error) {
	list := make([]storage.Recorded, len(keys))
	for i, k := range keys {
		list[i].Handshake, _ = m.Handshake(ctx, k.Digest, k.Version) // zero if there is none
		list[i].Box, _ = m.Box(ctx, k.Box)                           // Memory.Box never fails
	}
	return list, nil
}

// ListHandshakes implements storage.Handshakes.
func (m *Memory) ListHandshakes(_ context.Context, digest, prefix string) ([]storage.Handshake, error) {
	now := m.lock()
	defer m.mu.Unlock()
	var list []storage.Handshake
	for k, h := range m.handshakes {
		if k[0] == digest && strings.HasPrefix(k[1], prefix) && alive(h.Expires, now) {
			h.Result = bytes.Clone(h.Result)
			list = append(list, h)
		}
	}
	slices.SortFunc(list, func(a, b storage.Handshake) int { return cmp.Compare(a.Version, b.Version) })
	return list, nil
}

// Handshake implements storage.Handshakes.
func (m *Memory) Handshake(_ context.Context, digest, version string) (storage.Handshake, error) {
	now := m.lock()
	defer m.mu.Unlock()
	h, ok := m.handshakes[[2]string{digest, version}]
	if !ok || !alive(h.Expires, now) {
		return storage.Handshake{}, storage.Errorf(storage.NotFound, "there is no handshake record of %s for %s", digest, version)
	}
	h.Result = bytes.Clone(h.Result)
	return h, nil
}

// PutConnection implements storage.Connections.
func (m *Memory) PutConnection(_ context.Context, c storage.Connection) error {
	m.lock()
	defer m.mu.Unlock()
	m.conns[c.ID] = c
	return nil
}

// Connection implements storage.Connections.
func (m *Memory) Connection(_ context.Context, id string) (storage.Connection, error) {
	now := m.lock()
	defer m.mu.Unlock()
	c, ok := m.conns[id]
	if !ok || !alive(c.Expires, now) {
		return storage.Connection{}, storage.Errorf(storage.NotFound, "there is no connection %s", id)
	}
	return c, nil
}

// DeleteConnection implements storage.Connections.
func (m *Memory) DeleteConnection(_ context.Context, id string) error {
	m.lock()
	defer m.mu.Unlock()
	delete(m.conns, id)
	return nil
}

// box returns the record of a box. The caller must hold m.mu.
func (m *Memory) box(id storage.BoxID) storage.Box {
	b := m.boxes[id]
	b.ID = id
	return b
}

// Box implements storage.Boxes.
func (m *Memory) Box(_ context.Context, id storage.BoxID) (storage.Box, error) {
	m.lock()
	defer m.mu.Unlock()
	return m.box(id), nil
}

// SaveBox implements storage.Boxes.
func (m *Memory) SaveBox(_ context.Context, b storage.Box) error {
	m.lock()
	defer m.mu.Unlock()
	if old := m.boxes[b.ID]; old.Rev != b.Rev {
		return storage.Errorf(storage.Conflict, "box %s has revision %d, not %d", b.ID, old.Rev, b.Rev)
	}
	b.Rev++
	m.boxes[b.ID] = b
	return nil
}

// PutItem implements storage.Items.
func (m *Memory) PutItem(_ context.Context, it storage.Item) (put bool, err error) {
	m.lock()
	defer m.mu.Unlock()
	if _, ok := m.items[it.Box][it.ID]; ok {
		return false, nil
	}
	if m.items[it.Box] == nil {
		m.items[it.Box] = map[storage.StreamID]storage.Item{}
	}
	m.items[it.Box][it.ID] = cloneItem(it)
	m.wake(it.Address.Session, it.ID)
	return true, nil
}

// Claim implements storage.Items.
func (m *Memory) Claim(_ context.Context, box storage.BoxID, id storage.StreamID, gen storage.Generation) (storage.Item, error) {
	m.lock()
	defer m.mu.Unlock()
	it, ok := m.items[box][id]
	switch {
	case !ok:
		return storage.Item{}, storage.Errorf(storage.NotFound, "there is no item %s of box %s", id, box)
	case it.State == storage.Waiting:
		it.State, it.Gen = storage.Taken, gen
		m.items[box][id] = it
		m.wake(it.Address.Session, id)
	case it.State != storage.Taken || it.Gen != gen:
		return storage.Item{}, storage.Errorf(storage.Conflict, "item %s of box %s is %s by generation %d", id, box, it.State, it.Gen)
	}
	return cloneItem(it), nil
}

// SwapItem implements storage.Items.
func (m *Memory) SwapItem(_ context.Context, was, it storage.Item) (swapped bool, err error) {
	m.lock()
	defer m.mu.Unlock()
	old, ok := m.items[it.Box][it.ID]
	if !ok || old.State != was.State || old.Gen != was.Gen || old.Round != was.Round {
		return false, nil
	}
	m.items[it.Box][it.ID] = cloneItem(it)
	m.wake(it.Address.Session, it.ID)
	return true, nil
}

// Item implements storage.Items.
func (m *Memory) Item(_ context.Context, box storage.BoxID, id storage.StreamID) (storage.Item, error) {
	m.lock()
	defer m.mu.Unlock()
	it, ok := m.items[box][id]
	if !ok {
		return storage.Item{}, storage.Errorf(storage.NotFound, "there is no item %s of box %s", id, box)
	}
	return cloneItem(it), nil
}

// Items implements storage.Items.
func (m *Memory) Items(_ context.Context, box storage.BoxID) ([]storage.Item, error) {
	m.lock()
	defer m.mu.Unlock()
	var out []storage.Item
	for _, id := range slices.Sorted(maps.Keys(m.items[box])) {
		it := m.items[box][id]
		it.Raw = nil
		out = append(out, cloneItem(it))
	}
	return out, nil
}

// DeleteItem implements storage.Items.
func (m *Memory) DeleteItem(_ context.Context, box storage.BoxID, id storage.StreamID, gen storage.Generation) error {
	m.lock()
	defer m.mu.Unlock()
	it, ok := m.items[box][id]
	if ok && (gen == 0 || it.State == storage.Taken && it.Gen == gen) {
		delete(m.items[box], id)
	}
	return nil
}

// Due implements storage.Boxes.
func (m *Memory) Due(_ context.Context) ([]storage.BoxID, error) {
	m.lock()
	defer m.mu.Unlock()
	due := map[storage.BoxID]bool{}
	for id, b := range m.boxes {
		if b.State != storage.Asleep {
			due[id] = true
		}
	}
	for id, items := range m.items {
		if len(items) > 0 {
			due[id] = true
		}
	}
	return slices.Sorted(maps.Keys(due)), nil
}

// PutPart implements storage.Parts.
func (m *Memory) PutPart(_ context.Context, p storage.Part) error {
	m.lock()
	defer m.mu.Unlock()
	key := partKey{p.Box, p.Frame}
	if m.parts[key] == nil {
		m.parts[key] = map[int]storage.Part{}
	}
	p.Data = bytes.Clone(p.Data)
	m.parts[key][p.N] = p
	return nil
}

// Parts implements storage.Parts.
func (m *Memory) Parts(_ context.Context, box storage.BoxID, frame string) ([]storage.Part, error) {
	now := m.lock()
	defer m.mu.Unlock()
	var out []storage.Part
	for _, p := range m.parts[partKey{box, frame}] {
		if alive(p.Expires, now) {
			p.Data = bytes.Clone(p.Data)
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b storage.Part) int { return cmp.Compare(a.N, b.N) })
	return out, nil
}

func cloneItem(it storage.Item) storage.Item {
	it.Raw, it.Questions = bytes.Clone(it.Raw), slices.Clone(it.Questions)
	it.Address.Requests = slices.Clone(it.Address.Requests)
	for i, id := range it.Address.Requests {
		it.Address.Requests[i] = bytes.Clone(id)
	}
	return it
}
