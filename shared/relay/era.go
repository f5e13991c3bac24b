package relay

import (
	"context"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// The eras of a server, where it is news.
const (
	EraModern = "modern" // no other
	EraLegacy = "legacy" // no other
	EraDual   = "dual"
)

// era notes what the next runner of the box is to begin with.
func (h *Handler) era(ctx context.Context, f Frame) error {
	_, _, err := h.change(ctx, f.Box, func(b session.Box) (session.Box, verdict) {
		if b.Era == f.Era || f.Era != EraModern && f.Era != EraLegacy && f.Era != EraDual {
			return b, known
		}
		b.Era = f.Era
		return b, write
	})
	return err
}
