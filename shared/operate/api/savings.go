package api

import (
	"cmp"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/store/meter"
)

// Busy is a time in which a box of a server executed a call.
type Busy struct {
	Tenant, Server string
	From, To       time.Time
}

// Saving is what a shorter idle_seconds of a server would have saved on AWS.
type Saving struct {
	Server  string  `json:"server"`
	Idle    int64   `json:"idle_seconds"`    // the present value
	Shorter int64   `json:"shorter_seconds"` // the idle_seconds that would have saved most
	USD     float64 `json:"usd"`             // how much less its boxes would have cost
	Wakes   int64   `json:"wakes"`           // how many more calls would have waited for the start of a box
}

// leastSaving is the smallest saving that the answer reports, in dollars a week.
const leastSaving = 0.01

// savings answers which servers of the last seven days would have cost less with a
// shorter idle_seconds. It replays the calls of the history on boxes that sleep earlier.
func (x *exchange) savings() (any, error) {
	all, err := x.h.Busy(x.r.Context(), PeopleQuery{Tenant: x.caller.Tenant, Servers: x.caller.servers(), Since: time.Now().Add(-7 * day)})
	if err != nil {
		return nil, err
	}
	of := map[string][]Busy{}
	for _, b := range all {
		of[b.Server] = append(of[b.Server], b)
	}
	out, file := []Saving{}, x.h.Servers()
	for _, name := range file.Names() {
		s, _ := file.Server(name)
		if len(of[name]) == 0 || s.InPlace() || !x.caller.may(x.caller.Tenant, name) {
			continue
		}
		if best := shorter(of[name], cmp.Or(s.Idle, x.h.Idle, meter.Usual().Idle)); best.USD >= leastSaving {
			best.Server = name
			out = append(out, best)
		}
	}
	slices.SortFunc(out, func(a, b Saving) int { return cmp.Compare(b.USD, a.USD) })
	return map[string]any{"savings": out}, nil
}

// shorter returns which shorter idle time would have saved most, and the zero Saving if none
// would have saved anything. The argument calls has the calls of one server, tenant by tenant in
// the order of their begin.
func shorter(calls []Busy, idle time.Duration) (best Saving) {
	now, wakes := awake(calls, idle)
	for _, other := range []time.Duration{30 * time.Second, time.Minute, 5 * time.Minute} {
		if other >= idle {
			break
		}
		usd, more := awake(calls, other)
		if now-usd > best.USD {
			best = Saving{Idle: int64(idle.Seconds()), Shorter: int64(other.Seconds()), USD: now - usd, Wakes: more - wakes}
		}
	}
	return best
}

// awake returns what calls would have cost in dollars on boxes that sleep after this idle time,
// and how often the boxes would have started. It takes the calls in the same order as the function
// shorter.
func awake(calls []Busy, idle time.Duration) (usd float64, wakes int64) {
	prices, start := meter.Published(), meter.Usual().BoxStart
	for i := 0; i < len(calls); {
		first, end := calls[i], calls[i].To
		for i++; i < len(calls) && calls[i].Tenant == first.Tenant && !calls[i].From.After(end.Add(idle)); i++ {
			if calls[i].To.After(end) {
				end = calls[i].To
			}
		}
		wakes++
		usd += prices.Cost(meter.Task((start + end.Sub(first.From) + idle).Seconds(), meter.DefaultBox()))
	}
	return usd, wakes
}
