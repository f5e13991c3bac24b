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

func TestAQuestionStaysOpenForADayAtMost(t *testing.T) {
	now := time.Now()
	it := storage.Item{}.Suspend(nil, nil, 1, now, 365*24*time.Hour)
	commontest.EqualIn(t, "it is open for", storage.MaxAsk, it.NotAfter.Sub(now))
}
