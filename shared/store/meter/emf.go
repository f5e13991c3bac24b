package meter

import (
	"log/slog"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// The names of metrics. Their dimension "server" is the name of a configured server. The metric
// "errors" also has the dimension "code", and the metric "boxes" has no dimension. Sessions and
// tenants are properties of a line and never dimensions: AWS would bill each of their values as
// another metric.
const (
	metricCalls     = "calls"                // messages of clients
	metricPolls     = "polls"                // requests that only ask for events
	metricErrors    = "errors"               // messages that ended with an error
	metricWakes     = "wakes"                // how often boxes were woken
	metricFunction  = "wake_function_ms"     // from the start of a Lambda process to its first invocation
	metricBox       = "wake_box_ms"          // from when a box is woken until its runner connects
	metricServer    = "wake_server_ms"       // from the start of a process to the end of its handshake
	metricFirst     = "wake_first_answer_ms" // duration of the invocation that woke a box
	metricBoxes     = "boxes"                // boxes that the regular sweep has to check
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

// value is a metric with its measurement. A line leaves out values of zero, because AWS
// bills only metrics that appear.
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

// metrics returns the measurements as attributes. If namespace is not "", it adds the attribute
// from which CloudWatch makes metrics.
func metrics(a storage.Account, t tally, start time.Duration, namespace string) (attrs []slog.Attr) {
	calls, polls, failures := 1, 0, 0
	if a.Poll {
		calls, polls = 0, 1
	}
	if a.Over == storage.OverEvent || a.Over == storage.OverRelay {
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
	if a.Over == storage.OverEvent && a.Server == "" && t.boxes > 0 { // the regular sweep of all boxes
		attrs = append(attrs, slog.Int(metricBoxes, t.boxes))
		if namespace != "" {
			attrs = append(attrs, aws(headOf(directive{namespace, [][]string{{}}, []metric{{metricBoxes, "Count"}}})))
		}
	}
	if a.Server == "" {
		namespace = ""
	}
	return append(attrs, attributes(values, counts(metricErrors, failures), namespace)...)
}

// aws returns the attribute that CloudWatch makes metrics of.
func aws(head emf) slog.Attr {
	return slog.Any("_aws", head) //nolint:sloglint // AWS has given it this name
}

func headOf(all ...directive) emf { return emf{Timestamp: time.Now().UnixMilli(), Metrics: all} }

// Started returns the attributes of a runner's line that says how long a server took to start.
// CloudWatch makes the time a metric of namespace, unless that is "".
func Started(server string, span time.Duration, namespace string) []any {
	all := []any{dimensionServer, server}
	for _, a := range attributes([]value{took(metricServer, span)}, value{}, namespace) {
		all = append(all, a)
	}
	return all
}

func attributes(values []value, failures value, namespace string) (attrs []slog.Attr) {
	var said []metric
	for _, v := range values {
		if v.n != 0 {
			attrs, said = append(attrs, slog.Int64(v.Name, v.n)), append(said, v.metric)
		}
	}
	head := headOf()
	if len(said) > 0 {
		head.Metrics = append(head.Metrics, directive{namespace, [][]string{{dimensionServer}}, said})
	}
	if failures.n != 0 {
		attrs = append(attrs, slog.Int64(failures.Name, failures.n))
		head.Metrics = append(head.Metrics, directive{namespace, [][]string{{dimensionServer}, {dimensionServer, dimensionCode}}, []metric{failures.metric}})
	}
	if namespace == "" || len(head.Metrics) == 0 {
		return attrs
	}
	return append(attrs, aws(head))
}
