package journal

import (
	"bytes"
	"strings"
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

func TestJSONPrinter(t *testing.T) {
	at := time.Date(2026, 11, 21, 15, 4, 5, 123456789, time.UTC)
	var out bytes.Buffer
	print := JSONPrinter(&out)
	for _, e := range []Event{
		{Time: at, Kind: BoxWake, Name: "http", PID: 4242, Running: 1},
		{Time: at, Kind: ServerReady, Name: "http", PID: 4242, Duration: 3412 * time.Microsecond, Running: 1},
		{Time: at, Kind: BoxCrash, Name: "http", PID: 4242, Duration: 62 * time.Second, Detail: "exit status 3 <x>"},
		{Time: at, Kind: ProcessCount},
		{Time: at, Kind: ServerFailed, Name: "mine", Phase: "process_start", Reason: "no", Hint: "do", Session: "s", Process: "shared"},
		{Time: at, Kind: Call, Name: "mine", Principal: "ada", Client: "zed", Tool: "look", Duration: time.Second, Trace: "t"},
	} {
		print(e)
	}
	now := at.Format(time.RFC3339Nano)
	want := strings.Join([]string{
		`{"time":"` + now + `","kind":"box.wake","name":"http","pid":4242,"running":1}`,
		`{"time":"` + now + `","kind":"server.ready","name":"http","pid":4242,"running":1,"duration_ms":3.412}`,
		`{"time":"` + now + `","kind":"box.crash","name":"http","pid":4242,"detail":"exit status 3 <x>","running":0,"duration_ms":62000}`,
		`{"time":"` + now + `","kind":"process.count","running":0}`,
		`{"time":"` + now + `","kind":"server.failed","name":"mine","session":"s","process":"shared","phase":"process_start","reason":"no","hint":"do","running":0,"failed":true}`,
		`{"time":"` + now + `","kind":"call","name":"mine","principal":"ada","client":"zed","tool":"look","trace":"t","running":0,"duration_ms":1000}`,
		"",
	}, "\n")
	commontest.Same(t, want, out.String())
}
