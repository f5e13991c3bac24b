package storagetest

import (
	"fmt"
	"slices"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Spent is what the calls of a store have cost so far. Units are those of the driver's database.
type Spent struct {
	Requests int64
	Units    float64
}

// Bulk tests a driver with 10,000 sessions and with long streams, which takes longer than [Store].
// The function spent returns what a store has cost so far. It may be nil for a driver that does
// not count.
func Bulk(t *testing.T, h Harness, spent func(storage.Store) Spent) {
	if spent == nil {
		spent = func(storage.Store) Spent { return Spent{} }
	}
	for _, p := range []promise{
		{"10,000 abandoned sessions are rows that nobody sees", abandoned},
		{"a replay costs by its events and not by what else the session has", func(t *testing.T, k *kit) {
			long(t, k, "r1", 1000)
			long(t, k, "r5", 5000)
			cost := func(stream storage.StreamID, n int) Spent {
				before := spent(k.Store)
				same(t, "pages", replay(t, k, stream, n, storage.MaxRead), n/storage.MaxRead)
				after := spent(k.Store)
				return Spent{after.Requests - before.Requests, after.Units - before.Units}
			}
			one, five := cost("r1", 1000), cost("r5", 5000)
			t.Logf("1,000 events: %+v; 5,000 events: %+v", one, five)
			if five.Requests > 6*one.Requests+5 || five.Units > 10*one.Units {
				t.Errorf("5 times the events cost %+v, not 5 times %+v", five, one)
			}
			for i := range 20 {
				long(t, k, storage.StreamID(fmt.Sprintf("q%02d", i)), 1000)
			}
			same(t, "cost with 20,000 events on other streams", []Spent{cost("r1", 1000), cost("r5", 5000)}, []Spent{one, five})
		}},
	} {
		t.Run(p.name, func(t *testing.T) {
			s := h.Open(t)
			t.Cleanup(func() { noError(t, "Close", s.Close()) })
			p.check(t, &kit{Store: s, harness: h})
		})
	}
}

// line returns an event of a usual size that contains its index.
func line(i storage.Index) string { return fmt.Sprintf(`{"jsonrpc":"2.0","i":%0100d}`, i) }

// long writes the given total of events to a stream, in batches of 250.
func long(t *testing.T, k *kit, stream storage.StreamID, total int) {
	t.Helper()
	const batch = 250
	for first := 1; first <= total; first += batch {
		b := aBatch(storage.Index(first))
		b.Stream = stream
		for i := range storage.Index(batch) {
			b.Events = append(b.Events, []byte(line(b.First+i)))
		}
		put(t, k, b)
	}
}

// replay reads a stream of [long] in pages of at most limit events, and checks that it has the given
// total of events.
func replay(t *testing.T, s storage.Store, stream storage.StreamID, total, limit int) (pages int) {
	t.Helper()
	after := storage.Index(0)
	for more := true; more; pages++ {
		p, err := s.Read(t.Context(), "s1", stream, after, limit)
		noError(t, "Read", err)
		if p.Gap {
			t.Fatalf("a gap after %d", after)
		}
		for _, e := range p.Events {
			if after++; e.Index != after || string(e.Raw) != line(after) {
				t.Fatalf("event %d with %q in the place of %d", e.Index, e.Raw, after)
			}
		}
		more = p.More
	}
	same(t, "events", int(after), total)
	return pages
}

// abandoned makes 10,000 sessions that have expired, and 500 living ones among them. List
// must still return the living ones in order, page by page.
func abandoned(t *testing.T, k *kit) {
	const total, every = 10_500, 21
	list := make([]storage.Session, total)
	for i := range list {
		list[i] = plain(storage.ID(fmt.Sprintf("s%05d", i)), "acme")
		if i%every != 0 {
			list[i].Expires = past()
		}
	}
	fill(t, k, list)
	for _, tenant := range []string{"acme", ""} {
		var ids []storage.ID
		for after := storage.ID(""); ; after = ids[len(ids)-1] {
			page := listed(t, k, tenant, after, 200)
			if ids = append(ids, page...); len(page) < 200 {
				break
			}
		}
		if len(ids) != total/every || !slices.IsSorted(ids) {
			t.Errorf("List of %q pages through %d sessions, in order %t; want %d", tenant, len(ids), slices.IsSorted(ids), total/every)
		}
	}
	for i := range 100 {
		_, _, err := k.Load(t.Context(), storage.ID(fmt.Sprintf("s%05d", i)), "b")
		if i%every == 0 {
			noError(t, "Load of a living one", err)
			continue
		}
		wantCode(t, "Load of an abandoned one", err, storage.NotFound)
	}
}

// Idle returns a session as a real client leaves it. Tests of drivers measure the size of the
// session's row.
func Idle() storage.Session {
	return storage.Session{
		ID: storage.NewID(), Server: "everything", Digest: "sha256:5f0c9d1be2a7463c8e1d0fb95a6c7e24", Tenant: "acme-corporation",
		Principal: "auth0|65f1c0ffee0ddba11ca5cade", Transport: storage.HTTP, State: storage.Ready, Version: "2025-11-25",
		Init: []byte(`{"protocolVersion":"2025-11-25","capabilities":{"roots":{"listChanged":true},"sampling":{},"elicitation":{"form":{},"url":{}},` +
			`"tasks":{"list":{},"cancel":{},"requests":{"sampling":{"createMessage":{}},"elicitation":{"create":{}}}}},` +
			`"clientInfo":{"name":"claude-code","title":"Claude Code","version":"2.1.4","websiteUrl":"https://claude.com/claude-code"},` +
			`"_meta":{"io.modelcontextprotocol/related":"0197a1c2-5f7e-7d60-9a44-2f7c1f0e8b11"}}`),
		Level: "info", Subscribed: []string{"file:///home/user/project/README.md"},
		Created: now(), Used: now(), Expires: future(), Served: true, Pushes: true,
		Primary: storage.Lease{Nonce: storage.NewNonce()[:10], Until: now()}, Delivered: 1234,
		Standby: []storage.Lease{{Nonce: storage.NewNonce()[:10], Until: now()}},
	}
}

func fill(t *testing.T, k *kit, list []storage.Session) {
	t.Helper()
	if k.harness.Fill != nil {
		k.harness.Fill(t, k.Store, list)
		return
	}
	var all errgroup.Group
	all.SetLimit(64) // concurrent writes share syncs of the disk
	for _, x := range list {
		all.Go(func() error { return k.Create(t.Context(), x) })
	}
	noError(t, "Create", all.Wait())
}
