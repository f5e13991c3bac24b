package sqlitestore

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func sessionOf(rev int64, record, raw []byte) (storage.Session, error) {
	x, err := storage.UnmarshalSession(record)
	x.Rev, x.Init = rev, raw
	return x, err
}

const createSession = `
INSERT INTO sessions (id, rev, tenant, expires, record, init) VALUES (?1, 1, ?2, ?3, ?4, ?5)
ON CONFLICT (id) DO UPDATE SET rev = 1, tenant = ?2, expires = ?3, record = ?4, init = ?5 WHERE expires <= ?6`

// Create implements [storage.Sessions].
func (s *Store) Create(ctx context.Context, x storage.Session) error {
	record, err := storage.MarshalSession(x)
	if err != nil {
		return err
	}
	defer s.records.forget(x.ID, "")
	changed, err := s.writeSoon(ctx, createSession, x.ID, x.Tenant, expiry(x.Expires), record, []byte(x.Init), now())
	if err != nil {
		return err
	}
	if changed == 0 {
		return storage.Errorf(storage.Conflict, "there is a session with this id already")
	}
	s.tidy(ctx)
	return nil
}

// A missing record has revision 0.
const loadSession = `
SELECT coalesce(s.rev, 0), coalesce(s.expires > ?3, 0), s.record, s.init, coalesce(b.rev, 0), b.record FROM (SELECT 1)
LEFT JOIN sessions AS s ON s.id = ?1
LEFT JOIN boxes AS b ON b.id = ?2`

// Load implements [storage.Sessions].
func (s *Store) Load(ctx context.Context, id storage.ID, boxID storage.BoxID) (storage.Session, storage.Box, error) {
	x, box, since, ok := s.kept(ctx, id, boxID)
	if ok {
		return x, box, nil
	}
	var srev, brev int64
	var alive bool
	var srecord, raw, brecord []byte
	_, err := s.row(ctx, loadSession, []any{id, boxID, now()}, []any{&srev, &alive, &srecord, &raw, &brev, &brecord})
	if err != nil {
		return storage.Session{}, storage.Box{}, err
	}
	box = storage.Box{ID: boxID}
	if brev != 0 {
		if box, err = boxOf(brev, brecord); err != nil {
			return storage.Session{}, storage.Box{}, failed(err)
		}
	}
	if srev == 0 || !alive {
		err := storage.Errorf(storage.NotFound, "there is no such session, or it has expired")
		if srev != 0 {
			err = err.Because(storage.QuitExpired)
		}
		return storage.Session{}, box, err
	}
	if x, err = sessionOf(srev, srecord, raw); err != nil {
		return storage.Session{}, storage.Box{}, failed(err)
	}
	if len(srecord)+len(raw)+len(brecord) <= maxRecord {
		s.records.keep(x, box, since)
	}
	return x, box, nil
}

const (
	saveSession = `
UPDATE sessions SET rev = rev + 1, tenant = ?3, expires = ?4, record = ?5, init = ?6 WHERE id = ?1 AND rev = ?2 AND expires > ?7`
	hasSession = `SELECT rev FROM sessions WHERE id = ?1 AND expires > ?2`
)

// Save implements [storage.Sessions].
func (s *Store) Save(ctx context.Context, x storage.Session) error {
	record, err := storage.MarshalSession(x)
	if err != nil {
		return err
	}
	defer s.records.forget(x.ID, "")
	write := s.writeSoon
	if x.State == storage.Ended {
		write = s.write
	}
	changed, err := write(ctx, saveSession, x.ID, x.Rev, x.Tenant, expiry(x.Expires), record, []byte(x.Init), now())
	if err != nil || changed > 0 {
		return err
	}
	var rev int64
	found, err := s.row(ctx, hasSession, []any{x.ID, now()}, []any{&rev})
	if err != nil {
		return err
	}
	if !found {
		return storage.Errorf(storage.NotFound, "there is no such session, or it has expired")
	}
	return storage.Errorf(storage.Conflict, "the session has been changed since it was read; read it again")
}

const (
	listSessions       = `SELECT rev, record, init FROM sessions WHERE id > ?2 AND expires > ?3 ORDER BY id LIMIT ?4`
	listTenantSessions = `SELECT rev, record, init FROM sessions WHERE tenant = ?1 AND id > ?2 AND expires > ?3 ORDER BY id LIMIT ?4`
)

// List implements [storage.Sessions].
func (s *Store) List(ctx context.Context, tenant string, after storage.ID, limit int) ([]storage.Session, error) {
	query := listTenantSessions
	if tenant == "" {
		query = listSessions
	}
	return listOf(ctx, &s.database, query, []any{tenant, after, now(), max(limit, 0)}, func(scan func(...any) error) (storage.Session, error) {
		var rev int64
		var record, raw []byte
		if err := scan(&rev, &record, &raw); err != nil {
			return storage.Session{}, err
		}
		return sessionOf(rev, record, raw)
	})
}

const putAnswer = `
INSERT INTO answers (session, question, expires, raw) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (session, question) DO UPDATE SET expires = ?3, raw = ?4 WHERE expires <= ?5`

// PutAnswer implements [storage.Answers].
func (s *Store) PutAnswer(ctx context.Context, a storage.Answer) (first bool, err error) {
	changed, err := s.writeSoon(ctx, putAnswer, a.Session, a.Question, expiry(a.Expires), a.Raw, now())
	if err != nil {
		return false, err
	}
	s.tidy(ctx)
	return changed > 0, nil
}

const readAnswer = `SELECT raw, expires FROM answers WHERE session = ?1 AND question = ?2 AND expires > ?3`

// Answers implements [storage.Answers].
func (s *Store) Answers(ctx context.Context, id storage.ID, questions []string) ([]storage.Answer, error) {
	var answers []storage.Answer
	for _, q := range questions {
		a := storage.Answer{Session: id, Question: q}
		var expires int64
		found, err := s.row(ctx, readAnswer, []any{id, q, now()}, []any{&a.Raw, &expires})
		if err != nil {
			return nil, err
		}
		if found {
			a.Expires = expiryOf(expires)
			answers = append(answers, a)
		}
	}
	return answers, nil
}

func expiryOf(column int64) time.Time {
	if column == math.MaxInt64 {
		return time.Time{}
	}
	return time.UnixMicro(column)
}

const putConnection = `INSERT OR REPLACE INTO connections (id, expires, record) VALUES (?, ?, ?)`

// PutConnection implements [storage.Connections].
func (s *Store) PutConnection(ctx context.Context, c storage.Connection) error {
	record, err := storage.Marshal(c)
	if err != nil {
		return err
	}
	if _, err = s.writeSoon(ctx, putConnection, c.ID, expiry(c.Expires), record); err == nil {
		s.tidy(ctx)
	}
	return err
}

const readConnection = `SELECT record FROM connections WHERE id = ? AND expires > ?`

// Connection implements [storage.Connections].
func (s *Store) Connection(ctx context.Context, id string) (storage.Connection, error) {
	var record []byte
	found, err := s.row(ctx, readConnection, []any{id, now()}, []any{&record})
	if err != nil {
		return storage.Connection{}, err
	}
	if !found {
		return storage.Connection{}, storage.Errorf(storage.NotFound, "there is no such connection, or it has expired")
	}
	c, err := storage.Unmarshal[storage.Connection](record)
	if err != nil {
		return storage.Connection{}, failed(err)
	}
	return c, nil
}

const deleteConnection = `DELETE FROM connections WHERE id = ?`

// DeleteConnection implements [storage.Connections].
func (s *Store) DeleteConnection(ctx context.Context, id string) error {
	_, err := s.writeSoon(ctx, deleteConnection, id)
	return err
}

const saveHandshake = `INSERT OR REPLACE INTO handshakes (digest, version, taken, expires, result) VALUES (?, ?, ?, ?, ?)`

// SaveHandshake implements [storage.Handshakes].
func (s *Store) SaveHandshake(ctx context.Context, h storage.Handshake) error {
	taken, err := h.Taken.MarshalText()
	if err != nil {
		return storage.Errorf(storage.Invalid, "the handshake record has a time that cannot be stored").Because(err)
	}
	if _, err = s.writeSoon(ctx, saveHandshake, h.Digest, h.Version, taken, expiry(h.Expires), []byte(h.Result)); err == nil {
		s.tidy(ctx)
	}
	return err
}

const listHandshakes = `
SELECT version, taken, expires, result FROM handshakes
WHERE digest = ? AND version >= ? AND version < ? || char(1114111) AND expires > ? ORDER BY version`

// ListHandshakes implements [storage.Handshakes].
func (s *Store) ListHandshakes(ctx context.Context, digest, prefix string) ([]storage.Handshake, error) {
	return listOf(ctx, &s.database, listHandshakes, []any{digest, prefix, prefix, now()}, func(scan func(...any) error) (h storage.Handshake, err error) {
		var taken, result []byte
		var expires int64
		if err := scan(&h.Version, &taken, &expires, &result); err != nil {
			return h, err
		}
		h.Digest, h.Result, h.Expires = digest, result, expiryOf(expires)
		return h, h.Taken.UnmarshalText(taken)
	})
}

// Recorded implements [storage.Handshakes].
func (s *Store) Recorded(ctx context.Context, keys []storage.RecordKey) ([]storage.Recorded, error) {
	list := make([]storage.Recorded, len(keys))
	for i, k := range keys {
		list[i].Box.ID = k.Box
		var err error
		if k.Version != "" {
			if list[i].Handshake, err = s.Handshake(ctx, k.Digest, k.Version); err != nil && !errors.Is(err, storage.NotFound) {
				return nil, err
			}
		}
		if k.Box != "" {
			if list[i].Box, err = s.Box(ctx, k.Box); err != nil {
				return nil, err
			}
		}
	}
	return list, nil
}

const readHandshake = `SELECT taken, expires, result FROM handshakes WHERE digest = ? AND version = ? AND expires > ?`

// Handshake implements [storage.Handshakes].
func (s *Store) Handshake(ctx context.Context, digest, version string) (storage.Handshake, error) {
	h := storage.Handshake{Digest: digest, Version: version}
	var taken, result []byte
	var expires int64
	found, err := s.row(ctx, readHandshake, []any{digest, version, now()}, []any{&taken, &expires, &result})
	if err != nil {
		return storage.Handshake{}, err
	}
	if !found {
		return storage.Handshake{}, storage.Errorf(storage.NotFound, "there is no handshake record of this server for version %q", version)
	}
	h.Result, h.Expires = result, expiryOf(expires)
	if err := h.Taken.UnmarshalText(taken); err != nil {
		return storage.Handshake{}, failed(err)
	}
	return h, nil
}
