package journal

import (
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestRecorderCountsProcesses(t *testing.T) {
	var got []Event
	r := NewRecorder(func(e Event) { got = append(got, e) })
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for _, e := range []Event{
		{Kind: BoxWake, Name: "http", PID: 1},
		{Kind: ServerReady, Name: "http", PID: 1},
		{Kind: BoxWake, Name: "files", PID: 2},
		{Kind: BoxSleep, Name: "http", PID: 1},
		{Kind: BoxCrash, Name: "files", PID: 2},
		{Kind: BoxCrash, Name: "files", PID: 2}, // an end told twice counts once
	} {
		e.Time = at
		r.Record(e)
	}
	want := []Event{
		{Time: at, Kind: BoxWake, Name: "http", PID: 1, Running: 1},
		{Time: at, Kind: ServerReady, Name: "http", PID: 1, Running: 1},
		{Time: at, Kind: BoxWake, Name: "files", PID: 2, Running: 2},
		{Time: at, Kind: BoxSleep, Name: "http", PID: 1, Running: 1},
		{Time: at, Kind: BoxCrash, Name: "files", PID: 2, Running: 0},
		{Time: at, Kind: ProcessCount, Running: 0},
		{Time: at, Kind: BoxCrash, Name: "files", PID: 2, Running: 0},
	}
	commontest.Same(t, want, got)
	if r.Record(Event{Kind: Call}); got[len(got)-1].Time.IsZero() {
		t.Error("an event without a time gets none")
	}
}
