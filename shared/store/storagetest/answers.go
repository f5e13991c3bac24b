package storagetest

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func anAnswer(question, raw string) storage.Answer {
	return storage.Answer{Session: "s1", Question: question, Raw: []byte(raw), Expires: future()}
}

// answerPromises has the tests of [storage.Answers] and [storage.Handshakes].
func answerPromises() []promise {
	return []promise{
		{"the first answer to a question wins", func(t *testing.T, k *kit) {
			putAnswer(t, k, anAnswer("q1", rawJSON), true)
			putAnswer(t, k, anAnswer("q1", `{"late":1}`), false)
			putAnswer(t, k, anAnswer("q2", `{"other":1}`), true)
			got := answers(t, k, "s1", []string{"q1"})
			same(t, "answers", len(got), 1)
			same(t, "the answer", string(got[0].Raw), rawJSON)
		}},
		{"of many that answer at once one is first", answerRace},
		{"a question is answered in its session only", func(t *testing.T, k *kit) {
			putAnswer(t, k, anAnswer("q1", `1`), true)
			foreign := anAnswer("q1", `2`)
			foreign.Session = "s2"
			putAnswer(t, k, foreign, true)
			same(t, "answers", answers(t, k, "s2", []string{"q1"}), []storage.Answer{foreign})
		}},
		{"Answers returns those that have been answered", func(t *testing.T, k *kit) {
			a, b := anAnswer("q1", `1`), anAnswer("q 3/ü", "{\n \"x\": 2 }")
			filled(t, a)
			putAnswer(t, k, a, true)
			putAnswer(t, k, b, true)
			got := answers(t, k, "s1", []string{"q1", "q2", "q 3/ü"})
			byQuestion := map[string]storage.Answer{}
			for _, x := range got {
				byQuestion[x.Question] = x
			}
			same(t, "answers", byQuestion, map[string]storage.Answer{"q1": a, "q 3/ü": b})
			same(t, "answers to nothing", answers(t, k, "s1", nil), []storage.Answer(nil))
		}},
		{"an expired answer is not found and does not count as the first", func(t *testing.T, k *kit) {
			a := anAnswer("q1", `1`)
			a.Expires = past()
			putAnswer(t, k, a, true)
			same(t, "answers", answers(t, k, "s1", []string{"q1"}), []storage.Answer(nil))
			putAnswer(t, k, anAnswer("q1", `2`), true)
		}},
		{"answers are copied", func(t *testing.T, k *kit) {
			a := anAnswer("q1", `{"a":1}`)
			putAnswer(t, k, a, true)
			a.Raw[0] = 'z'
			for range 2 {
				got := answers(t, k, "s1", []string{"q1"})
				same(t, "Raw", string(got[0].Raw), `{"a":1}`)
				got[0].Raw[0] = 'z'
			}
		}},
		{"a handshake record nobody has written is NotFound", func(t *testing.T, k *kit) {
			noError(t, "SaveHandshake", k.SaveHandshake(t.Context(), storage.Handshake{Digest: "d1", Version: "v1", Result: json.RawMessage(`1`)}))
			_, err := k.Handshake(t.Context(), "d1", "v2")
			wantCode(t, "Handshake of another version", err, storage.NotFound)
			_, err = k.Handshake(t.Context(), "d2", "v1")
			wantCode(t, "Handshake of another digest", err, storage.NotFound)
		}},
		{"the parts of a handshake record are listed by the beginning of their names", func(t *testing.T, k *kit) {
			var want []storage.Handshake
			for _, h := range []storage.Handshake{
				{Digest: "d1", Version: "2025-11-25"},
				{Digest: "d1", Version: "tools/list 2025-06-18"},
				{Digest: "d1", Version: "tools/list 2025-11-25 roots"},
				{Digest: "d1", Version: "tools/list 2025-11-25 é"},
				{Digest: "d1", Version: "tools/lisu"},
				{Digest: "d2", Version: "tools/list 2025-11-25"},
				{Digest: "d1", Version: "tools/list 2026", Expires: past()},
			} {
				h.Result, h.Taken = json.RawMessage(`1`), now()
				noError(t, "SaveHandshake", k.SaveHandshake(t.Context(), h))
				if h.Digest == "d1" && strings.HasPrefix(h.Version, "tools/list ") && h.Expires.IsZero() {
					want = append(want, h)
				}
			}
			got, err := k.other(t).ListHandshakes(t.Context(), "d1", "tools/list ")
			noError(t, "ListHandshakes", err)
			same(t, "ListHandshakes", got, want)
			none, err := k.ListHandshakes(t.Context(), "d3", "")
			noError(t, "ListHandshakes", err)
			if len(none) > 0 {
				t.Errorf("a record that nobody has written has %v", none)
			}
		}},
		{"parts of several records are read together with boxes", func(t *testing.T, k *kit) {
			first := storage.Handshake{Digest: "d1", Version: "v1", Result: json.RawMessage(`{"a":1}`), Taken: now()}
			noError(t, "SaveHandshake", k.SaveHandshake(t.Context(), first))
			noError(t, "SaveHandshake", k.SaveHandshake(t.Context(), storage.Handshake{Digest: "d2", Version: "v1", Result: json.RawMessage(`2`), Taken: now(), Expires: past()}))
			noError(t, "SaveBox", k.SaveBox(t.Context(), storage.Box{ID: "t/b1", Gen: 3}))
			got, err := k.other(t).Recorded(t.Context(), []storage.RecordKey{
				{Digest: "d1", Version: "v1", Box: "t/b2"}, {Digest: "d2", Version: "v1", Box: "t/b1"}, {Digest: "d3", Version: "v1"}, {Box: "t/b1"}, {Digest: "d1", Version: "v1"},
			})
			noError(t, "Recorded", err)
			box := storage.Box{ID: "t/b1", Rev: 1, Gen: 3}
			same(t, "Recorded", got, []storage.Recorded{{Handshake: first, Box: storage.Box{ID: "t/b2"}}, {Box: box}, {}, {Box: box}, {Handshake: first}})
			none, err := k.Recorded(t.Context(), nil)
			noError(t, "Recorded of nothing", err)
			same(t, "Recorded of nothing", len(none), 0)
		}},
		{"more parts of records are read together than one request of a database holds", func(t *testing.T, k *kit) {
			// Sixty lists of 300 KB are more than DynamoDB returns for one batch. 200
			// keys are more than one batch may ask for.
			list := strings.Repeat("x", 300<<10)
			var keys []storage.RecordKey
			for i := range 100 {
				digest := fmt.Sprintf("t/d%d", i)
				keys = append(keys, storage.RecordKey{Digest: digest, Version: "tools/list", Box: storage.BoxID("t/" + digest)})
				if i%5 > 2 {
					continue
				}
				h := storage.Handshake{Digest: digest, Version: "tools/list", Result: json.RawMessage(fmt.Sprintf(`["%d%s"]`, i, list)), Taken: now()}
				noError(t, "SaveHandshake", k.SaveHandshake(t.Context(), h))
			}
			keys = append(keys, keys[7], keys[0]) // a key may come twice
			got, err := k.other(t).Recorded(t.Context(), keys)
			noError(t, "Recorded", err)
			same(t, "Recorded", len(got), len(keys))
			for i, r := range got {
				n, want := i, ""
				if i >= 100 {
					n = []int{7, 0}[i-100]
				}
				if n%5 <= 2 {
					want = fmt.Sprintf(`["%d%s"]`, n, list)
				}
				if string(r.Handshake.Result) != want || r.Box.ID != keys[i].Box {
					t.Errorf("key %d: %d bytes of %s, box %s", i, len(r.Handshake.Result), r.Handshake.Digest, r.Box.ID)
				}
			}
		}},
		{"a handshake record holds a long list", func(t *testing.T, k *kit) {
			list := json.RawMessage(`{"tools":["` + strings.Repeat("x", 256<<10-14) + `"]}`)
			h := storage.Handshake{Digest: "t/d1", Version: "tools/list 2025-11-25 roots,sampling", Result: list, Taken: now()}
			noError(t, "SaveHandshake", k.SaveHandshake(t.Context(), h))
			got, err := k.other(t).Handshake(t.Context(), h.Digest, h.Version)
			noError(t, "Handshake", err)
			same(t, "Handshake", got, h)
		}},
		{"a handshake record is written over an older one", func(t *testing.T, k *kit) {
			h := storage.Handshake{Digest: "d1", Version: "2025-11-25", Result: json.RawMessage(`{"old":1}`), Taken: past()}
			noError(t, "SaveHandshake", k.SaveHandshake(t.Context(), h))
			h.Result, h.Taken, h.Expires = json.RawMessage(rawJSON), now(), future()
			filled(t, h)
			noError(t, "SaveHandshake again", k.SaveHandshake(t.Context(), h))
			got, err := k.other(t).Handshake(t.Context(), "d1", "2025-11-25")
			noError(t, "Handshake", err)
			same(t, "Handshake", got, h)
			same(t, "Result, byte for byte", string(got.Result), rawJSON)
		}},
		{"a handshake record that has expired is NotFound, until it is written again", func(t *testing.T, k *kit) {
			h := storage.Handshake{Digest: "d1", Version: "v1", Result: json.RawMessage(`1`), Taken: past(), Expires: past()}
			noError(t, "SaveHandshake", k.SaveHandshake(t.Context(), h))
			_, err := k.Handshake(t.Context(), "d1", "v1")
			wantCode(t, "Handshake", err, storage.NotFound)
			h.Taken, h.Expires = now(), future()
			noError(t, "SaveHandshake again", k.SaveHandshake(t.Context(), h))
			got, err := k.other(t).Handshake(t.Context(), "d1", "v1")
			noError(t, "Handshake", err)
			same(t, "Handshake", got, h)
		}},
	}
}

func answers(t *testing.T, k *kit, id storage.ID, questions []string) []storage.Answer {
	t.Helper()
	list, err := k.Answers(t.Context(), id, questions)
	noError(t, "Answers", err)
	return list
}

func putAnswer(t *testing.T, k *kit, a storage.Answer, want bool) {
	t.Helper()
	first, err := k.PutAnswer(t.Context(), a)
	noError(t, "PutAnswer", err)
	same(t, fmt.Sprintf("answer %s to %s is first", a.Raw, a.Question), first, want)
}

func answerRace(t *testing.T, k *kit) {
	expires := time.Now().Add(time.Hour)
	won := race(t, k, 8, func(s storage.Store, i int) error {
		first, err := s.PutAnswer(t.Context(), storage.Answer{Session: "s1", Question: "q", Raw: fmt.Append(nil, i), Expires: expires})
		if err == nil && !first {
			return storage.Conflict
		}
		return err
	})
	same(t, "the first answer", string(answers(t, k, "s1", []string{"q"})[0].Raw), fmt.Sprint(won))
}
