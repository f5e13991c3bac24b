package storagetest

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// stateKeys returns keys of durable values, all different. The tenant of the last contains quotes,
// which a driver must not mistake for the end of the tenant.
func stateKeys() []storage.ValueKey {
	base := storage.ValueKey{Tenant: "acme", Server: "everything", Scope: storage.ValueOfSession, Of: "s1", Since: time.UnixMilli(1_700_000_000_123).UTC(), Name: "é/\x00 #"}
	keys := []storage.ValueKey{base}
	for _, change := range []func(*storage.ValueKey){
		func(k *storage.ValueKey) { k.Tenant = "umbrella" },
		func(k *storage.ValueKey) { k.Server = "other" },
		func(k *storage.ValueKey) { k.Since = k.Since.Add(time.Millisecond) },
		func(k *storage.ValueKey) { k.Of = "s2" },
		func(k *storage.ValueKey) { k.Name += "2" },
		func(k *storage.ValueKey) { k.Name = string(bytes.Repeat([]byte{'n'}, storage.MaxValueName)) },
		func(k *storage.ValueKey) { k.Scope, k.Since = storage.ValueOfPrincipal, time.Time{} },
		func(k *storage.ValueKey) { k.Scope, k.Since, k.Of = storage.ValueOfServer, time.Time{}, "" },
		func(k *storage.ValueKey) {
			k.Tenant, k.Server, k.Scope, k.Since, k.Of = "acme\" \"everything", "", storage.ValueOfServer, time.Time{}, ""
		},
	} {
		k := base
		change(&k)
		keys = append(keys, k)
	}
	return keys
}

// withSessions creates the sessions s1 and s2, which own some values of stateKeys.
func withSessions(t *testing.T, k *kit) {
	t.Helper()
	for _, id := range []storage.ID{"s1", "s2"} {
		noError(t, "Create", k.Create(t.Context(), plain(id, "acme")))
	}
}

func saveState(t *testing.T, s storage.Store, v storage.Value) storage.Value {
	t.Helper()
	saved, err := s.SaveValue(t.Context(), v)
	noError(t, "SaveValue", err)
	return saved
}

func loadState(t *testing.T, s storage.Store, k storage.ValueKey) storage.Value {
	t.Helper()
	v, err := s.LoadValue(t.Context(), k)
	noError(t, "LoadValue", err)
	return v
}

func statePromises() []promise {
	return []promise{
		{"a value nobody has saved has Rev 0 and is no error", func(t *testing.T, k *kit) {
			for _, key := range stateKeys() {
				same(t, "LoadValue", loadState(t, k, key), storage.Value{Key: key})
			}
		}},
		{"values are apart by each part of their key", func(t *testing.T, k *kit) {
			withSessions(t, k)
			other, saved := k.other(t), map[int]storage.Value{}
			for i, key := range stateKeys() {
				saved[i] = saveState(t, k, storage.Value{Key: key, Data: fmt.Appendf(nil, "\x00\xff %d", i)})
			}
			for i, key := range stateKeys() {
				same(t, fmt.Sprint("LoadValue of ", i), loadState(t, other, key), saved[i])
				same(t, fmt.Sprint("Data of ", i), saved[i].Data, fmt.Appendf(nil, "\x00\xff %d", i))
			}
		}},
		{"a value is saved over the revision that was read, once", func(t *testing.T, k *kit) {
			withSessions(t, k)
			first := saveState(t, k, storage.Value{Key: stateKeys()[0], Data: []byte("1")})
			for _, data := range [][]byte{[]byte("x"), nil} {
				stored, err := k.SaveValue(t.Context(), storage.Value{Key: first.Key, Data: data})
				wantCode(t, "SaveValue over nothing", err, storage.Conflict)
				same(t, "what is stored", stored, first)
			}
			second := first
			second.Data = []byte("2")
			second = saveState(t, k.other(t), second)
			if second.Rev == first.Rev || first.Rev == 0 || second.Rev == 0 {
				t.Fatalf("Rev %d, then %d; want two others than 0", first.Rev, second.Rev)
			}
			for _, data := range [][]byte{[]byte("3"), nil} {
				stored, err := k.SaveValue(t.Context(), storage.Value{Key: first.Key, Rev: first.Rev, Data: data})
				wantCode(t, "SaveValue over the first", err, storage.Conflict)
				same(t, "what is stored", stored, second)
			}
			same(t, "LoadValue", loadState(t, k, first.Key), second)
		}},
		{"of many that save over the same revision one wins", func(t *testing.T, k *kit) {
			withSessions(t, k)
			v := storage.Value{Key: stateKeys()[0]}
			for i := range 2 {
				race(t, k, 8, func(s storage.Store, n int) error {
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
			kept := storage.Value{Key: stateKeys()[8], Data: []byte("1"), Expires: future()}
			kept.Rev = saveState(t, k, kept).Rev
			same(t, "LoadValue of one that has not", loadState(t, k.other(t), kept.Key), kept)
			old := saveState(t, k, storage.Value{Key: key, Data: []byte("1"), Expires: past()})
			same(t, "LoadValue", loadState(t, k, key), storage.Value{Key: key})
			stored, err := k.SaveValue(t.Context(), storage.Value{Key: key, Rev: old.Rev, Data: []byte("2")})
			wantCode(t, "SaveValue over it", err, storage.Conflict)
			same(t, "what is stored", stored, storage.Value{Key: key})
			saveState(t, k, storage.Value{Key: key, Data: []byte("3")})
		}},
		{"a value of 256 KiB fits, and no more", func(t *testing.T, k *kit) {
			withSessions(t, k)
			v := storage.Value{Key: stateKeys()[0], Data: bytes.Repeat([]byte{0xff}, storage.MaxValueData)}
			same(t, "LoadValue", loadState(t, k, saveState(t, k, v).Key).Data, v.Data)
			v.Data = append(v.Data, 'x')
			_, err := k.SaveValue(t.Context(), v)
			wantCode(t, "SaveValue of a byte more", err, storage.TooLarge)
		}},
		{"a key that names nothing is Invalid", func(t *testing.T, k *kit) {
			for i, key := range []storage.ValueKey{
				{},
				{Scope: "other", Of: "x", Name: "n"},
				{Scope: storage.ValueOfServer},
				{Scope: storage.ValueOfServer, Of: "x", Name: "n"},
				{Scope: storage.ValueOfPrincipal, Name: "n"},
				{Scope: storage.ValueOfSession, Of: "s1", Name: "n"},
				{Scope: storage.ValueOfPrincipal, Of: "p", Since: past(), Name: "n"},
				{Scope: storage.ValueOfServer, Name: string(bytes.Repeat([]byte{'n'}, storage.MaxValueName+1))},
			} {
				_, err := k.LoadValue(t.Context(), key)
				wantCode(t, fmt.Sprint("LoadValue ", i), err, storage.Invalid)
				_, err = k.SaveValue(t.Context(), storage.Value{Key: key, Data: []byte("1")})
				wantCode(t, fmt.Sprint("SaveValue ", i), err, storage.Invalid)
			}
			_, err := k.SaveValue(t.Context(), storage.Value{Key: stateKeys()[0], Data: []byte("1"), Expires: future()})
			wantCode(t, "SaveValue of a session's value that expires", err, storage.Invalid)
		}},
		{"values are copied in and out", func(t *testing.T, k *kit) {
			given := []byte("123")
			v := saveState(t, k, storage.Value{Key: stateKeys()[7], Data: given})
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
	same(t, "SaveValue of nothing over nothing", saveState(t, k, storage.Value{Key: key}), storage.Value{Key: key})
	first := saveState(t, k, storage.Value{Key: key, Data: []byte("1")})
	_, err := k.SaveValue(t.Context(), storage.Value{Key: key})
	wantCode(t, "SaveValue of nothing over what is not nothing", err, storage.Conflict)
	same(t, "what is left", saveState(t, k, storage.Value{Key: key, Rev: first.Rev}), storage.Value{Key: key})
	same(t, "LoadValue", loadState(t, k.other(t), key), storage.Value{Key: key})
	second := saveState(t, k, storage.Value{Key: key, Data: []byte("2")})
	_, err = k.SaveValue(t.Context(), storage.Value{Key: key, Rev: first.Rev, Data: []byte("3")})
	wantCode(t, "SaveValue over the first", err, storage.Conflict)
	same(t, "LoadValue of the second", loadState(t, k, key), second)
}
