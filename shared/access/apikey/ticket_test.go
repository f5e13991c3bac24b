package apikey_test

import (
	"regexp"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

func ticketFor(t *testing.T, r *rig) (ticket string, who storage.Identity) {
	t.Helper()
	who = storage.Identity{Tenant: "acme", Principal: "alice", Credential: "k"}
	ticket, life, err := apikey.NewTickets(r.count).Issue(t.Context(), who, "s")
	if err != nil || life != time.Minute || !regexp.MustCompile(`^dt_[a-z2-7]{32}$`).MatchString(ticket) {
		t.Fatalf("%q, %s, %v", ticket, life, err)
	}
	return ticket, who
}

func TestTicketIsGoodOnce(t *testing.T) {
	r := newRig(t)
	ticket, who := ticketFor(t, r)
	got, err := apikey.NewTickets(r.count).Redeem(t.Context(), ticket, "s")
	if !cmp.Equal(got, who) || err != nil {
		t.Errorf("%v, %v", got, err)
	}
	_, err = apikey.NewTickets(r.count).Redeem(t.Context(), ticket, "s")
	wantCode(t, err, storage.Unauthenticated)
}

func TestTicketIsGoodForAMinute(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		young, _ := ticketFor(t, r)
		old, _ := ticketFor(t, r)
		time.Sleep(time.Minute - time.Millisecond)
		if _, err := apikey.NewTickets(r.count).Redeem(t.Context(), young, "s"); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Millisecond)
		_, err := apikey.NewTickets(r.count).Redeem(t.Context(), old, "s")
		wantCode(t, err, storage.Unauthenticated)
	})
}

func TestTicketForAnotherServerIsRefusedAndSpent(t *testing.T) {
	r := newRig(t)
	ticket, _ := ticketFor(t, r)
	_, err := apikey.NewTickets(r.count).Redeem(t.Context(), ticket, "t")
	wantCode(t, err, storage.Forbidden)
	_, err = apikey.NewTickets(r.count).Redeem(t.Context(), ticket, "s")
	wantCode(t, err, storage.Unauthenticated)
}

func TestWhatIsNoTicketCostsNothing(t *testing.T) {
	r := newRig(t)
	ticket, _ := ticketFor(t, r)
	key := r.key(0, "s")
	r.cost()
	for _, text := range []string{"", "dt_", ticket + "a", ticket[3:], "DT_" + ticket[3:], key, "dt_" + key[3:]} {
		_, err := apikey.NewTickets(r.count).Redeem(t.Context(), text, "s")
		wantCode(t, err, storage.Unauthenticated)
	}
	if cost := r.cost(); cost != [2]int{} {
		t.Errorf("it cost %d reads and writes", cost)
	}
}

func TestTicketIsNotInItsRecord(t *testing.T) {
	memory := storagetest.NewMemory()
	ticket, _, err := apikey.NewTickets(memory).Issue(t.Context(), storage.Identity{}, "s")
	commontest.OK(t, err)
	_, err = memory.TakeEntryTicket(t.Context(), ticket)
	wantCode(t, err, storage.NotFound)
	_, err = memory.TakeEntryTicket(t.Context(), ticket[3:])
	wantCode(t, err, storage.NotFound)
}

func TestTroubleWithTheStoreIsNotABadTicket(t *testing.T) {
	r := newRig(t)
	ticket, _ := ticketFor(t, r)
	r.faulty.Set("", storagetest.Faults{Lost: 1})
	_, err := apikey.NewTickets(r.count).Redeem(t.Context(), ticket, "s")
	wantCode(t, err, storage.Unavailable)
	_, _, err = apikey.NewTickets(r.count).Issue(t.Context(), storage.Identity{}, "s")
	wantCode(t, err, storage.Unavailable)
}
