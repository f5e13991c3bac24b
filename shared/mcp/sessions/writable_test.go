package sessions_test

import (
	"context"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

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
