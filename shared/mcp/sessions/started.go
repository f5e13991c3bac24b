package sessions

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// startPart begins the key of a fingerprint ([Start]) within a handshake record. [Start.Kind]
// follows.
const startPart = "start "

// mostStarts bounds the fingerprints in a record, because clients can cause any number of Kinds.
const mostStarts = 64

// Start is a fingerprint of the lists of a fresh process.
type Start struct {
	// Kind names everything that the lists may depend on, such as the client's capabilities. Own
	// says that the principal is part of Kind.
	Kind  string
	Own   bool
	Gen   storage.Generation // generation of the box
	Lists json.RawMessage    // the fingerprint, as JSON
}

// NoteStart compares the lists of a fresh process with those of the last process of the same Kind. If
// they differ, NoteStart makes the whole handshake record invalid, and returns the session of the
// address, with news true. The caller must tell the client of this session at once. The clients of other
// sessions are told with their next request.
//
// A record keeps at most mostStarts fingerprints. If it has none of this Kind, NoteStart makes the lists
// of earlier generations invalid. It leaves them if start.Own is true and the record has room, because the
// first process of a principal says nothing about the lists of others.
//
// Cost: one read if the lists are the same.
//
// Errors: Unavailable.
func NoteStart(ctx context.Context, store storage.Store, a storage.Address, start Start) (s storage.Session, news bool, err error) {
	part, now := startPart+start.Kind, time.Now()
	was, err := store.Handshake(ctx, a.Digest, part)
	first, full := errors.Is(err, storage.NotFound), false
	if first {
		var known []storage.Handshake
		known, err = store.ListHandshakes(ctx, a.Digest, startPart)
		full = len(known) >= mostStarts
	}
	switch {
	case err != nil:
		return s, false, err
	case !first && bytes.Equal(was.Result, start.Lists):
		return s, false, nil
	case !first:
		news = true
		if err = outdate(ctx, store, a.Box, func(b storage.Box) storage.Generation { return b.Gen }, now); err == nil {
			err = expire(ctx, store, a.Digest, func(string) bool { return true })
		}
	case start.Own && !full: // the first process of this principal; its lists say nothing about lists of other principals
	default:
		err = outdate(ctx, store, a.Box, func(storage.Box) storage.Generation { return start.Gen - 1 }, time.Time{})
	}
	if err == nil && !full {
		err = store.SaveHandshake(ctx, storage.Handshake{Digest: a.Digest, Version: part, Result: start.Lists, Taken: now, Expires: now.Add(storage.HandshakeLife)})
	}
	if err == nil && news {
		s, err = amend(ctx, store, a.Session, func(s *storage.Session) bool { s.Relisted = now; return true })
		if errors.Is(err, storage.NotFound) {
			return s, false, nil // no client is left to tell
		}
	}
	return s, news, err
}

// Forget makes the handshake record of a tenant's server invalid, for an operator. The fingerprints of
// lists stay ([Start]).
//
// Errors: Unavailable.
func Forget(ctx context.Context, store storage.Store, tenant, server, digest string) error {
	for n := range storage.MaxBoxes {
		box, err := store.Box(ctx, storage.BoxFor(tenant, server).Numbered(n))
		if err != nil {
			return err
		}
		if n > 0 && box.Rev == 0 {
			return nil // the boxes are used in the order of their numbers
		}
		if err := outdate(ctx, store, box.ID, func(b storage.Box) storage.Generation { return b.Gen }, time.Time{}); err != nil {
			return err
		}
		record := string(storage.BoxID(storage.RecordFor(tenant, digest)).Numbered(n))
		if err := expire(ctx, store, record, func(part string) bool { return !strings.HasPrefix(part, startPart) }); err != nil {
			return err
		}
	}
	return nil
}

// Relist makes each client of a tenant's server get list_changed with its next message. The
// handshake record stays valid. Relist does nothing for a server that has no box.
//
// Errors: Unavailable.
func Relist(ctx context.Context, store storage.Boxes, tenant, server string) error {
	for n := range storage.MaxBoxes {
		box, err := store.Box(ctx, storage.BoxFor(tenant, server).Numbered(n))
		if err != nil || box.Rev == 0 {
			return err // the boxes are used in the order of their numbers
		}
		if err := outdate(ctx, store, box.ID, func(storage.Box) storage.Generation { return 0 }, time.Now()); err != nil {
			return err
		}
	}
	return nil
}

// expire makes entries of a handshake record invalid. The function match selects them by their keys.
func expire(ctx context.Context, store storage.Handshakes, record string, match func(part string) bool) error {
	parts, err := store.ListHandshakes(ctx, record, "")
	if err != nil {
		return err
	}
	past := time.Now().Add(-time.Second)
	for _, p := range parts {
		if !match(p.Version) || !p.Expires.IsZero() && p.Expires.Before(past) {
			continue
		}
		if err := store.SaveHandshake(ctx, storage.Handshake{Digest: record, Version: p.Version, Result: json.RawMessage("{}"), Taken: p.Taken, Expires: past}); err != nil {
			return err
		}
	}
	return nil
}

// outdate makes lists of a box invalid: those of all generations up to the result of upTo. It
// sets [storage.Box.Relisted] to relisted, unless relisted is zero. Cost: one read, and one
// write if the box changes.
func outdate(ctx context.Context, store storage.Boxes, id storage.BoxID, upTo func(storage.Box) storage.Generation, relisted time.Time) error {
	return updateBox(ctx, store, id, func(box *storage.Box) bool {
		gen, news := upTo(*box), !relisted.IsZero()
		for _, told := range []*storage.Generation{&box.Told.Tools, &box.Told.Prompts, &box.Told.Resources} {
			if *told < gen {
				*told, news = gen, true
			}
		}
		if !relisted.IsZero() {
			box.Relisted = relisted
		}
		return news
	})
}
