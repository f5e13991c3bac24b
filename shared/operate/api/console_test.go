package api_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
	"github.com/dormouse-mcp/dormouse/shared/store/meter"
)

// A viewer sees no text that a server wrote. Such text is in the server's output, in the
// reasons of failed processes, starts and calls, and in the reason of the server's state.
func TestViewerSeesNothingThatAServerWrote(t *testing.T) {
	const said = "TOP SECRET of stderr"
	why := "exited with code 1 before it answered initialize: " + said
	p := newPlace(t, func(o *api.Options) {
		o.Status = func(context.Context) (api.Status, error) {
			return api.Status{
				Boxes:     []api.Box{{Box: "acme/one", Server: "one"}},
				Processes: []api.Process{{Server: "one", Box: "acme/one", State: "exited", Since: time.Now(), Detail: "server \"one\": " + why + "\n" + said}},
			}, nil
		}
		o.Calls = func(context.Context, api.CallQuery) (api.Calls, error) {
			return api.Calls{Calls: []api.Call{{Server: "one", Failed: true, Reason: said}}}, nil
		}
		o.Starts = func(context.Context, api.StartQuery) ([]api.Start, error) {
			return []api.Start{{Failed: true, Reason: why}}, nil
		}
		o.Output = func(_ context.Context, _ api.Outputs, emit func(api.Output) error) error {
			return emit(api.Output{Server: "one", Process: "aaaa1", Text: said})
		}
	})
	for _, path := range []string{"servers", "processes", "calls", "servers/one/starts", "logs"} {
		if _, text := p.ask("viewer", "GET", "/api/v1/"+path, "", nil); strings.Contains(text, "TOP SECRET") {
			t.Errorf("%s shows a viewer: %s", path, text)
		}
		if _, text := p.ask("operator", "GET", "/api/v1/"+path, "", nil); !strings.Contains(text, "TOP SECRET") {
			t.Errorf("%s does not show an operator why: %s", path, text)
		}
	}
	if _, text := p.ask("viewer", "GET", "/api/v1/servers", "", nil); !strings.Contains(text, "exited with code 1 before it answered initialize") {
		t.Errorf("a viewer does not see that it failed: %s", text)
	}
}

func TestSeriesAreMergedIntoLongerSteps(t *testing.T) {
	begin := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	bucket := func(minute int, server string, calls, failed int64) api.Bucket {
		return api.Bucket{Time: begin.Add(time.Duration(minute) * time.Minute), Tenant: "acme", Server: server, Calls: calls, Failed: failed, Refused: 3, Wakes: 1, Durations: []int64{calls, failed}}
	}
	p := newPlace(t, func(o *api.Options) {
		o.Series = func(context.Context, api.SeriesQuery) (api.Series, error) {
			return api.Series{Step: 60, Bounds: []float64{5}, Buckets: []api.Bucket{bucket(0, "one", 1, 0), bucket(1, "two", 2, 1), bucket(14, "one", 4, 0), bucket(15, "one", 8, 8)}}, nil
		}
	})
	for query, want := range map[string]string{
		"step=15m":          "900: 0 acme one 5 0 6 2 [5 0], 0 acme two 2 1 3 1 [2 1], 15 acme one 8 8 3 1 [8 8]",
		"step=15m&sum=true": "900: 0   7 1 9 3 [7 1], 15   8 8 3 1 [8 8]",
		"step=1s&sum=true":  "60: 0   1 0 3 1 [1 0], 1   2 1 3 1 [2 1], 14   4 0 3 1 [4 0], 15   8 8 3 1 [8 8]",
	} {
		var s api.Series
		if _, text := p.ask("viewer", "GET", "/api/v1/series?"+query, "", &s); len(s.Bounds) != 1 {
			t.Fatal(text)
		}
		commontest.EqualIn(t, query, want, seriesText(s, begin))
	}
	p.fails("invalid", "viewer", "GET series?step=soon", "")
}

// One tenant calls every ten minutes for a day, with boxes that stay awake for five minutes.
func TestSavingsSayWhatAShorterIdleTimeWouldHaveCost(t *testing.T) {
	begin := time.Now().Add(-48 * time.Hour)
	at := func(server string, every time.Duration, n int) (all []api.Busy) {
		for i := range n {
			from := begin.Add(time.Duration(i) * every)
			all = append(all, api.Busy{Tenant: "acme", Server: server, From: from, To: from.Add(2 * time.Second)})
		}
		return all
	}
	var asked api.PeopleQuery
	p := newPlace(t, func(o *api.Options) {
		o.Idle = 5 * time.Minute
		o.Busy = func(_ context.Context, q api.PeopleQuery) ([]api.Busy, error) {
			asked = q
			// Without further starts: 144 boxes either way, each awake for 270 s less.
			return slices.Concat(at("one", 10*time.Minute, 144), at("two", time.Second, 1000)), nil
		}
	})
	var got struct{ Savings []api.Saving }
	if status, text := p.ask("viewer", "GET", "/api/v1/savings", "", &got); status != http.StatusOK || len(got.Savings) != 1 {
		t.Fatalf("%d %s", status, text)
	}
	if asked.Tenant != "acme" || time.Since(asked.Since) < 7*24*time.Hour {
		t.Errorf("asked is %+v", asked)
	}
	s := got.Savings[0]
	want := meter.Published().Cost(meter.Task(270, meter.DefaultBox()).Times(144))
	if s.Server != "one" || s.Idle != 300 || s.Shorter != 30 || s.Wakes != 0 || s.USD < want*0.999 || s.USD > want*1.001 {
		t.Errorf("%+v, want $%f", s, want)
	}
}

func TestBillIsSummedByWhatIsAskedFor(t *testing.T) {
	share := func(server, principal, day string, n float64) api.Share {
		return api.Share{Server: server, Tenant: "acme", Principal: principal, Day: day, Units: meter.Units{Requests: n}}
	}
	p := newPlace(t, func(o *api.Options) {
		o.Bill = func(context.Context, time.Time) (api.Bill, error) {
			return api.Bill{Shares: []api.Share{share("one", "ada", "2026-11-21", 1), share("two", "ada", "2026-11-21", 2), share("one", "bob", "2026-11-22", 4)}}, nil
		}
	})
	for query, want := range map[string][]api.Share{
		"by=principal,tenant":     {{Principal: "ada", Tenant: "acme", Units: meter.Units{Requests: 3}}, {Principal: "bob", Tenant: "acme", Units: meter.Units{Requests: 4}}},
		"since=48h&by=day,server": {{Day: "2026-11-21", Server: "one", Units: meter.Units{Requests: 1}}, {Day: "2026-11-21", Server: "two", Units: meter.Units{Requests: 2}}, {Day: "2026-11-22", Server: "one", Units: meter.Units{Requests: 4}}},
	} {
		var b api.Bill
		p.ask("viewer", "GET", "/api/v1/bill?"+query, "", &b)
		sum := 0.0
		for i := range b.Shares {
			sum += b.Shares[i].USD
			b.Shares[i].USD = 0
		}
		commontest.SameIn(t, query, want, b.Shares)
		if b.Prices == "" || sum <= 0 || b.USD != sum {
			t.Errorf("%s: $%g of $%g, prices of %q", query, sum, b.USD, b.Prices)
		}
	}
	for _, wrong := range []string{"by=session", "by=day"} {
		p.fails("invalid", "viewer", "GET bill?"+wrong, "")
	}
}

func TestPeopleAndStartsAreOfTheCallersTenantAndServers(t *testing.T) {
	var people api.PeopleQuery
	var starts api.StartQuery
	p := newPlace(t, func(o *api.Options) {
		o.People = func(_ context.Context, q api.PeopleQuery) ([]api.Person, error) {
			people = q
			return []api.Person{}, nil
		}
		o.Starts = func(_ context.Context, q api.StartQuery) ([]api.Start, error) { starts = q; return []api.Start{}, nil }
	})
	p.ask("narrow", "GET", "/api/v1/people?since=1h", "", nil)
	if age := time.Since(people.Since); age < time.Hour || age > 2*time.Hour {
		t.Errorf("people since %v", people.Since)
	}
	people.Since = time.Time{}
	commontest.Same(t, api.PeopleQuery{Tenant: "acme", Servers: []string{"two"}}, people)
	p.fails("not_found", "narrow", "GET servers/one/starts", "")
	if p.ask("viewer", "GET", "/api/v1/servers/one/starts", "", nil); starts != (api.StartQuery{Tenant: "acme", Server: "one", Limit: 20}) {
		t.Errorf("%+v", starts)
	}
}

// The stream of changes begins at once, and ends when the caller leaves. It reports only
// what the caller may see, at most once a second.
func TestChangesAreToldToThoseWhoSeeThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, leave := context.WithCancel(t.Context())
		h := api.New(api.Options{
			Caller: func(*http.Request, apikey.Right) (api.Caller, error) {
				return api.Caller{Tenant: "acme", Servers: []string{"two"}, Role: storage.RoleViewer}, nil
			},
			Changes: func(ctx context.Context, after uint64, may func(tenant, server string) bool) ([]string, uint64, error) {
				if may("acme", "one") || !may("acme", "two") || may("other", "two") {
					t.Error("the caller does not see what it may see")
				}
				if after == 0 {
					return nil, 1, nil
				}
				if after > 5 {
					<-ctx.Done()
				}
				return []string{"two"}, after + 1, ctx.Err()
			},
		})
		w, ended := httptest.NewRecorder(), false
		go func() {
			h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/api/v1/changes", nil))
			ended = true
		}()
		time.Sleep(2500 * time.Millisecond)
		synctest.Wait()
		commontest.EqualIn(t, "after 2.5 s the caller has", "{\"servers\":[]}\n"+strings.Repeat("{\"servers\":[\"two\"]}\n", 2), w.Body.String())
		leave()
		if synctest.Wait(); !ended {
			t.Error("the response goes on without its caller")
		}
	})
}

func TestEntryIsForTheUserOfTheMachineOnly(t *testing.T) {
	newPlace(t).fails("not_here", "operator", "POST entry", "")
	p := newPlace(t, func(o *api.Options) {
		o.Caller = func(*http.Request, apikey.Right) (api.Caller, error) { return api.Machine("me"), nil }
		o.Entry = func(context.Context) (api.Entry, error) { return api.Entry{URL: "http://here/", Seconds: 60}, nil }
	})
	var e api.Entry
	if p.ask("", "POST", "/api/v1/entry", "", &e); e.URL != "http://here/" {
		t.Errorf("%+v", e)
	}
}

// seriesText writes a bucket as minute, tenant, server, calls, failed, refused, wakes and
// durations.
func seriesText(s api.Series, begin time.Time) string {
	var all []string
	for _, b := range s.Buckets {
		all = append(all, fmt.Sprintln(b.Time.Sub(begin).Minutes(), b.Tenant, b.Server, b.Calls, b.Failed, b.Refused, b.Wakes, b.Durations))
	}
	return fmt.Sprintf("%d: %s", s.Step, strings.TrimSpace(strings.ReplaceAll(strings.Join(all, ", "), "\n", "")))
}
