package display

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/journal"
)

// most is how many calls are printed in a second. One line with the number of the others follows.
const most = 20

// rush leaves out calls that come faster than people can read.
type rush struct {
	since  time.Time      // beginning of the second that is counted
	shown  int            // calls printed in this second
	more   int            // calls left out
	failed int            // calls left out that have failed
	denied int            // calls left out that were refused
	by     map[string]int // number of calls left out, by server
}

// admit reports whether to print a call. It counts a call that is not printed.
func (r *rush) admit(e journal.Event) bool {
	if at := e.Time.Truncate(time.Second); r.more == 0 && !at.Equal(r.since) {
		r.since, r.shown = at, 0
	}
	if r.shown < most {
		r.shown++
		return true
	}
	if r.by == nil {
		r.by = map[string]int{}
	}
	r.more++
	r.by[e.Name]++
	switch {
	case e.Failed():
		r.failed++
	case e.Refusal != "":
		r.denied++
	}
	return false
}

// due returns the time at which the line about the calls left out must be printed. The time is zero
// if no call was left out.
func (r *rush) due() time.Time {
	if r.more == 0 {
		return time.Time{}
	}
	return r.since.Add(time.Second)
}

// printSum prints the line about the calls left out if their second is over.
func (r *rush) printSum(p *printer, now time.Time) {
	if due := r.due(); !due.IsZero() && !now.Before(due) {
		r.flush(p, now)
	}
}

// flush prints the line about the calls left out, and begins a new second.
func (r *rush) flush(p *printer, now time.Time) {
	if r.more == 0 {
		return
	}
	names := slices.SortedFunc(maps.Keys(r.by), func(a, b string) int {
		return cmp.Or(r.by[b]-r.by[a], strings.Compare(a, b))
	})
	for i, name := range names {
		names[i] = fmt.Sprintf("%s %d", name, r.by[name])
	}
	if p.opts.Form == Records {
		p.recordLine(now, "", "calls", "more", fmt.Sprint(r.more), "failed", fmt.Sprint(r.failed), "refused", fmt.Sprint(r.denied), "by", strings.Join(names, ","))
	} else {
		text := plural(r.more, "more call", "more calls") + " in this second"
		if r.failed > 0 {
			text += ", " + fmt.Sprint(r.failed) + " " + p.red("failed")
		}
		if r.denied > 0 {
			text += ", " + fmt.Sprint(r.denied) + " " + p.yellow("refused")
		}
		p.line(now, "", text+": "+strings.Join(names, ", "))
	}
	*r = rush{}
}
