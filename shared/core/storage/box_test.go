package storage_test

import (
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func TestAQuestionNamesTheStreamAndTheRoundThatItSuspends(t *testing.T) {
	stream := storage.NewStreamID()
	for _, round := range []int{1, 2, 17} {
		id := storage.QuestionID(stream, round, 3)
		gotStream, gotRound, ok := storage.Suspends(id)
		if !ok || gotStream != stream || gotRound != round {
			t.Errorf("%s is of stream %s, round %d, %v", id, gotStream, gotRound, ok)
		}
	}
}

func TestOtherIDsSuspendNothing(t *testing.T) {
	stream := string(storage.NewStreamID())
	for _, id := range []string{
		"", ".", "..", "q-1", "q-0b7c7a0e-7d1e-4a52-8c5c-000000000000", stream, stream + ".1", stream + ".1.", stream + "..1", stream + ".x.1",
		stream + ".1.x", "." + stream + ".1", stream[1:] + ".1.1", "x" + stream + ".1.1",
	} {
		if stream, round, ok := storage.Suspends(id); ok {
			t.Errorf("%q suspends round %d of %q", id, round, stream)
		}
	}
}

func TestAnItemIsSuspendedOnceARoundAndKeepsItsAddress(t *testing.T) {
	now := time.Now()
	taken := storage.Item{
		Box: "b", ID: "d", State: storage.Taken, Gen: 4, Address: storage.Address{Session: "s", Stream: "d"}, Raw: []byte("old"),
	}
	questions := []storage.Question{{ID: "d.1.1", Key: "who", Method: "elicitation/create"}}
	asks := taken.Suspend(questions, []byte("again"), 7, now, time.Hour)
	want := taken
	want.State, want.Round, want.Questions, want.Raw, want.Base = storage.Suspended, 1, questions, []byte("again"), 7
	want.Created, want.NotAfter = now, now.Add(time.Hour)
	commontest.SameIn(t, "suspended", want, asks)
	if !asks.Asks("d.1.1") || asks.Asks("d.1.2") || taken.Asks("d.1.1") {
		t.Error("it does not know what it asks")
	}
	again := asks.Resume([]byte("answered"), now, now.Add(time.Minute))
	want.State, want.Gen, want.Questions, want.Raw, want.NotAfter = storage.Waiting, 0, nil, []byte("answered"), now.Add(time.Minute)
	commontest.SameIn(t, "resumed", want, again)
}

func TestAQuestionStaysOpenForADayAtMost(t *testing.T) {
	now := time.Now()
	it := storage.Item{}.Suspend(nil, nil, 1, now, 365*24*time.Hour)
	commontest.EqualIn(t, "it is open for", storage.MaxAsk, it.NotAfter.Sub(now))
}
