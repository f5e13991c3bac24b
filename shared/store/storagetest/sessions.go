package storagetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// rawJSON is JSON that changes if a driver decodes and encodes it.
const rawJSON = "{ \"a\" : 9007199254740993,\t\"b\":\"<&>\u2028 \\u00e9\\/ é 𝄞\", \"a\":1.0e+2 , \"_x\":[ ] }"

// aSession returns a session with every field filled.
func aSession(id storage.ID) storage.Session {
	return storage.Session{
		ID: id, Rev: 1, Server: "everything", Digest: "d1", Tenant: "acme", Principal: "alice", Transport: storage.HTTP,
		State: storage.Ready, Quit: storage.QuitService, Version: "2025-11-25", Init: json.RawMessage(rawJSON), Level: "warning",
		Subscribed: []string{"file:///b?x=<1>", "file:///a"}, Created: past(), Used: now(), Expires: future(), Served: true, Pushes: true,
		Primary: storage.Lease{Nonce: "n1", Until: now()}, Delivered: 41,
		Later:   storage.Later{"Newer": json.RawMessage(`{"x":9007199254740993}`)},
		Answers: storage.AnswerCount{Since: now(), Bytes: 12}, Standby: []storage.Lease{{Nonce: "n2", Until: now()}, {Nonce: "n3", Until: future()}}, Conns: []string{"c-1=", "c-2="},
		Pushed: []storage.Cursor{{Stream: "r1", Index: 7, Final: true}, {Stream: "r2", Index: 1}},
		Pusher: storage.Lease{Nonce: "n4", Until: future()}, ServerInfo: json.RawMessage(`{"name":"s"}`),
		Params: json.RawMessage(`{"t":{"Region":["region"]}}`), Props: []byte(`{"plan":"é"}`),
		Members: []string{"a", "b"}, Group: "g1", Relisted: past(),
	}
}

// plain returns a session with only the fields that a driver needs.
func plain(id storage.ID, tenant string) storage.Session {
	return storage.Session{ID: id, Tenant: tenant, State: storage.Created, Expires: future()}
}

func load(t *testing.T, k *kit) storage.Session {
	t.Helper()
	x, _, err := k.Load(t.Context(), "s1", "b")
	noError(t, "Load", err)
	return x
}

func sessionPromises() []promise {
	return []promise{
		{"what was created is loaded with every field and Rev 1", func(t *testing.T, k *kit) {
			want := aSession("s1")
			filled(t, want)
			filled(t, want.Primary)
			noError(t, "Create", k.Create(t.Context(), want))
			got := load(t, k)
			same(t, "Load", got, want)
			same(t, "Init, byte for byte", string(got.Init), rawJSON)
		}},
		{"the Rev of a created session is 1, whatever the caller says", func(t *testing.T, k *kit) {
			x := plain("s1", "acme")
			x.Rev = 17
			noError(t, "Create", k.Create(t.Context(), x))
			same(t, "Rev", load(t, k).Rev, int64(1))
		}},
		{"an id that is taken is refused with Conflict", createTwice},
		{"of many that create the same id one wins", createRace},
		{"the id of an expired session can be created again", func(t *testing.T, k *kit) {
			x := plain("s1", "acme")
			x.Expires = past()
			noError(t, "Create", k.Create(t.Context(), x))
			noError(t, "Create again", k.Create(t.Context(), plain("s1", "umbrella")))
			got := load(t, k)
			same(t, "Tenant", got.Tenant, "umbrella")
			same(t, "Rev", got.Rev, int64(1))
		}},
		{"a session that is not there is NotFound and its box comes all the same", loadAbsent},
		{"a session and its box are loaded together", func(t *testing.T, k *kit) {
			noError(t, "Create", k.Create(t.Context(), plain("s1", "acme")))
			noError(t, "SaveBox", k.SaveBox(t.Context(), storage.Box{ID: "acme/x", State: storage.Awake, Gen: 3}))
			s, b, err := k.Load(t.Context(), "s1", "acme/x")
			noError(t, "Load", err)
			same(t, "session", s.ID, storage.ID("s1"))
			same(t, "box", b, storage.Box{ID: "acme/x", Rev: 1, State: storage.Awake, Gen: 3})
			_, b, err = k.Load(t.Context(), "s1", "acme/other")
			noError(t, "Load with a box nobody has written", err)
			same(t, "box nobody has written", b, storage.Box{ID: "acme/other"})
		}},
		{"an expired session is not found, not listed and not saved", sessionExpires},
		{"a session that has ended is returned as it is", func(t *testing.T, k *kit) {
			x := plain("s1", "acme")
			x.State, x.Quit = storage.Ended, storage.QuitClient
			noError(t, "Create", k.Create(t.Context(), x))
			got := load(t, k)
			same(t, "State", got.State, storage.Ended)
			same(t, "Quit", got.Quit, storage.QuitClient)
		}},
		{"Save replaces every field and adds 1 to Rev", saveReplaces},
		{"Save with another Rev is a Conflict and changes nothing", saveConflict},
		{"Save of a session that is not there is NotFound", func(t *testing.T, k *kit) {
			wantCode(t, "Save", k.Save(t.Context(), plain("s1", "acme")), storage.NotFound)
			_, _, err := k.Load(t.Context(), "s1", "b")
			wantCode(t, "Load", err, storage.NotFound)
		}},
		{"of many that save at once none loses its update", saveRace},
		{"records handed in are copied and records handed out belong to the caller", sessionCopies},
		{"List is in order of id, strictly after an id, and bounded", listPages},
		{"List keeps tenants apart and lists all for none", listTenants},
		{"a write of one handle is read by another", func(t *testing.T, k *kit) {
			o := k.other(t)
			noError(t, "Create", k.Create(t.Context(), plain("s1", "acme")))
			got, _, err := o.Load(t.Context(), "s1", "b")
			noError(t, "Load by the other", err)
			noError(t, "Save by the other", o.Save(t.Context(), got))
			wantCode(t, "Save with the Rev before", k.Save(t.Context(), got), storage.Conflict)
		}},
	}
}

func createTwice(t *testing.T, k *kit) {
	noError(t, "Create", k.Create(t.Context(), plain("s1", "acme")))
	wantCode(t, "Create again", k.Create(t.Context(), plain("s1", "umbrella")), storage.Conflict)
	same(t, "Tenant of the first", load(t, k).Tenant, "acme")
}

func createRace(t *testing.T, k *kit) {
	won := race(t, k, 8, func(s storage.Store, i int) error {
		return s.Create(t.Context(), plain("s1", fmt.Sprint("t", i)))
	})
	same(t, "Tenant of the winner", load(t, k).Tenant, fmt.Sprint("t", won))
}

// race runs n calls at once, half of them through another handle of the store. Exactly one must
// succeed, and the others must get a Conflict. race returns the number of the call that succeeded.
func race(t *testing.T, k *kit, n int, call func(s storage.Store, i int) error) (won int) {
	t.Helper()
	errs := make([]error, n)
	handles := []storage.Store{k.Store, k.other(t)}
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-begin
			errs[i] = call(handles[i%2], i)
		})
	}
	close(begin)
	wg.Wait()
	won = -1
	for i, err := range errs {
		switch {
		case err == nil && won >= 0:
			t.Fatalf("both %d and %d won", won, i)
		case err == nil:
			won = i
		default:
			wantCode(t, fmt.Sprintf("call %d", i), err, storage.Conflict)
		}
	}
	if won < 0 {
		t.Fatalf("none of %d won: %v", n, errors.Join(errs...))
	}
	return won
}

func loadAbsent(t *testing.T, k *kit) {
	s, b, err := k.Load(t.Context(), "s1", "acme/x")
	wantCode(t, "Load", err, storage.NotFound)
	same(t, "session", s, storage.Session{})
	same(t, "box nobody has written", b, storage.Box{ID: "acme/x"})
	noError(t, "SaveBox", k.SaveBox(t.Context(), storage.Box{ID: "acme/x", Gen: 2}))
	_, b, err = k.Load(t.Context(), "s1", "acme/x")
	wantCode(t, "Load", err, storage.NotFound)
	same(t, "box", b, storage.Box{ID: "acme/x", Rev: 1, Gen: 2})
}

func sessionExpires(t *testing.T, k *kit) {
	x := plain("s1", "acme")
	x.Expires = past()
	noError(t, "Create", k.Create(t.Context(), x))
	_, _, err := k.Load(t.Context(), "s1", "b")
	wantCode(t, "Load", err, storage.NotFound)
	list, err := k.List(t.Context(), "acme", "", 10)
	noError(t, "List", err)
	same(t, "List", list, []storage.Session(nil))
	x.Rev, x.Expires = 1, future()
	wantCode(t, "Save", k.Save(t.Context(), x), storage.NotFound)

	y := plain("s2", "acme")
	noError(t, "Create", k.Create(t.Context(), y))
	y.Rev, y.Expires = 1, past()
	noError(t, "Save as expired", k.Save(t.Context(), y))
	_, _, err = k.Load(t.Context(), "s2", "b")
	wantCode(t, "Load of a session that was saved as expired", err, storage.NotFound)
}

func saveReplaces(t *testing.T, k *kit) {
	noError(t, "Create", k.Create(t.Context(), plain("s1", "acme")))
	want := aSession("s1")
	for rev := range int64(3) {
		want.Rev = rev + 1
		noError(t, "Save", k.Save(t.Context(), want))
		want.Rev++
		same(t, "Load after Save", load(t, k), want)
	}
}

func saveConflict(t *testing.T, k *kit) {
	x := plain("s1", "acme")
	noError(t, "Create", k.Create(t.Context(), x))
	x.Rev, x.Level = 1, "first"
	noError(t, "Save", k.Save(t.Context(), x))
	for _, rev := range []int64{0, 1, 3} {
		x.Rev, x.Level = rev, "second"
		wantCode(t, fmt.Sprintf("Save of Rev %d over Rev 2", rev), k.Save(t.Context(), x), storage.Conflict)
	}
	got := load(t, k)
	same(t, "Level", got.Level, "first")
	same(t, "Rev", got.Rev, int64(2))
}

func saveRace(t *testing.T, k *kit) {
	const writers, each = 8, 10
	noError(t, "Create", k.Create(t.Context(), plain("s1", "acme")))
	together(t, k, writers, each, func(s storage.Store, i, n int) error {
		return subscribe(t.Context(), s, fmt.Sprintf("%d/%d", i, n))
	})
	got := load(t, k)
	same(t, "Rev", got.Rev, int64(1+writers*each))
	slices.Sort(got.Subscribed)
	same(t, "updates that are there", len(slices.Compact(got.Subscribed)), writers*each)
}

// together runs several writers at once, half of them through another handle of the store. Writer i
// calls update the given number of times, with n = 0, 1 and so on.
func together(t *testing.T, k *kit, writers, each int, update func(s storage.Store, i, n int) error) {
	t.Helper()
	handles := []storage.Store{k.Store, k.other(t)}
	var wg sync.WaitGroup
	errs := make([]error, writers)
	for i := range writers {
		wg.Go(func() {
			for n := 0; n < each && errs[i] == nil; n++ {
				errs[i] = update(handles[i%2], i, n)
			}
		})
	}
	wg.Wait()
	noError(t, "updates", errors.Join(errs...))
}

// subscribe adds uri to session s1.
func subscribe(ctx context.Context, s storage.Store, uri string) error {
	for {
		x, _, err := s.Load(ctx, "s1", "b")
		if err != nil {
			return err
		}
		x.Subscribed = append(x.Subscribed, uri)
		if err = s.Save(ctx, x); !errors.Is(err, storage.Conflict) {
			return err
		}
	}
}

func sessionCopies(t *testing.T, k *kit) {
	x := plain("s1", "acme")
	x.Init, x.Subscribed, x.Conns = json.RawMessage(`{"a":1}`), []string{"a", "b"}, []string{"c"}
	x.Standby, x.Pushed = []storage.Lease{{Nonce: "n"}}, []storage.Cursor{{Stream: "r"}}
	noError(t, "Create", k.Create(t.Context(), x))
	spoil := func(s storage.Session) {
		s.Init[2], s.Subscribed[0], s.Conns[0], s.Standby[0].Nonce, s.Pushed[0].Stream = 'z', "z", "z", "z", "z"
	}
	spoil(x)
	for range 2 {
		got := load(t, k)
		same(t, "Init", string(got.Init), `{"a":1}`)
		same(t, "Subscribed", got.Subscribed, []string{"a", "b"})
		same(t, "Conns", got.Conns, []string{"c"})
		same(t, "Standby", got.Standby, []storage.Lease{{Nonce: "n"}})
		same(t, "Pushed", got.Pushed, []storage.Cursor{{Stream: "r"}})
		spoil(got)
	}
}

func listPages(t *testing.T, k *kit) {
	// List must skip the tenant's records of other kinds.
	noError(t, "CreateUpstreamToken", k.UpstreamTokens().Create(t.Context(), aToken("u1")))
	noError(t, "CreateKey", k.Keys().Create(t.Context(), aKey("k1")))
	noError(t, "CreateGrant", k.Grants().Create(t.Context(), aGrant("g1")))
	for _, i := range []int{3, 1, 4, 0, 2} {
		noError(t, "Create", k.Create(t.Context(), plain(storage.ID(fmt.Sprint("s", i)), "acme")))
	}
	for _, c := range []struct {
		after storage.ID
		limit int
		want  []storage.ID
	}{
		{"", 10, []storage.ID{"s0", "s1", "s2", "s3", "s4"}},
		{"", 2, []storage.ID{"s0", "s1"}},
		{"s1", 2, []storage.ID{"s2", "s3"}},
		{"s1x", 10, []storage.ID{"s2", "s3", "s4"}},
		{"s4", 10, nil},
	} {
		same(t, fmt.Sprintf("List after %q", c.after), listed(t, k, "acme", c.after, c.limit), c.want)
		same(t, fmt.Sprintf("List of all after %q", c.after), listed(t, k, "", c.after, c.limit), c.want)
	}
	full := aSession("s9")
	noError(t, "Create", k.Create(t.Context(), full))
	list, err := k.List(t.Context(), "", "s4", 1)
	noError(t, "List", err)
	same(t, "a listed session", list, []storage.Session{full})
}

func listTenants(t *testing.T, k *kit) {
	for _, x := range []storage.Session{plain("s1", "acme"), plain("s2", "umbrella"), plain("s3", "acme"), plain("s4", "")} {
		noError(t, "Create", k.Create(t.Context(), x))
	}
	same(t, "List of acme", listed(t, k, "acme", "", 10), []storage.ID{"s1", "s3"})
	same(t, "List of umbrella", listed(t, k, "umbrella", "", 10), []storage.ID{"s2"})
	same(t, "List of nobody", listed(t, k, "nobody", "", 10), []storage.ID(nil))
	same(t, "List of all", listed(t, k, "", "", 10), []storage.ID{"s1", "s2", "s3", "s4"})
}

func listed(t *testing.T, k *kit, tenant string, after storage.ID, limit int) []storage.ID {
	t.Helper()
	list, err := k.List(t.Context(), tenant, after, limit)
	noError(t, "List", err)
	var ids []storage.ID
	for _, s := range list {
		ids = append(ids, s.ID)
	}
	return ids
}
