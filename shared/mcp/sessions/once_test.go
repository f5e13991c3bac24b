package sessions_test

import (
	"cmp"
	"context"
	"fmt"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// refusing fails the first call of a tool: as a gate, or as a backend that has the message by then.
type refusing struct {
	took
	backend, gate *error
}

func first(err *error, tools []string) error {
	if tools == nil {
		return nil
	}
	defer func() { *err = nil }()
	return *err
}

func (r refusing) Deliver(ctx context.Context, d sessions.Delivery, box storage.Box) (sessions.Tracker, error) {
	t, err := r.took.Deliver(ctx, d, box)
	return t, cmp.Or(err, first(r.backend, d.Tools))
}

func (r refusing) Admit(_ context.Context, w storage.Work) (undo func(), err error) {
	return func() {}, first(r.gate, w.Tools)
}

func TestARepeatIsDeliveredOnlyIfItsFirstCallWasCertainlyNotExecuted(t *testing.T) {
	busy, gone := storage.Errorf(storage.Busy, "no place"), storage.Errorf(storage.Unavailable, "no answer")
	for name, row := range map[string]struct {
		backend, gate error
		delivered     int // of both calls
	}{
		"taken":                {delivered: 1},
		"refused":              {backend: busy, delivered: 2},
		"outcome unknown":      {backend: gone, delivered: 1},
		"refused by the gate":  {gate: busy, delivered: 1},
		"the gate has trouble": {gate: gone, delivered: 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := refusing{newTook(), &row.backend, &row.gate}
			h := sessions.New(storagetest.NewMemory(), b, sessions.Limits{}).With(sessions.Parts{Gate: b})
			ctx, delivered := sessions.WithKey(t.Context(), "key"), 0
			c := httpCaller()
			s, err := h.Open(ctx, c)
			commontest.OK(t, err)
			_, _, err = h.Initialize(ctx, c, s.ID, parsed(t, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`))
			commontest.OK(t, err)
			for id := range 2 {
				_, err := h.Accept(ctx, c, s.ID, []wire.Message{parsed(t, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"pay"}}`, id))}, false)
				if id == 1 {
					commontest.OK(t, err)
				}
			}
			for _, d := range *b.deliveries {
				if d.Tools != nil {
					delivered++
				}
			}
			commontest.EqualIn(t, "delivered", row.delivered, delivered)
		})
	}
}
