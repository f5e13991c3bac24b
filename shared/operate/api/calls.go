package api

import (
	"bytes"
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Call is one call of a tool that has ended, or a request that was refused. A refused request has
// no Tool, and may have no Principal and no Tenant. Requests of one caller that are refused for
// one reason are recorded once a minute.
type Call struct {
	Time      time.Time `json:"time"` // when it ended
	Tenant    string    `json:"tenant"`
	Principal string    `json:"principal"`
	Server    string    `json:"server"`
	Tool      string    `json:"tool"`
	Client    string    `json:"client,omitempty"`
	Session   string    `json:"session,omitempty"`
	Trace     string    `json:"trace,omitempty"`
	MS        float64   `json:"duration_ms"` // includes the start of a box
	Failed    bool      `json:"failed"`
	Code      string    `json:"code,omitempty"` // of a failure of Dormouse, not of the server; see storage.Code
	Reason    string    `json:"reason,omitempty"`
	Woke      bool      `json:"woke,omitempty"` // the call started a box
	In        int       `json:"bytes_in,omitempty"`
	Out       int       `json:"bytes_out,omitempty"`
	Sender
}

// Sender says where a call came from, and why it was refused.
type Sender struct {
	Key     string `json:"key,omitempty"` // ID of the API key; if the call has no Principal, the caller has not proved to own it
	Address string `json:"address,omitempty"`
	Refusal string `json:"refusal,omitempty"` // why the call was refused: unauthenticated, forbidden, or the kind of a limit
}

// Calls is a page of calls, the newest first. Next, if set, is the query parameter "after" of the
// request for the next page.
type Calls struct {
	Calls []Call `json:"calls"`
	Next  string `json:"next,omitempty"`
	// Search is the cost of finding the calls. Search is nil unless they are found in logs.
	Search *Search `json:"search,omitempty"`
}

// Search is what a search in logs read, and what AWS bills for it.
type Search struct {
	Bytes int64   `json:"bytes"`
	USD   float64 `json:"usd"`
}

// CallQuery selects calls. A field with the zero value selects all.
type CallQuery struct {
	Tenant, Server, Principal, Tool string

	Servers []string  // only calls of these servers; nil for all
	Failed  bool      // only failed calls
	Since   time.Time // only calls that ended at this time or later
	After   string    // Calls.Next of the page before
	Limit   int       // the largest number of calls to return
}

// Series are counts over time, in the order of time. A bucket without any event is absent.
type Series struct {
	Step    int64     `json:"step_seconds"` // the time that a bucket spans: 60 or 3600, or more if steps were merged
	Bounds  []float64 `json:"bounds_ms"`    // upper bounds of durations, see Bucket.Durations
	Buckets []Bucket  `json:"buckets"`
}

// Bucket has the counts of one server and one tenant in one step of time.
type Bucket struct {
	Time   time.Time `json:"time"` // when the step began
	Tenant string    `json:"tenant"`
	Server string    `json:"server"`
	Calls  int64     `json:"calls"`
	Failed int64     `json:"failed"` // how many of Calls failed
	// Refused counts calls that were refused, which are not among Calls.
	Refused int64 `json:"refused"`
	Wakes   int64 `json:"wakes"` // starts of a box
	// Durations has a number for each of Series.Bounds: how many calls took at most that long, and
	// longer than the bound before. The last number counts the calls above all bounds.
	Durations []int64 `json:"durations"`
}

// SeriesQuery selects counts. A field with the zero value selects all.
type SeriesQuery struct {
	Tenant, Server string

	Servers []string // only counts of these servers; nil for all
	Since   time.Time
}

const noCalls missing = "calls are not kept here; a stack has a log line of each in its log groups in CloudWatch, and counts in its metrics"

func (x *exchange) calls() (any, error) {
	query := x.r.URL.Query()
	since, err := x.since()
	if err != nil {
		return nil, err
	}
	q := CallQuery{
		Tenant: x.caller.Tenant, Server: query.Get("server"), Principal: query.Get("principal"), Tool: query.Get("tool"),
		Servers: x.caller.servers(), Failed: query.Get("failed") == "true", Since: since, After: query.Get("after"),
	}
	if q.Limit, err = limitOf(query.Get("limit")); err != nil {
		return nil, err
	}
	calls, err := x.h.Calls(x.r.Context(), q)
	for i := range calls.Calls {
		if !x.caller.reads() {
			calls.Calls[i].Reason = "" // a reason may quote the output of a program
		}
	}
	return calls, err
}

func (x *exchange) series() (any, error) {
	since, err := x.since()
	if err != nil {
		return nil, err
	}
	if since.IsZero() {
		since = time.Now().Add(-day)
	}
	query := x.r.URL.Query()
	step, err := spanOf(query, "step")
	if err != nil {
		return nil, err
	}
	s, err := x.h.Series(x.r.Context(), SeriesQuery{Tenant: x.caller.Tenant, Server: query.Get("server"), Servers: x.caller.servers(), Since: since})
	if err != nil {
		return nil, err
	}
	return s.merged(int64(step.Seconds()), query.Get("sum") == "true"), nil
}

// merged returns the series in longer steps: the greatest multiple of its own step up to limit seconds.
// If sum is set, a bucket has the counts of all servers and tenants.
func (s Series) merged(limit int64, sum bool) Series {
	step := max(limit-limit%s.Step, s.Step)
	if step == s.Step && !sum {
		return s
	}
	type place struct {
		at             int64
		tenant, server string
	}
	out, at := Series{Step: step, Bounds: s.Bounds, Buckets: []Bucket{}}, map[place]int{}
	for _, b := range s.Buckets {
		of := place{b.Time.Unix() - b.Time.Unix()%step, b.Tenant, b.Server}
		if sum {
			of.tenant, of.server = "", ""
		}
		i, known := at[of]
		if !known {
			i = len(out.Buckets)
			at[of] = i
			out.Buckets = append(out.Buckets, Bucket{Time: time.Unix(of.at, 0).UTC(), Tenant: of.tenant, Server: of.server, Durations: make([]int64, len(b.Durations))})
		}
		to := &out.Buckets[i]
		to.Calls, to.Failed, to.Refused, to.Wakes = to.Calls+b.Calls, to.Failed+b.Failed, to.Refused+b.Refused, to.Wakes+b.Wakes
		for i, n := range b.Durations {
			to.Durations[i] += n
		}
	}
	return out
}

// Person is a principal who called tools, and how often.
type Person struct {
	Tenant    string    `json:"tenant"`
	Principal string    `json:"principal"`
	Servers   []string  `json:"servers"` // that it called
	Clients   []string  `json:"clients"` // by the names that they give themselves
	Calls     int64     `json:"calls"`
	Failed    int64     `json:"failed"` // how many of Calls failed
	LastCall  time.Time `json:"last_call"`
}

// PeopleQuery selects principals. A field with the zero value selects all.
type PeopleQuery struct {
	Tenant  string
	Servers []string // only callers of these servers; nil for all
	Since   time.Time
}

func (x *exchange) people() (any, error) {
	since, err := x.since()
	if err != nil {
		return nil, err
	}
	all, err := x.h.People(x.r.Context(), PeopleQuery{Tenant: x.caller.Tenant, Servers: x.caller.servers(), Since: since})
	return map[string]any{"people": all}, err
}

const noChanges missing = "changes are told by dormouse run only; ask again after a while"

// betweenChanges is the shortest time between two lines of the response to a request for changes.
const betweenChanges = time.Second

// changesFor limits the time of such a response. A caller whose key was revoked meanwhile can send no
// further request.
const changesFor = 5 * time.Minute

// changes answers with a line for each change, until the caller disconnects or changesFor is over. The
// first line comes at once and reports no change.
func (x *exchange) changes() (any, error) {
	type line struct {
		Servers []string `json:"servers"`
	}
	ctx, cancel := context.WithTimeout(x.r.Context(), changesFor)
	defer cancel()
	write := x.lines()
	now := uint64(0)
	if err := write(line{[]string{}}); err != nil {
		return nil, err
	}
	for {
		servers, at, err := x.h.Changes(ctx, now, x.caller.may)
		if err != nil {
			return nil, nil //nolint:nilerr // the caller has disconnected, or changesFor is over
		}
		if now = at; len(servers) > 0 {
			if write(line{servers}) != nil {
				return nil, nil
			}
		}
		select {
		case <-time.After(betweenChanges):
		case <-ctx.Done():
			return nil, nil
		}
	}
}

func (x *exchange) metrics() (any, error) {
	var text bytes.Buffer
	may := x.caller.may
	if x.caller.owns() {
		may = func(string, string) bool { return true }
	}
	if err := x.h.Metrics(&text, may); err != nil {
		return nil, err
	}
	x.begin(http.StatusOK, "text/plain; version=0.0.4; charset=utf-8")
	_, _ = x.w.Write(text.Bytes()) // the caller may be gone
	return nil, nil
}

const day = 24 * time.Hour

// servers returns the servers that the caller sees, nil for all.
func (c Caller) servers() []string {
	if c.may(c.Tenant, storage.EveryServer) {
		return nil
	}
	return append([]string{}, c.Servers...)
}

// since returns the time from which the request asks for records; the zero time for all.
func (x *exchange) since() (time.Time, error) {
	span, err := spanOf(x.r.URL.Query(), "since")
	if err != nil || span == 0 {
		return time.Time{}, err
	}
	return time.Now().Add(-span), nil
}

// limitOf reads how many records a page may have.
func limitOf(text string) (int, error) {
	if text == "" {
		return onAPage, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > mostPage {
		return 0, storage.Errorf(storage.Invalid, "limit is %q; use a number from 1 to %d", text, mostPage)
	}
	return n, nil
}

// addCalls adds how often each server was called in the last 24 hours, if calls are counted here.
func (x *exchange) addCalls(list []Server) error {
	if x.h.Series == nil {
		return nil
	}
	s, err := x.h.Series(x.r.Context(), SeriesQuery{Tenant: x.caller.Tenant, Servers: x.caller.servers(), Since: time.Now().Add(-day + time.Minute)})
	if err != nil {
		return err
	}
	of := map[string]Bucket{}
	for _, b := range s.Buckets {
		sum := of[b.Server]
		sum.Calls, sum.Failed = sum.Calls+b.Calls, sum.Failed+b.Failed
		of[b.Server] = sum
	}
	for i := range list {
		sum := of[list[i].Name]
		list[i].Calls, list[i].FailedCalls = &sum.Calls, &sum.Failed
	}
	return nil
}
