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

// most is how many calls are printed in a second. The sum of the others follows.
const most = 20

// rush holds back calls that come faster than people read.
type rush struct {
	since  time.Time // begin of the second that is counted
	shown  int       // calls that were printed in this second
	more   int       // calls that were held back; then how many of them failed and were refused
	failed int
	denied int
	by     map[string]int // how many calls were held back, by server
}

// admit reports whether a call is printed. It counts those that are not.
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

// due returns when the sum must be printed, zero if there is none.
func (r *rush) due() time.Time {
	if r.more == 0 {
		return time.Time{}
	}
	return r.since.Add(time.Second)
}

// printSum prints the sum if its second is over.
func (r *rush) printSum(p *printer, now time.Time) {
	if due := r.due(); !due.IsZero() && !now.Before(due) {
		r.flush(p, now)
	}
}

// flush prints the sum of the calls that were held back, and begins anew.
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
