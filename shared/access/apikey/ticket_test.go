package apikey_test

import (
	"regexp"
	"testing"
	"time"

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

func redeem(t *testing.T, r *rig, ticket, server string) (storage.Identity, error) {
	t.Helper()
	return apikey.NewTickets(r.count).Redeem(t.Context(), ticket, server)
}

// A ticket for another server is spent, too.
func TestTicketIsGoodOnceWithinItsMinute(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		young, who := ticketFor(t, r)
		other, _ := ticketFor(t, r)
		old, _ := ticketFor(t, r)
		time.Sleep(time.Minute - time.Millisecond)
		got, err := redeem(t, r, young, "s")
		commontest.OK(t, err)
		commontest.Same(t, who, got)
		_, err = redeem(t, r, other, "t")
		wantCode(t, err, storage.Forbidden)
		time.Sleep(time.Millisecond)
		for _, ticket := range []string{young, other, old} {
			_, err = redeem(t, r, ticket, "s")
			wantCode(t, err, storage.Unauthenticated)
		}
	})
}

func TestWhatIsNoTicketCostsNothing(t *testing.T) {
	r := newRig(t)
	ticket, _ := ticketFor(t, r)
	key := r.key(0, "s")
	r.cost()
	for _, text := range []string{"", "dt_", ticket + "a", ticket[3:], "DT_" + ticket[3:], key, "dt_" + key[3:]} {
		_, err := redeem(t, r, text, "s")
		wantCode(t, err, storage.Unauthenticated)
	}
	commontest.EqualIn(t, "reads and writes", [2]int{}, r.cost())
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
	_, err := redeem(t, r, ticket, "s")
	wantCode(t, err, storage.Unavailable)
	_, _, err = apikey.NewTickets(r.count).Issue(t.Context(), storage.Identity{}, "s")
	wantCode(t, err, storage.Unavailable)
}
