package display

import "time"

// most is how many calls are printed in a second. One line with the number of the others follows.
const most = 20

// rush leaves out calls that come faster than people can read.
type rush struct {
	since time.Time // beginning of the second that is counted
	shown int       // calls printed in this second
	more  int       // calls left out
}

// admit reports whether to print a call of this time. It counts a call that is not printed.
func (r *rush) admit(at time.Time) bool {
	if at = at.Truncate(time.Second); r.more == 0 && !at.Equal(r.since) {
		r.since, r.shown = at, 0
	}
	if r.shown == most {
		r.more++
		return false
	}
	r.shown++
	return true
}

// due returns the time at which the line about the calls left out must be printed. The time is zero
// if no call was left out.
func (r *rush) due() time.Time {
	if r.more == 0 {
		return time.Time{}
	}
	return r.since.Add(time.Second)
}

// flush prints the line about the calls left out, and begins a new second.
func (r *rush) flush(p *printer, now time.Time) {
	if r.more > 0 {
		p.line(now, "", Count(r.more, "more call")+" in this second")
		*r = rush{}
	}
}

// printSum calls flush if the second of the calls left out is over.
func (r *rush) printSum(p *printer, now time.Time) {
	if !now.Before(r.due()) {
		r.flush(p, now)
	}
}
