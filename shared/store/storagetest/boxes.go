package storagetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// aBox returns a box record with every field filled.
func aBox(id storage.BoxID) storage.Box {
	return storage.Box{
		ID: id, Rev: 1, Tenant: "acme", Server: "everything", State: storage.Starting, Gen: 7, Lost: 5, Worked: 6, Told: storage.Told{Tools: 2, Prompts: 3, Resources: 4}, Runner: "r-1", Code: "d-4", Relisted: past(),
		Task: "arn:task/1", Conn: "c-1=", Link: 3, Era: "modern", Owner: "o-1", Until: future(), Attempt: 2, TokenHash: "h-1", Changed: now(),
		Place: "lambda", Began: past(), Busy: 3 * time.Second, Gone: past(), Installed: "d-3", Full: 1<<31 | 5, Later: storage.Later{"Newer": json.RawMessage(`[1.0]`)},
		Failure: storage.Failure{Phase: "runtime", Detail: "exit <1> & \u2028 é", Advice: "é", Exit: 1, Signal: "SIGKILL", Unsent: true, At: past()},
	}
}

// anItem returns a waiting item with every field that a waiting item has.
func anItem(box storage.BoxID, id storage.StreamID) storage.Item {
	return storage.Item{
		Box: box, ID: id, State: storage.Waiting, Raw: []byte("{\n " + rawJSON + "\n}"), NotAfter: future(), Created: now(),
		Round: 3, Base: 7, Questions: []storage.Question{{ID: "<é>.3.1", Key: "who & \u2028", Method: "elicitation/create", Of: 1}},
		Address: storage.Address{
			Session: "s1", Stream: id, Conn: "c-2=", Digest: "d-1", Box: box, Again: true, Moved: true, Held: true, Init: true, LegacySSE: true, EventIDs: true, Through: &storage.Through{Group: "s0", Server: "everything", Plain: true}, List: "tools/list", Trace: "t-1",
			Shown:    &storage.Shown{Tools: storage.ToolFilter{Allow: []string{"a*"}, Deny: []string{"é"}}, Lists: []json.RawMessage{json.RawMessage(`1.0`)}},
			Requests: []json.RawMessage{json.RawMessage(`9007199254740993`), json.RawMessage(`"<é\u00e9>"`), json.RawMessage(`1.0`)},
		},
	}
}

func boxPromises() []promise {
	return []promise{
		{"a box nobody has written is zero with its id", func(t *testing.T, k *kit) {
			b, err := k.Box(t.Context(), "acme/x")
			noError(t, "Box", err)
			same(t, "Box", b, storage.Box{ID: "acme/x"})
		}},
		{"a box record is kept with every field and Rev goes up by 1", func(t *testing.T, k *kit) {
			want := aBox("acme/x")
			filled(t, want)
			filled(t, want.Failure)
			for rev := range int64(3) {
				want.Rev, want.Attempt = rev, int(rev)
				noError(t, "SaveBox", k.SaveBox(t.Context(), want))
				want.Rev++
				got, err := k.other(t).Box(t.Context(), "acme/x")
				noError(t, "Box", err)
				same(t, "Box", got, want)
				_, got, _ = k.Load(t.Context(), "s1", "acme/x")
				same(t, "Box with a session", got, want)
			}
		}},
		{"SaveBox with another Rev is a Conflict and changes nothing", func(t *testing.T, k *kit) {
			wantCode(t, "SaveBox of Rev 1 over nothing", k.SaveBox(t.Context(), storage.Box{ID: "b", Rev: 1}), storage.Conflict)
			noError(t, "SaveBox", k.SaveBox(t.Context(), storage.Box{ID: "b", Gen: 1}))
			noError(t, "SaveBox", k.SaveBox(t.Context(), storage.Box{ID: "b", Rev: 1, Gen: 2}))
			for _, rev := range []int64{0, 1, 3} {
				wantCode(t, fmt.Sprintf("SaveBox of Rev %d over Rev 2", rev), k.SaveBox(t.Context(), storage.Box{ID: "b", Rev: rev, Gen: 9}), storage.Conflict)
			}
			got, err := k.Box(t.Context(), "b")
			noError(t, "Box", err)
			same(t, "Box", got, storage.Box{ID: "b", Rev: 2, Gen: 2})
		}},
		{"of many that write a box first one wins", func(t *testing.T, k *kit) {
			won := race(t, k, 8, func(s storage.Store, i int) error {
				return s.SaveBox(t.Context(), storage.Box{ID: "b", Attempt: i})
			})
			got, err := k.Box(t.Context(), "b")
			noError(t, "Box", err)
			same(t, "Box", got, storage.Box{ID: "b", Rev: 1, Attempt: won})
		}},
		{"of many that save a box at once none loses its update", boxRace},
		{"Due is every box that is not asleep or has items", due},
	}
}

func boxRace(t *testing.T, k *kit) {
	const writers, each = 8, 10
	together(t, k, writers, each, func(s storage.Store, _, _ int) error { return wake(t.Context(), s) })
	got, err := k.Box(t.Context(), "b")
	noError(t, "Box", err)
	same(t, "Box", got, storage.Box{ID: "b", Rev: writers * each, Gen: writers * each})
}

// wake adds 1 to the generation of box b.
func wake(ctx context.Context, s storage.Store) error {
	for {
		b, err := s.Box(ctx, "b")
		if err != nil {
			return err
		}
		b.Gen++
		if err := s.SaveBox(ctx, b); !errors.Is(err, storage.Conflict) {
			return err
		}
	}
}

func due(t *testing.T, k *kit) {
	check := func(want ...storage.BoxID) {
		t.Helper()
		got, err := k.Due(t.Context())
		noError(t, "Due", err)
		slices.Sort(got)
		same(t, "Due", got, want)
	}
	check()
	for id, state := range map[storage.BoxID]storage.BoxState{
		"asleep": storage.Asleep, "awake": storage.Awake, "both": storage.Awake, "starting": storage.Starting,
	} {
		noError(t, "SaveBox", k.SaveBox(t.Context(), storage.Box{ID: id, State: state}))
	}
	check("awake", "both", "starting")
	for _, it := range []storage.Item{anItem("both", "r1"), anItem("items", "r1"), anItem("items", "r2"), anItem("taken", "r1")} {
		putItem(t, k, it, true)
	}
	_, err := k.Claim(t.Context(), "taken", "r1", 1)
	noError(t, "Claim", err)
	check("awake", "both", "items", "starting", "taken")
	noError(t, "DeleteItem", k.DeleteItem(t.Context(), "items", "r1", 0))
	check("awake", "both", "items", "starting", "taken")
	noError(t, "DeleteItem", k.DeleteItem(t.Context(), "items", "r2", 0))
	noError(t, "SaveBox", k.SaveBox(t.Context(), storage.Box{ID: "awake", Rev: 1}))
	noError(t, "SaveBox", k.SaveBox(t.Context(), storage.Box{ID: "both", Rev: 1}))
	check("both", "starting", "taken")
}

func putItem(t *testing.T, s storage.Store, it storage.Item, want bool) {
	t.Helper()
	put, err := s.PutItem(t.Context(), it)
	noError(t, "PutItem", err)
	same(t, fmt.Sprintf("item %s was put", it.ID), put, want)
}

func itemPromises() []promise {
	return []promise{
		{"an item is kept with every field, its raw parts byte for byte", itemSurvives},
		{"an item is put once, whatever became of it", func(t *testing.T, k *kit) {
			first, second := anItem("b1", "r1"), anItem("b1", "r1")
			second.Raw, second.Address.Session = []byte(`"second"`), "s2"
			putItem(t, k, first, true)
			putItem(t, k.other(t), second, false)
			claim(t, k, "r1", 3)
			putItem(t, k, second, false)
			want := first
			want.State, want.Gen = storage.Taken, 3
			same(t, "the item", item(t, k, "r1"), want)
			putItem(t, k, anItem("b2", "r1"), true)
		}},
		{"an item that is not there is NotFound", func(t *testing.T, k *kit) {
			putItem(t, k, anItem("b1", "r1"), true)
			_, err := k.Item(t.Context(), "b1", "r2")
			wantCode(t, "Item", err, storage.NotFound)
			_, err = k.Item(t.Context(), "b2", "r1")
			wantCode(t, "Item of another box", err, storage.NotFound)
			_, err = k.Claim(t.Context(), "b1", "r2", 1)
			wantCode(t, "Claim", err, storage.NotFound)
		}},
		{"Claim takes a waiting item with its message, which stays", func(t *testing.T, k *kit) {
			want := anItem("b1", "r1")
			putItem(t, k, want, true)
			want.State, want.Gen = storage.Taken, 3
			for range 2 { // a caller that has lost the answer claims again, for the same generation
				same(t, "claimed item", claim(t, k, "r1", 3), want)
				same(t, "stored item", item(t, k, "r1"), want)
			}
		}},
		{"what another generation has taken is a Conflict", func(t *testing.T, k *kit) {
			putItem(t, k, anItem("b1", "r1"), true)
			claim(t, k, "r1", 3)
			marked := anItem("b1", "r2")
			marked.State, marked.Gen, marked.Raw = storage.Taken, 3, nil
			putItem(t, k, marked, true)
			for _, id := range []storage.StreamID{"r1", "r2"} {
				for _, gen := range []storage.Generation{0, 2, 4} {
					_, err := k.Claim(t.Context(), "b1", id, gen)
					wantCode(t, fmt.Sprintf("Claim of %s by generation %d", id, gen), err, storage.Conflict)
				}
			}
			same(t, "the mark", claim(t, k, "r2", 3), marked)
		}},
		{"of many generations that claim an item one gets it", func(t *testing.T, k *kit) {
			putItem(t, k, anItem("b1", "r1"), true)
			won := race(t, k, 8, func(s storage.Store, i int) error {
				_, err := s.Claim(t.Context(), "b1", "r1", storage.Generation(i))
				return err
			})
			same(t, "generation", item(t, k, "r1").Gen, storage.Generation(won))
		}},
		{"SwapItem stores an item over the one that is as it was seen, every field of it", swapItem},
		{"SwapItem over one that has changed, or is gone, writes nothing", swapNothing},
		{"of many that swap an item one does", func(t *testing.T, k *kit) {
			was := anItem("b1", "r1")
			putItem(t, k, was, true)
			won := race(t, k, 8, func(s storage.Store, i int) error {
				it := was
				it.Round, it.Raw = was.Round+1, fmt.Append(nil, i)
				swapped, err := s.SwapItem(t.Context(), was, it)
				if err == nil && !swapped {
					err = storage.Errorf(storage.Conflict, "another was quicker")
				}
				return err
			})
			same(t, "the item's message", string(item(t, k, "r1").Raw), fmt.Sprint(won))
		}},
		{"what is suspended is nobody's to claim or release, and goes when it is deleted", suspendedItem},
		{"what a session leaves behind is nobody's to claim or release, and goes when it is deleted", leftoverItem},
		{"Items are those of one box, by id, without their messages", func(t *testing.T, k *kit) {
			var want []storage.Item
			for _, id := range []storage.StreamID{"r3", "r1", "r2"} {
				it := anItem("b1", id)
				putItem(t, k, it, true)
				it.Raw = nil
				want = append(want, it)
			}
			putItem(t, k, anItem("b2", "r1"), true)
			slices.SortFunc(want, func(a, b storage.Item) int { return strings.Compare(string(a.ID), string(b.ID)) })
			same(t, "Items", items(t, k, "b1"), want)
			same(t, "Items of a box without any", items(t, k, "b3"), []storage.Item(nil))
		}},
		{"DeleteItem with a generation removes what that one has taken, else anything", deleteItem},
	}
}

// swap calls SwapItem, which must report want.
func swap(t *testing.T, s storage.Store, was, it storage.Item, want bool) {
	t.Helper()
	swapped, err := s.SwapItem(t.Context(), was, it)
	noError(t, "SwapItem", err)
	same(t, fmt.Sprintf("swapped %s from round %d to %d", it.ID, was.Round, it.Round), swapped, want)
}

func swapItem(t *testing.T, k *kit) {
	mark := anItem("b1", "r1")
	mark.State, mark.Gen, mark.Raw, mark.Round, mark.Questions, mark.Base = storage.Taken, 3, nil, 0, nil, 0
	putItem(t, k, mark, true)
	asks := anItem("b1", "r1")
	asks.State, asks.Gen, asks.Round = storage.Suspended, 3, 1
	swap(t, k.other(t), mark, asks, true)
	same(t, "suspended", item(t, k, "r1"), asks)
	again := asks
	again.State, again.Gen, again.Questions, again.Raw = storage.Waiting, 0, nil, []byte(`"answered"`)
	again.NotAfter = again.NotAfter.Add(time.Minute)
	swap(t, k, asks, again, true)
	same(t, "waiting", item(t, k.other(t), "r1"), again)
	again.State, again.Gen = storage.Taken, 4
	same(t, "claimed", claim(t, k, "r1", 4), again)
	asks = anItem("b1", "r1")
	asks.State, asks.Gen, asks.Round, asks.Base, asks.Raw = storage.Suspended, 4, 2, 9, []byte(strings.Repeat("long ", 200<<10))
	swap(t, k, again, asks, true)
	same(t, "suspended again", item(t, k, "r1"), asks)
	again.State, again.Gen, again.Round, again.Base, again.Raw = storage.Waiting, 0, 2, 9, []byte(strings.Repeat("as long", 200<<10))
	swap(t, k, asks, again, true)
	same(t, "waiting again", item(t, k, "r1"), again)
}

func swapNothing(t *testing.T, k *kit) {
	it := anItem("b1", "r1")
	it.State, it.Gen, it.Round = storage.Suspended, 3, 2
	swap(t, k, it, it, false)
	putItem(t, k, it, true)
	for _, change := range []func(*storage.Item){
		func(it *storage.Item) { it.Round = 0 },
		func(it *storage.Item) { it.Round = 1 },
		func(it *storage.Item) { it.Round = 3 },
		func(it *storage.Item) { it.Gen = 4 },
		func(it *storage.Item) { it.State = storage.Taken },
		func(it *storage.Item) { it.State = storage.Waiting },
		func(it *storage.Item) { it.State, it.Gen, it.Round = storage.Taken, 0, 0 },
	} {
		was := it
		change(&was)
		other := it
		other.Round, other.Raw = 9, []byte(`"other"`)
		swap(t, k.other(t), was, other, false)
		same(t, "the item", item(t, k, "r1"), it)
	}
	other := it
	other.Box = "b2"
	swap(t, k, it, other, false)
}

func suspendedItem(t *testing.T, k *kit) {
	it := anItem("b1", "r1")
	it.State, it.Gen = storage.Suspended, 3
	keptBack(t, k, it)
}

// leftoverItem checks an item without a message and without a NotAfter.
func leftoverItem(t *testing.T, k *kit) {
	it := storage.Item{
		Box: "b1", ID: "r1", State: storage.Leftover, Address: storage.Address{Session: "s1", Box: "b1"}, Created: now(),
	}
	keptBack(t, k, it)
	putItem(t, k, it, true)
	putItem(t, k.other(t), it, false) // a session that is ended twice puts this item twice
	same(t, "the item", item(t, k, "r1"), it)
}

// keptBack stores an item that no generation may claim, and checks that Claim and DeleteItem
// with a generation leave it as it is.
func keptBack(t *testing.T, k *kit, it storage.Item) {
	t.Helper()
	putItem(t, k, it, true)
	for _, gen := range []storage.Generation{0, 3, 4} {
		_, err := k.Claim(t.Context(), "b1", "r1", gen)
		wantCode(t, fmt.Sprintf("Claim by generation %d", gen), err, storage.Conflict)
	}
	noError(t, "DeleteItem by the generation", k.DeleteItem(t.Context(), "b1", "r1", 3))
	same(t, "the item", item(t, k.other(t), "r1"), it)
	it.Raw = nil
	same(t, "Items", items(t, k, "b1"), []storage.Item{it})
	due, err := k.Due(t.Context())
	noError(t, "Due", err)
	same(t, "Due", due, []storage.BoxID{"b1"})
	noError(t, "DeleteItem", k.DeleteItem(t.Context(), "b1", "r1", 0))
	_, err = k.Item(t.Context(), "b1", "r1")
	wantCode(t, "Item", err, storage.NotFound)
}

func claim(t *testing.T, k *kit, id storage.StreamID, gen storage.Generation) storage.Item {
	t.Helper()
	it, err := k.Claim(t.Context(), "b1", id, gen)
	noError(t, "Claim", err)
	return it
}

func items(t *testing.T, k *kit, box storage.BoxID) []storage.Item {
	t.Helper()
	list, err := k.Items(t.Context(), box)
	noError(t, "Items", err)
	return list
}

func item(t *testing.T, s storage.Store, id storage.StreamID) storage.Item {
	t.Helper()
	it, err := s.Item(t.Context(), "b1", id)
	noError(t, "Item", err)
	return it
}

func itemSurvives(t *testing.T, k *kit) {
	want := anItem("b1", "r1")
	filled(t, want, "Gen")
	filled(t, want.Address)
	putItem(t, k, want, true)
	got := item(t, k.other(t), "r1")
	same(t, "the item", got, want)
	same(t, "Raw, byte for byte", string(got.Raw), string(want.Raw))
	for i, id := range want.Address.Requests {
		same(t, "request id, byte for byte", string(got.Address.Requests[i]), string(id))
	}
	for _, it := range []storage.Item{got, want} {
		it.Raw[1], it.Address.Requests[1][1] = 'z', 'z'
		again := item(t, k, "r1")
		same(t, "Raw after a copy was changed", string(again.Raw), "{\n "+rawJSON+"\n}")
		same(t, "a request id after a copy was changed", string(again.Address.Requests[1]), `"<é\u00e9>"`)
	}

	mark := anItem("b1", "r2")
	mark.State, mark.Gen, mark.Raw, mark.Address.Requests = storage.Taken, 1<<40, nil, nil
	putItem(t, k, mark, true)
	got = item(t, k, "r2")
	same(t, "a mark", got, mark)
	if got.Raw != nil {
		t.Fatalf("a mark that was put without a message has one of %d bytes", len(got.Raw))
	}
}

func deleteItem(t *testing.T, k *kit) {
	remove := func(id storage.StreamID, gen storage.Generation) {
		t.Helper()
		noError(t, "DeleteItem", k.DeleteItem(t.Context(), "b1", id, gen))
	}
	left := func(want ...storage.StreamID) {
		t.Helper()
		var ids []storage.StreamID
		for _, it := range items(t, k, "b1") {
			ids = append(ids, it.ID)
		}
		same(t, "items left", ids, want)
	}
	remove("r1", 0)
	remove("r1", 1)
	for _, id := range []storage.StreamID{"r1", "r2", "r3"} {
		putItem(t, k, anItem("b1", id), true)
	}
	putItem(t, k, anItem("b2", "r1"), true)
	remove("r1", 3)
	left("r1", "r2", "r3")
	claim(t, k, "r1", 3)
	remove("r1", 2)
	remove("r1", 4)
	left("r1", "r2", "r3")
	remove("r1", 3)
	left("r2", "r3")
	remove("r2", 0)
	claim(t, k, "r3", 3)
	remove("r3", 0)
	left()
	_, err := k.Item(t.Context(), "b2", "r1")
	noError(t, "Item of another box", err)
}

func partPromises() []promise {
	expires := future()
	part := func(frame string, n int, data string) storage.Part {
		return storage.Part{Box: "b1", Frame: frame, N: n, Data: []byte(data), Expires: expires}
	}
	putPart := func(t *testing.T, s storage.Store, parts ...storage.Part) {
		t.Helper()
		for _, p := range parts {
			noError(t, "PutPart", s.PutPart(t.Context(), p))
		}
	}
	parts := func(t *testing.T, s storage.Store, box storage.BoxID, frame string) []storage.Part {
		t.Helper()
		got, err := s.Parts(t.Context(), box, frame)
		noError(t, "Parts", err)
		return got
	}
	return []promise{
		{"parts come back by number, as often as one asks", func(t *testing.T, k *kit) {
			want := []storage.Part{part("f1", 0, "a\nb"), part("f1", 1, "\x00\xff"), part("f1", 2, "c"), part("f1", 10, "d")}
			filled(t, want[1])
			putPart(t, k, want[3], want[1], want[0], want[2], part("f2", 3, "x"))
			for range 2 {
				same(t, "Parts", parts(t, k.other(t), "b1", "f1"), want)
			}
			same(t, "Parts of a frame nobody wrote", parts(t, k, "b1", "f3"), []storage.Part(nil))
			same(t, "Parts of another box", parts(t, k, "b2", "f1"), []storage.Part(nil))
		}},
		{"a part is written over the same one", func(t *testing.T, k *kit) {
			putPart(t, k, part("f1", 0, "old"), part("f1", 0, "new"))
			same(t, "Parts", parts(t, k, "b1", "f1"), []storage.Part{part("f1", 0, "new")})
		}},
		{"a part holds 128 KiB", func(t *testing.T, k *kit) {
			want := part("f1", 0, strings.Repeat("01234567", 16<<10))
			putPart(t, k, want)
			got := parts(t, k, "b1", "f1")
			if len(got) != 1 || string(got[0].Data) != string(want.Data) {
				t.Fatalf("%d parts, want the one of %d bytes", len(got), len(want.Data))
			}
		}},
		{"an expired part is not found", func(t *testing.T, k *kit) {
			gone := part("f1", 0, "gone")
			gone.Expires = past()
			putPart(t, k, gone, part("f1", 1, "here"))
			same(t, "Parts", parts(t, k, "b1", "f1"), []storage.Part{part("f1", 1, "here")})
		}},
	}
}
