package webconsole

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/dormouse-mcp/dormouse/shared/backend/awscall"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
	"github.com/dormouse-mcp/dormouse/shared/operate/bodies"
)

// perGB is the price in USD of a GB that CloudWatch Logs Insights reads.
const perGB = 0.005

// Logs searches the log lines of calls with CloudWatch Logs Insights. AWS bills each search by the
// bytes that it reads, so the console searches only when a visitor asks for that.
type Logs struct {
	Service awscall.Service // CloudWatch Logs
	Groups  []string        // names of the log groups of the functions for clients
	Relay   string          // name of the log group of the relay function, which sees the end of calls over WebSockets
}

const (
	searchWithin = 22 * time.Second // shorter than the timeout of the console's Lambda function
	searchAgain  = 500 * time.Millisecond
	searchSince  = 24 * time.Hour // how far back a search goes by default
	searchMost   = 31 * 24 * time.Hour
	maxAnswer    = 8 << 20
)

// Calls returns the newest calls. It does not find calls that went on after their request ended.
// The code of an error is Unavailable, or Invalid if a name cannot be in a query, or if q.Since is
// longer ago than searchMost.
func (l *Logs) Calls(ctx context.Context, q api.CallQuery) (api.Calls, error) {
	ctx, cancel := context.WithTimeout(ctx, searchWithin)
	defer cancel()
	text, err := queryOf(q)
	if err != nil {
		return api.Calls{}, err
	}
	f, err := l.search(ctx, text, l.Groups, q.Since, cmp.Or(q.Limit, 100))
	if err != nil {
		return api.Calls{}, err
	}
	return f.calls(q), nil
}

// mostBodies is how many log lines with arguments or results [Logs.Bodies] asks for. Each has up to
// 180 KB.
const mostBodies = 40

// Bodies returns the arguments and results of the newest calls. The log lines are encrypted with
// secret or one of others. The errors have the same codes as those of [Logs.Calls].
func (l *Logs) Bodies(ctx context.Context, q bodies.Query, secret []byte, others ...[]byte) ([]bodies.Body, error) {
	ctx, cancel := context.WithTimeout(ctx, searchWithin)
	defer cancel()
	where, err := filter([]string{`msg = "bodies"`}, "tenant", q.Tenant, "server", q.Server)
	if err != nil {
		return nil, err
	}
	text := "fields @timestamp, msg, tenant, server, sealed" + where + "\n| sort @timestamp desc"
	f, err := l.search(ctx, text, append(slices.Clone(l.Groups), l.Relay), q.Since, min(cmp.Or(q.Limit, mostBodies), mostBodies))
	if err != nil {
		return nil, err
	}
	r := bodies.NewReader(q, secret, others...)
	for _, row := range slices.Backward(f.Results) {
		of := cells(row)
		r.Add(bodies.Line{Message: of["msg"], Tenant: of["tenant"], Server: of["server"], Sealed: of["sealed"]})
	}
	return r.Bodies(), nil
}

// search runs a query on the log lines since a time. A zero time stands for searchSince ago. The
// code of an error is Unavailable, or Invalid if since is longer ago than searchMost.
func (l *Logs) search(ctx context.Context, text string, groups []string, since time.Time, limit int) (found, error) {
	now := time.Now()
	if since.IsZero() {
		since = now.Add(-searchSince)
	}
	if now.Sub(since) > searchMost {
		return found{}, storage.Errorf(storage.Invalid, "a search costs what it reads, so it goes back 31 days at most; ask for a shorter time")
	}
	var begun struct{ QueryID string }
	err := l.ask(ctx, "Logs_20140328.StartQuery", map[string]any{
		"logGroupNames": groups, "startTime": since.Unix(), "endTime": now.Unix(), "limit": limit, "queryString": text,
	}, &begun)
	if err != nil {
		return found{}, err
	}
	id := map[string]any{"queryId": begun.QueryID}
	over := false
	defer func() {
		if !over {
			l.stop(ctx, id)
		}
	}()
	for {
		var f found
		err := l.ask(ctx, "Logs_20140328.GetQueryResults", id, &f)
		over = err == nil && f.Status != "Scheduled" && f.Status != "Running"
		switch {
		case err != nil:
			return f, err
		case f.Status == "Complete":
			return f, nil
		case f.Status != "Scheduled" && f.Status != "Running":
			return f, storage.Errorf(storage.Unavailable, "CloudWatch has not finished the search: %s", f.Status)
		}
		select {
		case <-time.After(searchAgain):
		case <-ctx.Done():
			return f, storage.Errorf(storage.Unavailable, "the search takes longer than %v; ask for a shorter time", searchWithin)
		}
	}
}

func queryOf(q api.CallQuery) (string, error) {
	where := []string{`ispresent(tool)`, `outcome in ["done", "failed", "refused"]`}
	if q.Failed {
		where[1] = `outcome = "failed"`
	}
	if q.Servers != nil {
		names := make([]string, len(q.Servers))
		for i, name := range q.Servers {
			var err error
			if names[i], err = quoted(name); err != nil {
				return "", err
			}
		}
		where = append(where, "server in ["+strings.Join(names, ", ")+"]")
	}
	text, err := filter(where, "tenant", q.Tenant, "server", q.Server, "principal", q.Principal, "tool", q.Tool)
	return "fields @timestamp, tenant, principal, server, tool, client, session_id, trace, duration_ms, outcome, code, why, refusal, caller.key, caller.address, wakes, bytes_in, bytes_out" +
		text + "\n| sort @timestamp desc", err
}

// filter returns the filter line of a query. It joins the conditions in where with one for each pair
// of a name and a value in fields; a pair with the value "" sets no condition.
func filter(where []string, fields ...string) (string, error) {
	for pair := range slices.Chunk(fields, 2) {
		if pair[1] == "" {
			continue
		}
		text, err := quoted(pair[1])
		if err != nil {
			return "", err
		}
		where = append(where, pair[0]+" = "+text)
	}
	return "\n| filter " + strings.Join(where, " and "), nil
}

// quoted returns a name in quotes for a query. It refuses names that could end the quotes.
func quoted(name string) (string, error) {
	if strings.ContainsAny(name, "\"'`\\") || strings.ContainsFunc(name, unicode.IsControl) {
		return "", storage.Errorf(storage.Invalid, "%q cannot be searched for in CloudWatch, because it has a quote, a backslash or a control character", name)
	}
	return `"` + name + `"`, nil
}

type found struct {
	Status     string
	Results    [][]struct{ Field, Value string }
	Statistics struct {
		BytesScanned float64
	}
}

// lineTime is the format of @timestamp in Insights, in UTC.
const lineTime = "2006-01-02 15:04:05.000"

// calls returns those of the calls in f that q asks for.
func (f found) calls(q api.CallQuery) api.Calls {
	out := api.Calls{Calls: []api.Call{}, Search: &api.Search{Bytes: int64(f.Statistics.BytesScanned), USD: f.Statistics.BytesScanned / 1e9 * perGB}}
	for _, row := range f.Results {
		of := cells(row)
		at, err := time.Parse(lineTime, of["@timestamp"])
		// The conditions of the query are checked again here, because the caller must not see other
		// rows if CloudWatch understands the query differently.
		if err != nil || q.Tenant != "" && of["tenant"] != q.Tenant || q.Servers != nil && !slices.Contains(q.Servers, of["server"]) {
			continue
		}
		number := func(field string) float64 {
			n, _ := strconv.ParseFloat(of[field], 64) // 0 if the line has no such field
			return n
		}
		out.Calls = append(out.Calls, api.Call{
			Time: at, Tenant: of["tenant"], Principal: of["principal"], Server: of["server"], Tool: of["tool"], Client: of["client"],
			Session: of["session_id"], Trace: of["trace"], MS: number("duration_ms"), Failed: of["outcome"] == "failed", Code: of["code"], Reason: of["why"],
			Woke: number("wakes") > 0, In: int(number("bytes_in")), Out: int(number("bytes_out")),
			Sender: api.Sender{Key: of["caller.key"], Address: of["caller.address"], Refusal: of["refusal"]},
		})
	}
	return out
}

func cells(row []struct{ Field, Value string }) map[string]string {
	of := map[string]string{}
	for _, cell := range row {
		of[cell.Field] = cell.Value
	}
	return of
}

// stop ends a search whose caller is gone; otherwise it would go on reading, which costs money.
func (l *Logs) stop(ctx context.Context, id map[string]any) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	var stopped struct{ Success bool }
	_ = l.ask(ctx, "Logs_20140328.StopQuery", id, &stopped)
}

// ask sends a request to CloudWatch Logs. The code of an error is Unavailable.
func (l *Logs) ask(ctx context.Context, operation string, request map[string]any, answer any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	a, err := l.Service.JSON(ctx, operation, body, maxAnswer)
	switch {
	case err != nil:
		return storage.Errorf(storage.Unavailable, "CloudWatch Logs did not answer; try again").Because(err)
	case a.Status != http.StatusOK:
		return storage.Errorf(storage.Unavailable, "CloudWatch Logs refused the search with status %d; the log has the reason", a.Status).Because(fmt.Errorf("%.300s", a.Body))
	}
	return json.Unmarshal(a.Body, answer)
}
