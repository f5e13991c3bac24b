package sessions

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// maxList bounds a list that is kept, in bytes.
const maxList = 255 << 10

// keptList is the stored form of a list in a handshake record.
type keptList struct {
	Gen       storage.Generation `json:"gen"`            // generation of the box that gave the list
	Announced bool               `json:"says,omitempty"` // the server declares listChanged for the list
	List      json.RawMessage    `json:"list"`
}

func (k keptList) encode() json.RawMessage {
	b := fmt.Appendf(nil, `{"gen":%d`, k.Gen)
	if k.Announced {
		b = append(b, `,"says":true`...)
	}
	b = append(append(b, `,"list":`...), k.List...) // the bytes of the list stay as the server wrote them
	return append(b, '}')
}

// holds reports whether a process of the server would still give this list, which method has returned.
func (k keptList) holds(server Server, method string, box storage.Box) bool {
	return k.Gen > *toldOf(&box.Told, kindOf(method)) && (k.Announced || server.sameList(method) || box.State == storage.Asleep && k.Gen > box.Worked)
}

// noteList writes into the handshake record a list that a box has sent, if it is a whole list of at most
// maxList bytes. A list for all principals is left out if the client may have answered a question of the
// process: the list may depend on the answer. Cost: one read if the record has the same list already,
// otherwise two reads and a write. A list for all principals costs one more read.
func noteList(ctx context.Context, store storage.Store, a storage.Address, b storage.Batch) error {
	list := wire.Lookup(b.Events[len(b.Events)-1], "result")
	if len(list) == 0 || list[0] != '{' || len(list) > maxList || wire.Lookup(list, "nextCursor") != nil {
		return nil
	}
	now, kept := time.Now(), keptList{Gen: b.Gen, List: list}
	old, err := store.Handshake(ctx, a.Digest, a.List)
	if err != nil && !errors.Is(err, storage.NotFound) {
		return err
	}
	var was keptList
	if err == nil && json.Unmarshal(old.Result, &was) == nil && was.Gen == b.Gen && bytes.Equal(was.List, list) {
		return nil
	}
	if strings.HasSuffix(a.List, " "+anyone) {
		if told, err := toldMore(ctx, store, a, b); told || err != nil {
			return err
		}
	}
	if kept.Announced, err = announces(ctx, store, a); err != nil {
		return err
	}
	return store.SaveHandshake(ctx, storage.Handshake{Digest: a.Digest, Version: a.List, Result: kept.encode(), Taken: now, Expires: now.Add(storage.HandshakeLife)})
}

// toldMore reports whether the client that asked for a list may have answered a question of the
// server's process, such as roots/list. If it answered one while it waited for the list, the
// stream has more events than the list.
func toldMore(ctx context.Context, store storage.Store, a storage.Address, b storage.Batch) (bool, error) {
	if b.First != 1 || len(b.Events) != 1 {
		return true, nil
	}
	s, _, err := store.Load(ctx, a.Session, "")
	if err != nil {
		return true, storage.IgnoreNotFound(err)
	}
	return !s.Answers.Since.IsZero(), nil
}

// announces reports whether the server declares listChanged for the list that a.List names. It is
// false if the handshake record has no answer to initialize.
func announces(ctx context.Context, store storage.Store, a storage.Address) (bool, error) {
	method, rest, _ := strings.Cut(a.List, " ")
	version, _, _ := strings.Cut(rest, " ")
	record, err := store.Handshake(ctx, a.Digest, version)
	if err != nil {
		return false, storage.IgnoreNotFound(err)
	}
	return string(wire.Lookup(record.Result, "capabilities", kindOf(method), "listChanged")) == "true", nil
}

// forgetLists makes kept lists invalid if events of the standalone stream say that they have changed.
// Call it before the events are written: a client that gets one of these events asks for the list at
// once. Cost: one read, and one write for the first such event of a kind in a generation.
func forgetLists(ctx context.Context, store storage.Store, a storage.Address, b storage.Batch) error {
	var changed []string
	for _, raw := range b.Events {
		switch method, _ := wire.String(wire.Lookup(raw, "method")); method {
		case wire.NotifyToolsChanged, wire.NotifyPromptsChanged, wire.NotifyResourcesChanged:
			changed = append(changed, kindOf(strings.TrimPrefix(method, "notifications/")))
		}
	}
	if len(changed) == 0 || a.Digest == "" {
		return nil
	}
	return updateBox(ctx, store, a.Box, func(box *storage.Box) (news bool) {
		for _, kind := range changed {
			if told := toldOf(&box.Told, kind); *told < b.Gen {
				*told, news = b.Gen, true
			}
		}
		return news
	})
}

// updateBox changes the record of a box by compare-and-swap. change reports whether it has changed
// the record.
func updateBox(ctx context.Context, store storage.Boxes, id storage.BoxID, change func(*storage.Box) bool) error {
	for {
		box, err := store.Box(ctx, id)
		if err != nil || !change(&box) {
			return err
		}
		if err := store.SaveBox(ctx, box); !errors.Is(err, storage.Conflict) {
			return err
		}
	}
}

// kindOf returns the capability that a list method or a list_changed notification belongs to.
func kindOf(method string) string {
	kind, _, _ := strings.Cut(method, "/")
	return kind
}

// toldOf returns the field of t for a kind of list.
func toldOf(t *storage.Told, kind string) *storage.Generation {
	switch kind {
	case "tools":
		return &t.Tools
	case "prompts":
		return &t.Prompts
	default:
		return &t.Resources
	}
}
