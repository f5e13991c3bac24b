package auth_test

import (
	"regexp"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/access/auth"
	"github.com/dormouse-mcp/dormouse/shared/core/session"
	"github.com/dormouse-mcp/dormouse/shared/store/sessiontest"
)

func ticketFor(t *testing.T, r *rig) (ticket string, who session.Identity) {
	t.Helper()
	who = session.Identity{Tenant: "acme", Principal: "alice", Credential: "k"}
	ticket, life, err := auth.NewTickets(r.count).Issue(t.Context(), who, "s")
	if err != nil || life != time.Minute || !regexp.MustCompile(`^dt_[a-z2-7]{32}$`).MatchString(ticket) {
		t.Fatalf("%q, %s, %v", ticket, life, err)
	}
	return ticket, who
}

func TestTicketIsGoodOnce(t *testing.T) {
	r := newRig(t)
	ticket, who := ticketFor(t, r)
	got, err := auth.NewTickets(r.count).Redeem(t.Context(), ticket, "s")
	if !cmp.Equal(got, who) || err != nil {
		t.Errorf("%v, %v", got, err)
	}
	_, err = auth.NewTickets(r.count).Redeem(t.Context(), ticket, "s")
	wantCode(t, err, session.Unauthenticated)
}

func TestTicketIsGoodForAMinute(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		young, _ := ticketFor(t, r)
		old, _ := ticketFor(t, r)
		time.Sleep(time.Minute - time.Millisecond)
		if _, err := auth.NewTickets(r.count).Redeem(t.Context(), young, "s"); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Millisecond)
		_, err := auth.NewTickets(r.count).Redeem(t.Context(), old, "s")
		wantCode(t, err, session.Unauthenticated)
	})
}

func TestTicketForAnotherServerIsRefusedAndSpent(t *testing.T) {
	r := newRig(t)
	ticket, _ := ticketFor(t, r)
	_, err := auth.NewTickets(r.count).Redeem(t.Context(), ticket, "t")
	wantCode(t, err, session.Forbidden)
	_, err = auth.NewTickets(r.count).Redeem(t.Context(), ticket, "s")
	wantCode(t, err, session.Unauthenticated)
}

func TestWhatIsNoTicketCostsNothing(t *testing.T) {
	r := newRig(t)
	ticket, _ := ticketFor(t, r)
	key := r.key(0, "s")
	r.cost()
	for _, text := range []string{"", "dt_", ticket + "a", ticket[3:], "DT_" + ticket[3:], key, "dt_" + key[3:]} {
		_, err := auth.NewTickets(r.count).Redeem(t.Context(), text, "s")
		wantCode(t, err, session.Unauthenticated)
	}
	if cost := r.cost(); cost != [2]int{} {
		t.Errorf("it cost %d reads and writes", cost)
	}
}

func TestTicketIsNotInItsRecord(t *testing.T) {
	memory := sessiontest.NewMemory()
	ticket, _, err := auth.NewTickets(memory).Issue(t.Context(), session.Identity{}, "s")
	if err != nil {
		t.Fatal(err)
	}
	_, err = memory.TakeEntryTicket(t.Context(), ticket)
	wantCode(t, err, session.NotFound)
	_, err = memory.TakeEntryTicket(t.Context(), ticket[3:])
	wantCode(t, err, session.NotFound)
}

func TestTroubleWithTheStoreIsNotABadTicket(t *testing.T) {
	r := newRig(t)
	ticket, _ := ticketFor(t, r)
	r.faulty.Set("", sessiontest.Faults{Lost: 1})
	_, err := auth.NewTickets(r.count).Redeem(t.Context(), ticket, "s")
	wantCode(t, err, session.Unavailable)
	_, _, err = auth.NewTickets(r.count).Issue(t.Context(), session.Identity{}, "s")
	wantCode(t, err, session.Unavailable)
}
