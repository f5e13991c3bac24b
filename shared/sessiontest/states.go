package sessiontest

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// stateKeys are keys that differ in one thing each; the first is of the session s1.
func stateKeys() []session.StateKey {
	base := session.StateKey{Tenant: "acme", Server: "everything", Scope: session.StateOfSession, Of: "s1", Since: time.UnixMilli(1_700_000_000_123).UTC(), Name: "é/\x00 #"}
	keys := []session.StateKey{base}
	for _, change := range []func(*session.StateKey){
		func(k *session.StateKey) { k.Tenant = "umbrella" },
		func(k *session.StateKey) { k.Server = "other" },
		func(k *session.StateKey) { k.Since = k.Since.Add(time.Millisecond) },
		func(k *session.StateKey) { k.Of = "s2" },
		func(k *session.StateKey) { k.Name += "2" },
		func(k *session.StateKey) { k.Name = string(bytes.Repeat([]byte{'n'}, session.MaxStateName)) },
		func(k *session.StateKey) { k.Scope, k.Since = session.StateOfPrincipal, time.Time{} },
		func(k *session.StateKey) { k.Scope, k.Since, k.Of = session.StateOfServer, time.Time{}, "" },
		func(k *session.StateKey) {
			k.Tenant, k.Server, k.Scope, k.Since, k.Of = "acme\" \"everything", "", session.StateOfServer, time.Time{}, ""
		},
	} {
		k := base
		change(&k)
		keys = append(keys, k)
	}
	return keys
}

// withSessions is a store with the sessions of stateKeys.
func withSessions(t *testing.T, k *kit) {
	t.Helper()
	for _, id := range []session.ID{"s1", "s2"} {
		noError(t, "Create", k.Create(t.Context(), plain(id, "acme")))
	}
}

func saveState(t *testing.T, s session.Store, v session.StateValue) session.StateValue {
	t.Helper()
	saved, err := s.SaveState(t.Context(), v)
	noError(t, "SaveState", err)
	return saved
}

func loadState(t *testing.T, s session.Store, k session.StateKey) session.StateValue {
	t.Helper()
	v, err := s.LoadState(t.Context(), k)
	noError(t, "LoadState", err)
	return v
}

func statePromises() []promise {
	return []promise{
		{"a value nobody has saved has Rev 0 and is no error", func(t *testing.T, k *kit) {
			for _, key := range stateKeys() {
				same(t, "LoadState", loadState(t, k, key), session.StateValue{Key: key})
			}
		}},
		{"values are apart by each part of their key", func(t *testing.T, k *kit) {
			withSessions(t, k)
			other, saved := k.other(t), map[int]session.StateValue{}
			for i, key := range stateKeys() {
				saved[i] = saveState(t, k, session.StateValue{Key: key, Data: fmt.Appendf(nil, "\x00\xff %d", i)})
			}
			for i, key := range stateKeys() {
				same(t, fmt.Sprint("LoadState of ", i), loadState(t, other, key), saved[i])
				same(t, fmt.Sprint("Data of ", i), saved[i].Data, fmt.Appendf(nil, "\x00\xff %d", i))
			}
		}},
		{"a value is saved over the revision that was read, once", func(t *testing.T, k *kit) {
			withSessions(t, k)
			first := saveState(t, k, session.StateValue{Key: stateKeys()[0], Data: []byte("1")})
			_, err := k.SaveState(t.Context(), session.StateValue{Key: first.Key, Data: []byte("x")})
			wantCode(t, "SaveState over nothing", err, session.Conflict)
			second := first
			second.Data = []byte("2")
			second = saveState(t, k.other(t), second)
			if second.Rev == first.Rev || first.Rev == 0 || second.Rev == 0 {
				t.Fatalf("Rev %d, then %d; want two others than 0", first.Rev, second.Rev)
			}
			for _, data := range [][]byte{[]byte("3"), nil} {
				_, err = k.SaveState(t.Context(), session.StateValue{Key: first.Key, Rev: first.Rev, Data: data})
				wantCode(t, "SaveState over the first", err, session.Conflict)
			}
			same(t, "LoadState", loadState(t, k, first.Key), second)
		}},
		{"of many that save over the same revision one wins", func(t *testing.T, k *kit) {
			withSessions(t, k)
			v := session.StateValue{Key: stateKeys()[0]}
			for i := range 2 {
				race(t, k, 8, func(s session.Store, n int) error {
					mine := v
					mine.Data = fmt.Appendf(nil, "%d %d", i, n)
					_, err := s.SaveState(t.Context(), mine)
					return err
				})
				v = loadState(t, k, v.Key)
			}
		}},
		{"a value is deleted by its revision, and not mistaken for the next one", deletedState},
		{"a value that has expired is not there", func(t *testing.T, k *kit) {
			key := stateKeys()[7]
			kept := session.StateValue{Key: stateKeys()[8], Data: []byte("1"), Expires: future()}
			kept.Rev = saveState(t, k, kept).Rev
			same(t, "LoadState of one that has not", loadState(t, k.other(t), kept.Key), kept)
			old := saveState(t, k, session.StateValue{Key: key, Data: []byte("1"), Expires: past()})
			same(t, "LoadState", loadState(t, k, key), session.StateValue{Key: key})
			_, err := k.SaveState(t.Context(), session.StateValue{Key: key, Rev: old.Rev, Data: []byte("2")})
			wantCode(t, "SaveState over it", err, session.Conflict)
			saveState(t, k, session.StateValue{Key: key, Data: []byte("3")})
		}},
		{"a value of 256 KiB fits, and no more", func(t *testing.T, k *kit) {
			withSessions(t, k)
			v := session.StateValue{Key: stateKeys()[0], Data: bytes.Repeat([]byte{0xff}, session.MaxStateData)}
			same(t, "LoadState", loadState(t, k, saveState(t, k, v).Key).Data, v.Data)
			v.Data = append(v.Data, 'x')
			_, err := k.SaveState(t.Context(), v)
			wantCode(t, "SaveState of a byte more", err, session.TooLarge)
		}},
		{"a key that names nothing is Invalid", func(t *testing.T, k *kit) {
			for i, key := range []session.StateKey{
				{},
				{Scope: "other", Of: "x", Name: "n"},
				{Scope: session.StateOfServer},
				{Scope: session.StateOfServer, Of: "x", Name: "n"},
				{Scope: session.StateOfPrincipal, Name: "n"},
				{Scope: session.StateOfSession, Of: "s1", Name: "n"},
				{Scope: session.StateOfPrincipal, Of: "p", Since: past(), Name: "n"},
				{Scope: session.StateOfServer, Name: string(bytes.Repeat([]byte{'n'}, session.MaxStateName+1))},
			} {
				_, err := k.LoadState(t.Context(), key)
				wantCode(t, fmt.Sprint("LoadState ", i), err, session.Invalid)
				_, err = k.SaveState(t.Context(), session.StateValue{Key: key, Data: []byte("1")})
				wantCode(t, fmt.Sprint("SaveState ", i), err, session.Invalid)
			}
			_, err := k.SaveState(t.Context(), session.StateValue{Key: stateKeys()[0], Data: []byte("1"), Expires: future()})
			wantCode(t, "SaveState of a session's value that expires", err, session.Invalid)
		}},
		{"values are copied in and out", func(t *testing.T, k *kit) {
			given := []byte("123")
			v := saveState(t, k, session.StateValue{Key: stateKeys()[7], Data: given})
			for range 2 {
				given[0] = 'x'
				v.Data[1] = 'x'
				v = loadState(t, k, v.Key)
				same(t, "Data", v.Data, []byte("123"))
				given = v.Data
				v = loadState(t, k, v.Key)
			}
		}},
	}
}

func deletedState(t *testing.T, k *kit) {
	withSessions(t, k)
	key := stateKeys()[0]
	same(t, "SaveState of nothing over nothing", saveState(t, k, session.StateValue{Key: key}), session.StateValue{Key: key})
	first := saveState(t, k, session.StateValue{Key: key, Data: []byte("1")})
	_, err := k.SaveState(t.Context(), session.StateValue{Key: key})
	wantCode(t, "SaveState of nothing over what is not nothing", err, session.Conflict)
	same(t, "what is left", saveState(t, k, session.StateValue{Key: key, Rev: first.Rev}), session.StateValue{Key: key})
	same(t, "LoadState", loadState(t, k.other(t), key), session.StateValue{Key: key})
	second := saveState(t, k, session.StateValue{Key: key, Data: []byte("2")})
	_, err = k.SaveState(t.Context(), session.StateValue{Key: key, Rev: first.Rev, Data: []byte("3")})
	wantCode(t, "SaveState over the first", err, session.Conflict)
	same(t, "LoadState of the second", loadState(t, k, key), second)
}
