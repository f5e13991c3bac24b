package meter

import (
	"encoding/json"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// The names of metrics. Dimension is server, which is one of those in the servers file;
// errors also have code, and boxes none. Sessions and tenants are properties of a line, never
// dimensions: each value of one would be billed as a metric of its own.
const (
	metricCalls     = "calls"                // messages of clients
	metricPolls     = "polls"                // requests that only ask for what is there
	metricErrors    = "errors"               //
	metricWakes     = "wakes"                // boxes that were started
	metricFunction  = "wake_function_ms"     // process of a function, to its first invocation
	metricBox       = "wake_box_ms"          // from the wake to the runner's hello
	metricServer    = "wake_server_ms"       // from the start of a process to the end of its handshake
	metricFirst     = "wake_first_answer_ms" // of the request that woke a box, to its end
	metricBoxes     = "boxes"                // that are up, or due, as the sweep finds them
	metricBytesIn   = "bytes_in"
	metricBytesOut  = "bytes_out"
	dimensionServer = "server"
	dimensionCode   = "code"
)

// emf is the head of a line in CloudWatch's embedded metric format.
type emf struct {
	Timestamp int64       `json:"Timestamp"` // Unix milliseconds
	Metrics   []directive `json:"CloudWatchMetrics"`
}

type directive struct {
	Namespace  string     `json:"Namespace"`
	Dimensions [][]string `json:"Dimensions"`
	Metrics    []metric   `json:"Metrics"`
}

type metric struct {
	Name string `json:"Name"`
	Unit string `json:"Unit"`
}

// value is a metric with what was measured. Those that are zero are left out: what is
// never said is never billed.
type value struct {
	metric
	n int64
}

func counts(name string, n int) value { return value{metric{name, "Count"}, int64(n)} }
func bytesOf(name string, n int) value {
	return value{metric{name, "Bytes"}, int64(n)}
}

func took(name string, d time.Duration) value {
	return value{metric{name, "Milliseconds"}, d.Milliseconds()}
}

// metrics are the attributes of what was measured, and, if they are to be metrics of a
// namespace, the head that says so.
func metrics(a session.Account, t tally, start time.Duration, space string) (attrs []any) {
	calls, polls, failures := 1, 0, 0
	if a.Poll {
		calls, polls = 0, 1
	}
	if a.Over == session.OverEvent || a.Over == session.OverRelay {
		calls = 0
	}
	if a.Code != "" {
		failures = 1
	}
	values := []value{
		counts(metricCalls, calls), counts(metricPolls, polls), counts(metricWakes, t.wakes),
		bytesOf(metricBytesIn, a.In), bytesOf(metricBytesOut, a.Out), took(metricFunction, start), took(metricBox, t.boxStart),
	}
	if t.wakes > 0 {
		values = append(values, took(metricFirst, a.Took))
	}
	if a.Over == session.OverEvent && a.Server == "" && t.boxes > 0 { // the sweep
		attrs = append(attrs, metricBoxes, t.boxes)
		if space != "" {
			attrs = append(attrs, "_aws", headOf(directive{space, [][]string{{}}, []metric{{metricBoxes, "Count"}}}))
		}
	}
	if a.Server == "" {
		space = ""
	}
	return append(attrs, attributes(values, counts(metricErrors, failures), space)...)
}

func headOf(all ...directive) emf { return emf{Timestamp: time.Now().UnixMilli(), Metrics: all} }

// Started are the attributes of a runner's line that says how long a server took to
// start. It is a metric of a namespace, unless that is "".
func Started(server string, span time.Duration, space string) []any {
	return append([]any{dimensionServer, server}, attributes([]value{took(metricServer, span)}, value{}, space)...)
}

func attributes(values []value, failures value, space string) (attrs []any) {
	var said []metric
	for _, v := range values {
		if v.n != 0 {
			attrs, said = append(attrs, v.Name, v.n), append(said, v.metric)
		}
	}
	head := headOf()
	if len(said) > 0 {
		head.Metrics = append(head.Metrics, directive{space, [][]string{{dimensionServer}}, said})
	}
	if failures.n != 0 {
		attrs = append(attrs, failures.Name, failures.n)
		head.Metrics = append(head.Metrics, directive{space, [][]string{{dimensionServer}, {dimensionServer, dimensionCode}}, []metric{failures.metric}})
	}
	if space == "" || len(head.Metrics) == 0 {
		return attrs
	}
	return append(attrs, "_aws", head)
}

// Line is what [ReadLine] finds in a log line.
type Line struct {
	Server  string
	Tenant  string
	Session string
	Conn    string
	Units   Units
}

// ReadLine reads the line of an invocation, which is JSON as slog writes it. ok is false
// for any other.
func ReadLine(text []byte) (l Line, ok bool) {
	whole := wire.Tokens(text, func(key []byte, value json.RawMessage) bool {
		switch string(key) {
		case `"server"`:
			l.Server, _ = wire.String(value)
		case `"tenant"`:
			l.Tenant, _ = wire.String(value)
		case `"session_id"`:
			l.Session, _ = wire.String(value)
		case `"connection_id"`:
			l.Conn, _ = wire.String(value)
		case `"units"`:
			ok = l.Units.read(value)
		}
		return true
	})
	if !whole || !ok {
		return Line{}, false
	}
	return l, true
}
