package sessions_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// The function that finds a box lost writes the ends of all requests of a body in one batch, and their
// ids in one record. So a body must not have more requests than both can hold.
func TestWhatIsSentAtOnceIsBounded(t *testing.T) {
	request := func(id string) string { return `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/list"}` }
	many := func(n int, message func(i int) string) string {
		all := make([]string, n)
		for i := range all {
			all[i] = message(i)
		}
		return "[" + strings.Join(all, ",") + "]"
	}
	numbered := func(i int) string { return request(fmt.Sprint(i)) }
	tests := []struct {
		name, body string
		want       storage.Code
	}{
		{"as many requests as one batch of events holds", many(storage.MaxBatchEvents, numbered), ""},
		{"one request more", many(storage.MaxBatchEvents+1, numbered), storage.TooLarge},
		{"an id that is too long", request(`"` + strings.Repeat("x", 16<<10-1) + `"`), storage.TooLarge},
		{"ids that are too long together", many(2, func(int) string { return request(`"` + strings.Repeat("x", 8<<10) + `"`) }), storage.TooLarge},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, memory, id := listening(t)
			store := storagetest.NewCounting(memory)
			msgs, batch, err := wire.ParseBody([]byte(tt.body))
			commontest.OK(t, err)
			_, err = sessions.New(store, nobody{}, sessions.Limits{}).Accept(t.Context(), someone, id, msgs, batch)
			commontest.EqualIn(t, "its code", tt.want, storage.CodeOf(err))
			if n := store.Counts(); tt.want != "" && n.Writes > 0 {
				t.Errorf("it was refused after %v", n.Calls)
			}
		})
	}
}

func TestAnInitializeThatIsTooLongOpensNoSession(t *testing.T) {
	initialize := func(id, params int) string {
		return `{"jsonrpc":"2.0","id":"` + strings.Repeat("x", id) + `","method":"initialize","params":{"protocolVersion":"2025-11-25","x":"` + strings.Repeat("x", params) + `"}}`
	}
	for name, tt := range map[string]struct {
		raw  string
		want storage.Code
	}{
		"an id that is too long": {initialize(16<<10, 1), storage.TooLarge},
		"too many parameters":    {initialize(1, 64<<10), storage.TooLarge},
	} {
		store := storagetest.NewMemory()
		_, _, err := sessions.New(store, nobody{}, sessions.Limits{}).Initialize(t.Context(), someone, "", parsed(t, tt.raw))
		commontest.EqualIn(t, name, tt.want, storage.CodeOf(err))
		if list, err := store.List(t.Context(), "", "", 10); err != nil || len(list) > 0 != (tt.want == "") {
			t.Errorf("%s: left %v, %v", name, list, err)
		}
	}
}

// The store writes a session's record as a whole, so the data that a client adds to it is bounded.
func TestWhatASessionRemembersIsBounded(t *testing.T) {
	h, store, id := listening(t)
	send := func(method, params string) {
		_, err := accept(t, h, id, `{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":`+params+`}`)
		commontest.OK(t, err)
	}
	send("logging/setLevel", `{"level":"warning"}`)
	send("logging/setLevel", `{"level":"`+strings.Repeat("x", 1<<20)+`"}`)
	for i := range 20 {
		send("resources/subscribe", fmt.Sprintf(`{"uri":"file:///%d%s"}`, i, strings.Repeat("x", 10<<10)))
	}
	s, size := record(t, store, id), 0
	for _, uri := range s.Subscribed {
		size += len(uri)
	}
	if s.Level != "warning" || size > 128<<10 || len(s.Subscribed) < 10 {
		t.Errorf("it remembers a level of %d bytes, and %d resources in %d bytes", len(s.Level), len(s.Subscribed), size)
	}
}

// unwritable is a store that reports whether its disk is full.
type unwritable struct {
	storage.Store
	full bool
}

func (u *unwritable) Writable(context.Context) error {
	if u.full {
		return storage.Errorf(storage.Unavailable, "the disk is full; free space")
	}
	return nil
}

// TestNothingIsExecutedWhoseAnswerCouldNotBeStored: Manager sends a message for an awake box without a
// write before it. Without the check, a full disk would show only when the answer comes.
func TestNothingIsExecutedWhoseAnswerCouldNotBeStored(t *testing.T) {
	_, memory, id := listening(t)
	disk, backend := &unwritable{Store: memory}, newTook()
	counts := storagetest.NewCounting(disk)
	h := sessions.New(counts, backend, sessions.Limits{})
	send := func(message string) error {
		_, err := accept(t, h, id, message)
		return err
	}
	delivered := func() int { return len(*backend.deliveries) }
	const call, notification = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a"}}`, `{"jsonrpc":"2.0","method":"notifications/cancelled"}`
	if err := send(call); err != nil || delivered() != 1 {
		t.Fatalf("error %v, %d messages reached the box; want one", err, delivered())
	}
	disk.full = true
	counts.Reset()
	err := send(call)
	if storage.CodeOf(err) != storage.Unavailable || !strings.HasPrefix(err.Error(), "the request was not executed: the disk is full; free space") {
		t.Errorf("got %v", err)
	}
	if got := counts.Counts(); delivered() != 1 || got.Reads != 1 || got.Writes != 0 {
		t.Errorf("%d messages reached the box, with %+v; want one, and a read", delivered(), got)
	}
	if err := send(notification); err != nil || delivered() != 2 {
		t.Errorf("a notification, which has no answer: %v, %d messages", err, delivered())
	}
	disk.full = false
	if err := send(call); err != nil || delivered() != 3 {
		t.Errorf("with room again: %v, %d messages", err, delivered())
	}
}
