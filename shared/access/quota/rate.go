package quota

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// Rate is a number of calls in a time. The zero value is no limit.
type Rate struct {
	N     int           // calls
	Per   time.Duration // a second, a minute, an hour or a day
	Burst int           // calls that may come at once; at least 1
}

const (
	maxCalls = 1_000_000_000
	maxText  = 64                   // bytes of a rate as text
	longest  = 366 * 24 * time.Hour // longest time in which a burst may refill
)

func periods() map[string]time.Duration {
	return map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour}
}

// ParseRate reads "N/s", "N/m", "N/h" or "N/d", and after it "burst N". Without a burst
// as many calls may come at once as the limit allows in ten seconds, at least one. "off"
// is no limit.
func ParseRate(text string) (Rate, error) {
	wrong := fmt.Errorf(`%q is not a rate; want "60/m" or "60/m burst 20", with s, m, h or d for the time, or "off"`, wire.Clip(text))
	words := strings.Fields(text)
	switch {
	case len(text) > maxText:
		return Rate{}, wrong
	case len(words) == 1 && words[0] == off:
		return Rate{}, nil
	case len(words) != 1 && (len(words) != 3 || words[1] != "burst"):
		return Rate{}, wrong
	}
	number, unit, _ := strings.Cut(words[0], "/")
	n, ok := readCalls(number)
	per, known := periods()[unit]
	if !ok || !known {
		return Rate{}, wrong
	}
	r := Rate{N: n, Per: per, Burst: max(1, 10*n/int(per/time.Second))}
	if len(words) == 3 {
		if r.Burst, ok = readCalls(words[2]); !ok {
			return Rate{}, wrong
		}
	}
	if float64(r.Burst)*float64(r.every()) > float64(longest) {
		return Rate{}, fmt.Errorf("%q: a burst of this size takes more than a year to fill again; use a smaller burst", wire.Clip(text))
	}
	return r, nil
}

func readCalls(text string) (n int, ok bool) {
	n, err := strconv.Atoi(text)
	return n, err == nil && n >= 1 && n <= maxCalls && text[0] != '+'
}

// String returns the rate in the form that [ParseRate] reads.
func (r Rate) String() string {
	for unit, per := range periods() {
		if per == r.Per {
			return fmt.Sprintf("%d/%s burst %d", r.N, unit, r.Burst)
		}
	}
	return off
}

// words returns the rate for a sentence, as in "60 a minute".
func (r Rate) words() string {
	names := map[time.Duration]string{time.Second: "a second", time.Minute: "a minute", time.Hour: "an hour", 24 * time.Hour: "a day"}
	return fmt.Sprint(r.N, " ", names[r.Per])
}

// IsZero reports whether there is no limit.
func (r Rate) IsZero() bool { return r.N == 0 }

// UnmarshalJSON reads a string as ParseRate does. null is no limit.
func (r *Rate) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		*r = Rate{}
		return nil
	}
	var s string
	if err := json.Unmarshal(text, &s); err != nil {
		return fmt.Errorf(`a rate is a text such as "60/m"`)
	}
	read, err := ParseRate(s)
	*r = read
	return err
}

// MarshalJSON writes the form that ParseRate reads.
func (r Rate) MarshalJSON() ([]byte, error) { return json.Marshal(r.String()) }

// every is the time between two tokens, in whole microseconds, rounded up.
func (r Rate) every() time.Duration {
	return max(1, (r.Per/time.Duration(r.N)+time.Microsecond-1)/time.Microsecond) * time.Microsecond
}

// hold is how long an instance may keep tokens in memory.
func (r Rate) hold() time.Duration { return min(time.Second, time.Duration(r.Burst)*r.every()/10) }

// most is how many tokens an instance may take at a time: half of what the bucket gains during the
// time of hold. For slow rates, whose tokens are not held, most is 1.
func (r Rate) most() int { return max(1, int(r.hold()/r.every()/2)) }

// depth is how long the empty bucket of the stored row takes to fill. It has room for the burst,
// less the tokens that may be held in memory.
func (r Rate) depth() time.Duration {
	d := time.Duration(r.Burst) * r.every()
	if r.most() > 1 {
		d -= r.hold()
	}
	return d
}

// cost is how many tokens n calls need, no more than the bucket can ever have.
func (r Rate) cost(n int) int { return min(n, max(1, int(r.depth()/r.every()))) }
