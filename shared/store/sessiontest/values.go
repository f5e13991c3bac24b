package sessiontest

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/session"
)

// stateKeys returns keys that each differ in one thing. The first belongs to session s1.
func stateKeys() []session.ValueKey {
	base := session.ValueKey{Tenant: "acme", Server: "everything", Scope: session.ValueOfSession, Of: "s1", Since: time.UnixMilli(1_700_000_000_123).UTC(), Name: "é/\x00 #"}
	keys := []session.ValueKey{base}
	for _, change := range []func(*session.ValueKey){
		func(k *session.ValueKey) { k.Tenant = "umbrella" },
		func(k *session.ValueKey) { k.Server = "other" },
		func(k *session.ValueKey) { k.Since = k.Since.Add(time.Millisecond) },
		func(k *session.ValueKey) { k.Of = "s2" },
		func(k *session.ValueKey) { k.Name += "2" },
		func(k *session.ValueKey) { k.Name = string(bytes.Repeat([]byte{'n'}, session.MaxValueName)) },
		func(k *session.ValueKey) { k.Scope, k.Since = session.ValueOfPrincipal, time.Time{} },
		func(k *session.ValueKey) { k.Scope, k.Since, k.Of = session.ValueOfServer, time.Time{}, "" },
		func(k *session.ValueKey) {
			k.Tenant, k.Server, k.Scope, k.Since, k.Of = "acme\" \"everything", "", session.ValueOfServer, time.Time{}, ""
		},
	} {
		k := base
		change(&k)
		keys = append(keys, k)
	}
	return keys
}

// withSessions creates the sessions of stateKeys.
func withSessions(t *testing.T, k *kit) {
	t.Helper()
	for _, id := range []session.ID{"s1", "s2"} {
		noError(t, "Create", k.Create(t.Context(), plain(id, "acme")))
	}
}

func saveState(t *testing.T, s session.Store, v session.Value) session.Value {
	t.Helper()
	saved, err := s.SaveValue(t.Context(), v)
	noError(t, "SaveValue", err)
	return saved
}

func loadState(t *testing.T, s session.Store, k session.ValueKey) session.Value {
	t.Helper()
	v, err := s.LoadValue(t.Context(), k)
	noError(t, "LoadValue", err)
	return v
}

func statePromises() []promise {
	return []promise{
		{"a value nobody has saved has Rev 0 and is no error", func(t *testing.T, k *kit) {
			for _, key := range stateKeys() {
				same(t, "LoadValue", loadState(t, k, key), session.Value{Key: key})
			}
		}},
		{"values are apart by each part of their key", func(t *testing.T, k *kit) {
			withSessions(t, k)
			other, saved := k.other(t), map[int]session.Value{}
			for i, key := range stateKeys() {
				saved[i] = saveState(t, k, session.Value{Key: key, Data: fmt.Appendf(nil, "\x00\xff %d", i)})
			}
			for i, key := range stateKeys() {
				same(t, fmt.Sprint("LoadValue of ", i), loadState(t, other, key), saved[i])
				same(t, fmt.Sprint("Data of ", i), saved[i].Data, fmt.Appendf(nil, "\x00\xff %d", i))
			}
		}},
		{"a value is saved over the revision that was read, once", func(t *testing.T, k *kit) {
			withSessions(t, k)
			first := saveState(t, k, session.Value{Key: stateKeys()[0], Data: []byte("1")})
			_, err := k.SaveValue(t.Context(), session.Value{Key: first.Key, Data: []byte("x")})
			wantCode(t, "SaveValue over nothing", err, session.Conflict)
			second := first
			second.Data = []byte("2")
			second = saveState(t, k.other(t), second)
			if second.Rev == first.Rev || first.Rev == 0 || second.Rev == 0 {
				t.Fatalf("Rev %d, then %d; want two others than 0", first.Rev, second.Rev)
			}
			for _, data := range [][]byte{[]byte("3"), nil} {
				_, err = k.SaveValue(t.Context(), session.Value{Key: first.Key, Rev: first.Rev, Data: data})
				wantCode(t, "SaveValue over the first", err, session.Conflict)
			}
			same(t, "LoadValue", loadState(t, k, first.Key), second)
		}},
		{"of many that save over the same revision one wins", func(t *testing.T, k *kit) {
			withSessions(t, k)
			v := session.Value{Key: stateKeys()[0]}
			for i := range 2 {
				race(t, k, 8, func(s session.Store, n int) error {
					mine := v
					mine.Data = fmt.Appendf(nil, "%d %d", i, n)
					_, err := s.SaveValue(t.Context(), mine)
					return err
				})
				v = loadState(t, k, v.Key)
			}
		}},
		{"a value is deleted by its revision, and not mistaken for the next one", deletedState},
		{"a value that has expired is not there", func(t *testing.T, k *kit) {
			key := stateKeys()[7]
			kept := session.Value{Key: stateKeys()[8], Data: []byte("1"), Expires: future()}
			kept.Rev = saveState(t, k, kept).Rev
			same(t, "LoadValue of one that has not", loadState(t, k.other(t), kept.Key), kept)
			old := saveState(t, k, session.Value{Key: key, Data: []byte("1"), Expires: past()})
			same(t, "LoadValue", loadState(t, k, key), session.Value{Key: key})
			_, err := k.SaveValue(t.Context(), session.Value{Key: key, Rev: old.Rev, Data: []byte("2")})
			wantCode(t, "SaveValue over it", err, session.Conflict)
			saveState(t, k, session.Value{Key: key, Data: []byte("3")})
		}},
		{"a value of 256 KiB fits, and no more", func(t *testing.T, k *kit) {
			withSessions(t, k)
			v := session.Value{Key: stateKeys()[0], Data: bytes.Repeat([]byte{0xff}, session.MaxValueData)}
			same(t, "LoadValue", loadState(t, k, saveState(t, k, v).Key).Data, v.Data)
			v.Data = append(v.Data, 'x')
			_, err := k.SaveValue(t.Context(), v)
			wantCode(t, "SaveValue of a byte more", err, session.TooLarge)
		}},
		{"a key that names nothing is Invalid", func(t *testing.T, k *kit) {
			for i, key := range []session.ValueKey{
				{},
				{Scope: "other", Of: "x", Name: "n"},
				{Scope: session.ValueOfServer},
				{Scope: session.ValueOfServer, Of: "x", Name: "n"},
				{Scope: session.ValueOfPrincipal, Name: "n"},
				{Scope: session.ValueOfSession, Of: "s1", Name: "n"},
				{Scope: session.ValueOfPrincipal, Of: "p", Since: past(), Name: "n"},
				{Scope: session.ValueOfServer, Name: string(bytes.Repeat([]byte{'n'}, session.MaxValueName+1))},
			} {
				_, err := k.LoadValue(t.Context(), key)
				wantCode(t, fmt.Sprint("LoadValue ", i), err, session.Invalid)
				_, err = k.SaveValue(t.Context(), session.Value{Key: key, Data: []byte("1")})
				wantCode(t, fmt.Sprint("SaveValue ", i), err, session.Invalid)
			}
			_, err := k.SaveValue(t.Context(), session.Value{Key: stateKeys()[0], Data: []byte("1"), Expires: future()})
			wantCode(t, "SaveValue of a session's value that expires", err, session.Invalid)
		}},
		{"values are copied in and out", func(t *testing.T, k *kit) {
			given := []byte("123")
			v := saveState(t, k, session.Value{Key: stateKeys()[7], Data: given})
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
	same(t, "SaveValue of nothing over nothing", saveState(t, k, session.Value{Key: key}), session.Value{Key: key})
	first := saveState(t, k, session.Value{Key: key, Data: []byte("1")})
	_, err := k.SaveValue(t.Context(), session.Value{Key: key})
	wantCode(t, "SaveValue of nothing over what is not nothing", err, session.Conflict)
	same(t, "what is left", saveState(t, k, session.Value{Key: key, Rev: first.Rev}), session.Value{Key: key})
	same(t, "LoadValue", loadState(t, k.other(t), key), session.Value{Key: key})
	second := saveState(t, k, session.Value{Key: key, Data: []byte("2")})
	_, err = k.SaveValue(t.Context(), session.Value{Key: key, Rev: first.Rev, Data: []byte("3")})
	wantCode(t, "SaveValue over the first", err, session.Conflict)
	same(t, "LoadValue of the second", loadState(t, k, key), second)
}
