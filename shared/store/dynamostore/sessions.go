package dynamostore

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func sessionRow(x storage.Session) (row, error) {
	r := key(sessionKey(x.ID), "m")
	r["r"], r["T"] = num(x.Rev), str(tenantKey(x.Tenant))
	r.expire(x.Expires, 0)
	if x.Init != nil {
		r["i"] = bin(x.Init)
	}
	record, err := storage.MarshalSession(x)
	if err != nil {
		return nil, err
	}
	r.setRecord(record)
	return r, checkInline("the session with its initialize parameters", len(x.Init), len(record))
}

func tenantKey(tenant string) string { return "T#" + tenant }

func sessionOf(r row) (storage.Session, error) {
	x, err := storage.UnmarshalSession(r.record())
	x.Rev, x.Init = r.num("r"), r.bin("i")
	return x, err
}

// session makes the errors of writes that are refused.
var session = storage.Kind[storage.Session]{Name: "session"}

// Create implements [storage.Sessions]. It returns TooLarge if the
// record and the initialize parameters together are over 350 KiB.
func (s *Store) Create(ctx context.Context, x storage.Session) error {
	x.Rev = 1
	r, err := sessionRow(x)
	if err != nil {
		return err
	}
	return s.create(ctx, r, session)
}

// Load implements [storage.Sessions].
func (s *Store) Load(ctx context.Context, id storage.ID, boxID storage.BoxID) (storage.Session, storage.Box, error) {
	box := storage.Box{ID: boxID}
	var keys []row
	if len(id) <= maxKey { // the client chose the id; DynamoDB refuses a longer key
		keys = append(keys, key(sessionKey(id), "m"))
	}
	if boxID != "" {
		keys = append(keys, key(boxKey(boxID), "m"))
	}
	rows, err := s.getMany(ctx, keys)
	if err != nil {
		return storage.Session{}, storage.Box{}, err
	}
	var found row
	for _, r := range rows {
		if r.str("PK") == sessionKey(id) {
			found = r
		} else if box, err = boxOf(r); err != nil {
			return storage.Session{}, storage.Box{}, s.failed(err)
		}
	}
	if !found.alive(time.Now()) {
		err := storage.Errorf(storage.NotFound, "there is no such session, or it has expired")
		if found != nil {
			err = err.Because(storage.QuitExpired)
		}
		return storage.Session{}, box, err
	}
	x, err := sessionOf(found)
	if err != nil {
		return storage.Session{}, storage.Box{}, s.failed(err)
	}
	return x, box, nil
}

// Save implements [storage.Sessions]. It returns TooLarge as Create
// does.
func (s *Store) Save(ctx context.Context, x storage.Session) error {
	rev := x.Rev
	x.Rev++
	r, err := sessionRow(x)
	if err != nil {
		return err
	}
	old, err := s.replace(ctx, r, rev, session)
	if err == nil {
		s.prolong(ctx, x, old)
	}
	return err
}

// List implements [storage.Sessions]. It may miss sessions that were created a moment
// ago. Without a tenant it reads the whole index, about one read unit for each 80 sessions.
func (s *Store) List(ctx context.Context, tenant string, after storage.ID, limit int) ([]storage.Session, error) {
	keys := func(after string, limit int) ([]string, error) { return s.sessionKeys(ctx, tenant, after, limit) }
	return list(ctx, &s.requests, sessionKey(after), limit, keys, func(r row) (storage.Session, bool, error) {
		x, err := sessionOf(r)
		return x, true, err
	})
}

// list returns up to limit records whose partition keys follow afterKey, in the order of these
// keys. The function keysAfter returns the next partition keys in order, and none at the end; its
// argument limit is how many records list still wants. list leaves out rows that have expired, and
// those for which the result ok of decode is false.
func list[T any](
	ctx context.Context, q *requests, afterKey string, limit int, keysAfter func(key string, limit int) ([]string, error), decode func(row) (v T, ok bool, err error),
) ([]T, error) {
	var all []T
	for len(all) < limit {
		names, err := keysAfter(afterKey, limit-len(all))
		if err != nil || len(names) == 0 {
			return all, err
		}
		var asked []row
		for _, name := range names {
			asked = append(asked, key(name, "m"))
		}
		rows, err := q.getMany(ctx, asked)
		if err != nil {
			return nil, err
		}
		slices.SortFunc(rows, func(a, b row) int { return strings.Compare(a.str("PK"), b.str("PK")) })
		for _, r := range rows {
			if !r.alive(time.Now()) {
				continue
			}
			v, ok, err := decode(r)
			if err != nil {
				return nil, q.failed(err)
			}
			if ok {
				all = append(all, v)
			}
		}
		afterKey = names[len(names)-1]
	}
	return all[:max(limit, 0)], nil
}

// sessionKeys returns, in order, up to limit partition keys of sessions that follow afterKey.
func (s *Store) sessionKeys(ctx context.Context, tenant, afterKey string, limit int) ([]string, error) {
	var keys []string
	now := time.Now()
	collect := func(r row) bool {
		if k := r.str("PK"); k > afterKey && strings.HasPrefix(k, sessionKey("")) && r.alive(now) { // the index also has other records of the tenant
			keys = append(keys, k)
		}
		return len(keys) < limit
	}
	var err error
	if tenant == "" {
		err = s.scanIndex(ctx, tenantIndex, func(r row) { collect(r) })
	} else {
		err = s.queryTenant(ctx, tenantKey(tenant), afterKey, limit, collect)
	}
	slices.Sort(keys)
	return keys[:min(len(keys), limit)], err
}

// queryTenant reads the rows of a tenant from the index "tenant", in the order of their partition
// keys. It begins behind afterKey, and calls visit for each row until visit returns false.
func (q *requests) queryTenant(ctx context.Context, tenant, afterKey string, limit int, visit func(row) bool) error {
	limit = min(limit, 1000)
	in := &dynamodb.QueryInput{
		IndexName: aws.String(tenantIndex), Limit: aws.Int32(int32(limit)),
		KeyConditionExpression:    aws.String("T = :tenant AND PK > :after"),
		ExpressionAttributeValues: row{":tenant": str(tenant), ":after": str(afterKey)},
	}
	return q.queryAll(ctx, "Query", in, func() int { return limit }, func(r row) (bool, error) { return visit(r), nil })
}

// questionKey returns the sort key of an answer. It hashes a long question, so that a
// client cannot make the key too long.
func questionKey(question string) string {
	if len(question) > maxKey {
		sum := sha256.Sum256([]byte(question))
		question = "#" + base32.HexEncoding.EncodeToString(sum[:])
	}
	return "p#" + question
}

// PutAnswer implements [storage.Answers].
func (s *Store) PutAnswer(ctx context.Context, a storage.Answer) (first bool, err error) {
	r := key(sessionKey(a.Session), questionKey(a.Question))
	r.expire(a.Expires, 0)
	if err := s.spill(ctx, r, a.Raw, outlive(a.Expires)); err != nil {
		return false, err
	}
	_, first, err = s.put(ctx, r, isFree, nowValue())
	return first, err
}

// outlive returns when the parts of a row with this expiry are deleted.
func outlive(expires time.Time) time.Time {
	if expires.IsZero() {
		return expires
	}
	return expires.Add(24 * time.Hour)
}

// Answers implements [storage.Answers].
func (s *Store) Answers(ctx context.Context, id storage.ID, questions []string) ([]storage.Answer, error) {
	var keys []row
	asked := map[string]bool{}
	for _, q := range questions {
		if k := questionKey(q); !asked[k] {
			asked[k] = true
			keys = append(keys, key(sessionKey(id), k))
		}
	}
	rows, err := s.getMany(ctx, keys)
	if err != nil {
		return nil, err
	}
	found := map[string]row{}
	for _, r := range rows {
		found[r.str("SK")] = r
	}
	var answers []storage.Answer
	for _, q := range questions {
		r := found[questionKey(q)]
		if !r.alive(time.Now()) {
			continue
		}
		raw, err := s.raw(ctx, r)
		if err != nil {
			return nil, err
		}
		answers = append(answers, storage.Answer{Session: id, Question: q, Raw: raw, Expires: r.expires()})
	}
	return answers, nil
}

// raw returns the data of a row whose parts must all exist.
func (s *Store) raw(ctx context.Context, r row) ([]byte, error) {
	raw, ok, err := s.data(ctx, r)
	if err == nil && !ok && r["k"] != nil {
		err = storage.Errorf(storage.NotFound, "the message was deleted while it was read")
	}
	return raw, err
}

// PutConnection implements [storage.Connections].
func (s *Store) PutConnection(ctx context.Context, c storage.Connection) error {
	record, err := storage.Marshal(c)
	if err != nil {
		return err
	}
	return s.putRecord(ctx, key(connectionKey(c.ID), "m"), record, c.Expires)
}

// putRecord writes a row that holds only a record and an expiry.
func (s *Store) putRecord(ctx context.Context, r row, record []byte, expires time.Time) error {
	r.expire(expires, 0)
	r.setRecord(record)
	_, _, err := s.put(ctx, r, "", nil)
	return err
}

// Connection implements [storage.Connections].
func (s *Store) Connection(ctx context.Context, id string) (storage.Connection, error) {
	r, err := s.get(ctx, connectionKey(id), "m")
	if err != nil {
		return storage.Connection{}, err
	}
	if !r.alive(time.Now()) {
		return storage.Connection{}, storage.Errorf(storage.NotFound, "there is no such connection, or it has expired")
	}
	c, err := storage.Unmarshal[storage.Connection](r.record())
	if err != nil {
		return storage.Connection{}, s.failed(err)
	}
	return c, nil
}

// DeleteConnection implements [storage.Connections].
func (s *Store) DeleteConnection(ctx context.Context, id string) error {
	_, err := s.remove(ctx, key(connectionKey(id), "m"), "", nil)
	return err
}

func handshakeKey(digest, version string) row { return key("H#"+digest, "v#"+version) }

// SaveHandshake implements [storage.Handshakes]. It returns
// TooLarge if the result is over 350 KiB.
func (s *Store) SaveHandshake(ctx context.Context, h storage.Handshake) error {
	r := handshakeKey(h.Digest, h.Version)
	taken, err := h.Taken.MarshalText()
	if err != nil {
		return storage.Errorf(storage.Invalid, "the handshake record has a time that cannot be stored").Because(err)
	}
	r.setRecord(taken)
	r.expire(h.Expires, 0)
	if h.Result != nil {
		r["d"] = bin(h.Result)
	}
	if err := checkInline("the handshake record", len(h.Result)); err != nil {
		return err
	}
	_, _, err = s.put(ctx, r, "", nil)
	return err
}

// Handshake implements [storage.Handshakes].
func (s *Store) Handshake(ctx context.Context, digest, version string) (storage.Handshake, error) {
	k := handshakeKey(digest, version)
	r, err := s.get(ctx, k.str("PK"), k.str("SK"))
	if err != nil {
		return storage.Handshake{}, err
	}
	if !r.alive(time.Now()) {
		return storage.Handshake{}, storage.Errorf(storage.NotFound, "there is no handshake record of this server for version %q", version)
	}
	return s.handshakeOf(digest, version, r)
}

func (s *Store) handshakeOf(digest, version string, r row) (storage.Handshake, error) {
	h := storage.Handshake{Digest: digest, Version: version, Result: r.bin("d"), Expires: r.expires()}
	if err := h.Taken.UnmarshalText(r.record()); err != nil {
		return storage.Handshake{}, s.failed(err)
	}
	return h, nil
}

// Recorded implements [storage.Handshakes].
func (s *Store) Recorded(ctx context.Context, wanted []storage.RecordKey) ([]storage.Recorded, error) {
	name := func(r row) [2]string { return [2]string{r.str("PK"), r.str("SK")} }
	found := map[[2]string]row{}
	var keys []row
	want := func(k row) {
		if _, twice := found[name(k)]; !twice { // BatchGetItem refuses a key that it gets twice
			keys, found[name(k)] = append(keys, k), nil
		}
	}
	for _, w := range wanted {
		if w.Version != "" {
			want(handshakeKey(w.Digest, w.Version))
		}
		if w.Box != "" {
			want(key(boxKey(w.Box), "m"))
		}
	}
	rows, err := s.getMany(ctx, keys)
	if err != nil {
		return nil, err
	}
	for _, r := range rows {
		found[name(r)] = r
	}
	list := make([]storage.Recorded, len(wanted))
	for i, w := range wanted {
		list[i].Box.ID = w.Box
		if r := found[name(handshakeKey(w.Digest, w.Version))]; w.Version != "" && r != nil && r.alive(time.Now()) {
			if list[i].Handshake, err = s.handshakeOf(w.Digest, w.Version, r); err != nil {
				return nil, err
			}
		}
		if r := found[name(key(boxKey(w.Box), "m"))]; w.Box != "" && r != nil {
			if list[i].Box, err = boxOf(r); err != nil {
				return nil, s.failed(err)
			}
		}
	}
	return list, nil
}

// ListHandshakes implements [storage.Handshakes].
func (s *Store) ListHandshakes(ctx context.Context, digest, prefix string) ([]storage.Handshake, error) {
	var list []storage.Handshake
	begin := handshakeKey(digest, prefix)
	sp := span{pk: begin.str("PK"), from: begin.str("SK"), to: begin.str("SK") + "\U0010FFFF"}
	err := s.query(ctx, sp, func(r row) (bool, error) {
		if !r.alive(time.Now()) {
			return true, nil
		}
		h, err := s.handshakeOf(digest, strings.TrimPrefix(r.str("SK"), "v#"), r)
		list = append(list, h)
		return true, err
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}
