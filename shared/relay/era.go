package relay

import (
	"context"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// The eras of a server, where it is news.
const (
	EraModern = "modern"
	EraLegacy = "legacy"
)

// era notes what the next runner of the box is to begin with.
func (h *Handler) era(ctx context.Context, f Frame) error {
	_, _, err := h.change(ctx, f.Box, func(b session.Box) (session.Box, verdict) {
		era := EraModern
		if f.Era != EraModern {
			era = ""
		}
		if b.Era == era {
			return b, known
		}
		b.Era = era
		return b, write
	})
	return err
}
