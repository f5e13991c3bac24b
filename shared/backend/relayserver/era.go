package relayserver

import (
	"context"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// era writes into the box record which protocol eras the server speaks.
func (r runner) era(ctx context.Context, f frame.Status) error {
	_, _, err := r.change(ctx, func(b storage.Box) (storage.Box, decision) {
		if b.Era == string(f.Era) || f.Era != wire.ModernOnly && f.Era != wire.LegacyOnly && f.Era != wire.DualEra {
			return b, known
		}
		b.Era = string(f.Era)
		return b, write
	})
	return err
}
