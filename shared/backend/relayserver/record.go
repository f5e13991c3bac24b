package relayserver

import (
	"crypto/subtle"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// This file has the transitions of a box record. Each function takes the record that was read
// and returns the record to write. After a conflict the caller reads the record and decides
// again.
//
//	          wake                hello (token)
//	asleep ─────────▶ starting ───────────────▶ awake ──┐ hello (link+1),
//	  ▲ ▲ ▲            │  ▲ │                    │ │ ▲   │ ping
//	  │ │ └────────────┘  └─┘                    │ │ └──┘
//	  │ │   give up      retry                   │ │
//	  │ └────────────────────────────────────────┘ │  hello again (link+1): awake, gen+1
//	  │              lose                          │
//	  └────────────────────────────────────────────┘
//	                 bye

// wake takes the lease to wake a box, in its next generation. The box must be asleep. The caller
// sets Place and Until.
func wake(b storage.Box, owner, tokenHash string, now time.Time) storage.Box {
	b.State, b.Gen, b.Runner, b.Conn, b.Task, b.Link = storage.Starting, b.Gen+1, "", "", "", 0
	b.Owner, b.TokenHash, b.Attempt, b.Changed, b.Gone = owner, tokenHash, 1, now, time.Time{}
	return b
}

// retry takes the lease again after a start that failed or took too long. The new generation
// fences a late runner of the old attempt. The old generation counts as lost.
func retry(b storage.Box, owner, tokenHash string, now time.Time) storage.Box {
	attempt := b.Attempt + 1
	b = wake(lose(b, b.Failure, now), owner, tokenHash, now)
	b.Attempt = attempt
	return b
}

// lose ends a generation that did not say bye: its runner died, or its start was given
// up.
func lose(b storage.Box, why storage.Failure, now time.Time) storage.Box {
	b.State, b.Lost, b.Worked, b.Runner, b.Conn = storage.Asleep, b.Gen, b.Gen, "", ""
	b.Owner, b.TokenHash, b.Until, b.Gone = "", "", time.Time{}, time.Time{}
	b.Failure, b.Changed = why, now
	return b.MarkFull(0, false)
}

// decision says what to do with a frame that may change the record.
type decision int

const (
	refuse decision = iota // a newer runner runs this box
	known                  // nothing to write, answer as before
	write                  // write the record, then answer
	ignore                 // the frame is too late to have an effect; there is no answer
)

// hello says what a runner's hello on connection conn changes in the record b.
func hello(b storage.Box, f frame.Hello, conn string, now time.Time) (storage.Box, decision) {
	same := b.Runner != "" && b.Runner == f.Runner
	switch {
	case b.State == storage.Starting && b.Gen == f.Gen && b.Runner == "" && f.Runner != "" && tokenFits(b, f.Token):
		b.State, b.Runner, b.Task = storage.Awake, f.Runner, f.Task
		b.Owner, b.TokenHash, b.Until, b.Attempt, b.Began = "", "", time.Time{}, 0, now
		if f.Baked {
			b.Installed = f.Digest
		}
	case b.State == storage.Awake && same && f.Gen <= b.Gen && f.Link > b.Link:
		// This is a reconnect or a renewal. f.Gen is below b.Gen if the runner sent hello
		// after a bye and the welcome was lost. The runner executes nothing before a welcome.
	case b.State == storage.Awake && same && f.Gen <= b.Gen:
		return b, known // a ping, or a hello that a later one has overtaken
	case b.State == storage.Asleep && same && b.Gen == f.Gen && f.Link > b.Link:
		b.Told = carryOver(b.Told, b.Gen)
		b.State, b.Gen = storage.Awake, b.Gen+1 // a hello after a bye
	case b.State == storage.Asleep && same && f.Link <= b.Link:
		return b, ignore // the bye of the same runner came first
	default:
		return b, refuse
	}
	b.Conn, b.Link, b.Changed, b.Gone = conn, f.Link, now, time.Time{}
	return b, write
}

// carryOver returns t for a runner that goes on in the generation after gen. A list whose change the
// runner announced in gen counts as announced in the next generation too.
func carryOver(t storage.Told, gen storage.Generation) storage.Told {
	for _, told := range []*storage.Generation{&t.Tools, &t.Prompts, &t.Resources} {
		if *told == gen {
			*told++
		}
	}
	return t
}

func tokenFits(b storage.Box, token string) bool {
	return b.TokenHash != "" && subtle.ConstantTimeCompare([]byte(b.TokenHash), []byte(hashToken(token))) == 1
}

// bye says what a runner's bye changes in the record b. A bye counts only for the connection whose
// number (Link) it has.
func bye(b storage.Box, f frame.Bye, now time.Time) (storage.Box, decision) {
	same := b.Runner != "" && b.Runner == f.Runner && b.Gen == f.Gen
	switch {
	case b.State == storage.Awake && same && b.Link == f.Link:
		b.Busy = busy(b, f, now)
		b.State, b.Conn, b.Changed, b.Gone = storage.Asleep, "", now, time.Time{}
		if !f.Looks {
			b.Worked = b.Gen
		}
		return b.MarkFull(0, false), write
	case b.State == storage.Asleep && same && b.Link == f.Link:
		return b, known
	case b.Runner == f.Runner && b.Runner != "":
		return b, ignore
	default:
		return b, refuse
	}
}

// busy returns the new [storage.Box].Busy of a box that says bye: a moving average of the times from
// hello to bye. Idle time does not count.
func busy(b storage.Box, f frame.Bye, now time.Time) time.Duration {
	took := now.Sub(b.Began) - time.Duration(f.Idle)*time.Millisecond
	if b.Began.IsZero() || took < 0 {
		return b.Busy
	}
	if b.Busy == 0 {
		return took
	}
	return b.Busy + (took-b.Busy)/10
}
