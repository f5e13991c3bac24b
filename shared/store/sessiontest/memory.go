package sessiontest

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/session"
)

// Memory is a session.Store in the memory of one program. It is the shortest
// implementation of the contract, for tests and simulations that must look inside
// ([Memory.Batches]). It limits only age, never fails, and loses everything with the
// program. It waits on channels and timers only, so that a test under testing/synctest
// sees it as durably blocked. It is safe for concurrent use. It has as many methods as
// session.Store.
type Memory struct {
	mu             sync.Mutex // never held while a caller waits
	sessions       map[session.ID]session.Session
	answers        map[session.ID]map[string]session.Answer
	conns          map[string]session.Connection
	keys           *collection[session.Key]
	tickets        map[string]session.EntryTicket
	grants         *collection[session.Grant]
	upstreamTokens *collection[session.UpstreamToken]
	states         map[session.ValueKey]session.Value
	handshakes     map[[2]string]session.Handshake
	streams        map[streamKey]map[session.Index]session.Batch // by first index
	boxes          map[session.BoxID]session.Box
	items          map[session.BoxID]map[session.StreamID]session.Item
	parts          map[partKey]map[int]session.Part
	changed        map[streamKey]chan struct{} // closed when something happens to the stream
}

type streamKey struct {
	session session.ID
	stream  session.StreamID
}

type partKey struct {
	box   session.BoxID
	frame string
}

var _ session.Store = (*Memory)(nil)

// NewMemory makes an empty Memory.
func NewMemory() *Memory {
	m := &Memory{
		sessions:   map[session.ID]session.Session{},
		answers:    map[session.ID]map[string]session.Answer{},
		conns:      map[string]session.Connection{},
		tickets:    map[string]session.EntryTicket{},
		states:     map[session.ValueKey]session.Value{},
		handshakes: map[[2]string]session.Handshake{},
		streams:    map[streamKey]map[session.Index]session.Batch{},
		boxes:      map[session.BoxID]session.Box{},
		items:      map[session.BoxID]map[session.StreamID]session.Item{},
		parts:      map[partKey]map[int]session.Part{},
		changed:    map[streamKey]chan struct{}{},
	}
	m.keys, m.grants, m.upstreamTokens = newCollection(m, session.KeyKind()), newCollection(m, session.GrantKind()), newCollection(m, session.UpstreamTokenKind())
	return m
}

// Close implements session.Store. It does nothing.
func (m *Memory) Close() error { return nil }

// lock takes the lock and returns the time at which records are checked for expiry.
func (m *Memory) lock() (now time.Time) {
	m.mu.Lock()
	return time.Now()
}

// alive reports whether a record has not expired. A zero expires means never.
func alive(expires, now time.Time) bool { return expires.IsZero() || expires.After(now) }

// Create implements session.Sessions.
func (m *Memory) Create(_ context.Context, s session.Session) error {
	now := m.lock()
	defer m.mu.Unlock()
	if old, ok := m.sessions[s.ID]; ok && alive(old.Expires, now) {
		return session.Errorf(session.Conflict, "session %s is there already", s.ID)
	}
	s.Rev = 1
	m.sessions[s.ID] = s.Clone()
	return nil
}

// Load implements session.Sessions.
func (m *Memory) Load(_ context.Context, id session.ID, box session.BoxID) (session.Session, session.Box, error) {
	now := m.lock()
	defer m.mu.Unlock()
	b := m.box(box)
	s, ok := m.sessions[id]
	if !ok || !alive(s.Expires, now) {
		return session.Session{}, b, session.Errorf(session.NotFound, "there is no session %s", id).Because(expiredIf(ok))
	}
	return s.Clone(), b, nil
}

// expiredIf returns the cause of a NotFound, given whether the row is there.
func expiredIf(there bool) error {
	if there {
		return session.QuitExpired
	}
	return nil
}

// Save implements session.Sessions.
func (m *Memory) Save(_ context.Context, s session.Session) error {
	now := m.lock()
	defer m.mu.Unlock()
	old, ok := m.sessions[s.ID]
	if !ok || !alive(old.Expires, now) {
		return session.Errorf(session.NotFound, "there is no session %s", s.ID)
	}
	if old.Rev != s.Rev {
		return session.Errorf(session.Conflict, "session %s has revision %d, not %d", s.ID, old.Rev, s.Rev)
	}
	s.Rev++
	m.sessions[s.ID] = s.Clone()
	return nil
}

// List implements session.Sessions.
func (m *Memory) List(_ context.Context, tenant string, after session.ID, limit int) ([]session.Session, error) {
	now := m.lock()
	defer m.mu.Unlock()
	var out []session.Session
	for _, id := range slices.Sorted(maps.Keys(m.sessions)) {
		s := m.sessions[id]
		if len(out) < limit && id > after && alive(s.Expires, now) && (tenant == "" || s.Tenant == tenant) {
			out = append(out, s.Clone())
		}
	}
	return out, nil
}

// PutAnswer implements session.Answers.
func (m *Memory) PutAnswer(_ context.Context, a session.Answer) (first bool, err error) {
	now := m.lock()
	defer m.mu.Unlock()
	if old, ok := m.answers[a.Session][a.Question]; ok && alive(old.Expires, now) {
		return false, nil
	}
	if m.answers[a.Session] == nil {
		m.answers[a.Session] = map[string]session.Answer{}
	}
	a.Raw = bytes.Clone(a.Raw)
	m.answers[a.Session][a.Question] = a
	return true, nil
}

// Answers implements session.Answers.
func (m *Memory) Answers(_ context.Context, id session.ID, questions []string) ([]session.Answer, error) {
	now := m.lock()
	defer m.mu.Unlock()
	var out []session.Answer
	for _, q := range questions {
		if a, ok := m.answers[id][q]; ok && alive(a.Expires, now) {
			a.Raw = bytes.Clone(a.Raw)
			out = append(out, a)
		}
	}
	return out, nil
}

// SaveHandshake implements session.Handshakes.
func (m *Memory) SaveHandshake(_ context.Context, h session.Handshake) error {
	m.lock()
	defer m.mu.Unlock()
	h.Result = bytes.Clone(h.Result)
	m.handshakes[[2]string{h.Digest, h.Version}] = h
	return nil
}

// Recorded implements session.Handshakes.
func (m *Memory) Recorded(ctx context.Context, keys []session.RecordKey) ([]session.Recorded, error) {
	list := make([]session.Recorded, len(keys))
	for i, k := range keys {
		list[i].Handshake, _ = m.Handshake(ctx, k.Digest, k.Version) // zero if there is none
		list[i].Box, _ = m.Box(ctx, k.Box)                           // it never fails
	}
	return list, nil
}

// ListHandshakes implements session.Handshakes.
func (m *Memory) ListHandshakes(_ context.Context, digest, prefix string) ([]session.Handshake, error) {
	now := m.lock()
	defer m.mu.Unlock()
	var list []session.Handshake
	for k, h := range m.handshakes {
		if k[0] == digest && strings.HasPrefix(k[1], prefix) && alive(h.Expires, now) {
			h.Result = bytes.Clone(h.Result)
			list = append(list, h)
		}
	}
	slices.SortFunc(list, func(a, b session.Handshake) int { return cmp.Compare(a.Version, b.Version) })
	return list, nil
}

// Handshake implements session.Handshakes.
func (m *Memory) Handshake(_ context.Context, digest, version string) (session.Handshake, error) {
	now := m.lock()
	defer m.mu.Unlock()
	h, ok := m.handshakes[[2]string{digest, version}]
	if !ok || !alive(h.Expires, now) {
		return session.Handshake{}, session.Errorf(session.NotFound, "there is no handshake record of %s for %s", digest, version)
	}
	h.Result = bytes.Clone(h.Result)
	return h, nil
}

// PutConnection implements session.Connections.
func (m *Memory) PutConnection(_ context.Context, c session.Connection) error {
	m.lock()
	defer m.mu.Unlock()
	m.conns[c.ID] = c
	return nil
}

// Connection implements session.Connections.
func (m *Memory) Connection(_ context.Context, id string) (session.Connection, error) {
	now := m.lock()
	defer m.mu.Unlock()
	c, ok := m.conns[id]
	if !ok || !alive(c.Expires, now) {
		return session.Connection{}, session.Errorf(session.NotFound, "there is no connection %s", id)
	}
	return c, nil
}

// DeleteConnection implements session.Connections.
func (m *Memory) DeleteConnection(_ context.Context, id string) error {
	m.lock()
	defer m.mu.Unlock()
	delete(m.conns, id)
	return nil
}

// box must be called with the lock.
func (m *Memory) box(id session.BoxID) session.Box {
	b := m.boxes[id]
	b.ID = id
	return b
}

// Box implements session.Boxes.
func (m *Memory) Box(_ context.Context, id session.BoxID) (session.Box, error) {
	m.lock()
	defer m.mu.Unlock()
	return m.box(id), nil
}

// SaveBox implements session.Boxes.
func (m *Memory) SaveBox(_ context.Context, b session.Box) error {
	m.lock()
	defer m.mu.Unlock()
	if old := m.boxes[b.ID]; old.Rev != b.Rev {
		return session.Errorf(session.Conflict, "box %s has revision %d, not %d", b.ID, old.Rev, b.Rev)
	}
	b.Rev++
	m.boxes[b.ID] = b
	return nil
}

// PutItem implements session.Items.
func (m *Memory) PutItem(_ context.Context, it session.Item) (put bool, err error) {
	m.lock()
	defer m.mu.Unlock()
	if _, ok := m.items[it.Box][it.ID]; ok {
		return false, nil
	}
	if m.items[it.Box] == nil {
		m.items[it.Box] = map[session.StreamID]session.Item{}
	}
	m.items[it.Box][it.ID] = cloneItem(it)
	m.wake(it.Address.Session, it.ID)
	return true, nil
}

// Claim implements session.Items.
func (m *Memory) Claim(_ context.Context, box session.BoxID, id session.StreamID, gen session.Generation) (session.Item, error) {
	m.lock()
	defer m.mu.Unlock()
	it, ok := m.items[box][id]
	switch {
	case !ok:
		return session.Item{}, session.Errorf(session.NotFound, "there is no item %s of box %s", id, box)
	case it.State == session.Waiting:
		it.State, it.Gen = session.Taken, gen
		m.items[box][id] = it
		m.wake(it.Address.Session, id)
	case it.State != session.Taken || it.Gen != gen:
		return session.Item{}, session.Errorf(session.Conflict, "item %s of box %s is %s by generation %d", id, box, it.State, it.Gen)
	}
	return cloneItem(it), nil
}

// Release implements session.Items.
func (m *Memory) Release(_ context.Context, box session.BoxID, id session.StreamID, gen session.Generation) (released bool, err error) {
	m.lock()
	defer m.mu.Unlock()
	it, ok := m.items[box][id]
	if !ok || it.State != session.Taken || it.Gen != gen || it.Raw == nil {
		return false, nil
	}
	it.State, it.Gen = session.Waiting, 0
	m.items[box][id] = it
	m.wake(it.Address.Session, id)
	return true, nil
}

// SwapItem implements session.Items.
func (m *Memory) SwapItem(_ context.Context, was, it session.Item) (swapped bool, err error) {
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

// Item implements session.Items.
func (m *Memory) Item(_ context.Context, box session.BoxID, id session.StreamID) (session.Item, error) {
	m.lock()
	defer m.mu.Unlock()
	it, ok := m.items[box][id]
	if !ok {
		return session.Item{}, session.Errorf(session.NotFound, "there is no item %s of box %s", id, box)
	}
	return cloneItem(it), nil
}

// Items implements session.Items.
func (m *Memory) Items(_ context.Context, box session.BoxID) ([]session.Item, error) {
	m.lock()
	defer m.mu.Unlock()
	var out []session.Item
	for _, id := range slices.Sorted(maps.Keys(m.items[box])) {
		it := m.items[box][id]
		it.Raw = nil
		out = append(out, cloneItem(it))
	}
	return out, nil
}

// DeleteItem implements session.Items.
func (m *Memory) DeleteItem(_ context.Context, box session.BoxID, id session.StreamID, gen session.Generation) error {
	m.lock()
	defer m.mu.Unlock()
	it, ok := m.items[box][id]
	if ok && (gen == 0 || it.State == session.Taken && it.Gen == gen) {
		delete(m.items[box], id)
	}
	return nil
}

// Due implements session.Boxes.
func (m *Memory) Due(_ context.Context) ([]session.BoxID, error) {
	m.lock()
	defer m.mu.Unlock()
	due := map[session.BoxID]bool{}
	for id, b := range m.boxes {
		if b.State != session.Asleep {
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

// PutPart implements session.Parts.
func (m *Memory) PutPart(_ context.Context, p session.Part) error {
	m.lock()
	defer m.mu.Unlock()
	key := partKey{p.Box, p.Frame}
	if m.parts[key] == nil {
		m.parts[key] = map[int]session.Part{}
	}
	p.Data = bytes.Clone(p.Data)
	m.parts[key][p.N] = p
	return nil
}

// Parts implements session.Parts.
func (m *Memory) Parts(_ context.Context, box session.BoxID, frame string) ([]session.Part, error) {
	now := m.lock()
	defer m.mu.Unlock()
	var out []session.Part
	for _, p := range m.parts[partKey{box, frame}] {
		if alive(p.Expires, now) {
			p.Data = bytes.Clone(p.Data)
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b session.Part) int { return cmp.Compare(a.N, b.N) })
	return out, nil
}

func cloneItem(it session.Item) session.Item {
	it.Raw, it.Questions = bytes.Clone(it.Raw), slices.Clone(it.Questions)
	it.Address.Requests = slices.Clone(it.Address.Requests)
	for i, id := range it.Address.Requests {
		it.Address.Requests[i] = bytes.Clone(id)
	}
	return it
}
