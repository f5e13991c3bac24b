package dormouse

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

// Notes have the time of calls, and -n counts the lines of the log, not those of each process.
func TestLogsAreInTheZoneOfCallsAndEndWithTheLastLines(t *testing.T) {
	var from bytes.Buffer
	for _, o := range []api.Output{
		{Server: "one", Process: "a", Text: "--- 2026-11-28T23:30:00.123Z started\n1\n"},
		{Server: "two", Process: "b", Text: "2\n--- no time\n"},
	} {
		commontest.OK(t, json.NewEncoder(&from).Encode(o))
	}
	for lines, want := range map[int]string{
		0: "one  --- 2026-11-29 00:30:00 started\none  1\ntwo  2\ntwo  --- no time\n",
		1: "two  --- no time\n",
		3: "one  1\ntwo  2\ntwo  --- no time\n",
		9: "one  --- 2026-11-29 00:30:00 started\none  1\ntwo  2\ntwo  --- no time\n",
	} {
		var out strings.Builder
		here := &terminal{out: &out, now: func() time.Time { return noon().In(time.FixedZone("CET", 3600)) }}
		said, err := (&logsCommand{Lines: lines}).print(here, json.NewDecoder(bytes.NewReader(from.Bytes())))
		if !said || !errors.Is(err, io.EOF) || out.String() != want {
			t.Errorf("-n %d: %v\n%s", lines, err, out.String())
		}
	}
}
