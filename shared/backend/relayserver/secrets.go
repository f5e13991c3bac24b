package relayserver

import (
	"context"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// secretsOf returns the keys and tokens that the principal of a session has at third
// parties. It logs errors.
func secretsOf(ctx context.Context, x boxes, s storage.Session) (map[string]storage.Secret, error) {
	if x.Secrets == nil {
		return nil, nil
	}
	has, err := x.Secrets(ctx, s)
	if err != nil {
		x.Log.WarnContext(ctx, "what a caller has at third parties cannot be read", "server", s.Server, "session_id", s.ID, "error", err)
	}
	return has, err
}

// noSecrets is the failure of a call from the inbox if its caller's tokens at third
// parties cannot be read or renewed when a runner claims the call.
func noSecrets() storage.Failure {
	return storage.Failure{Phase: phaseUnavailable, Detail: "what you have connected at third parties cannot be read or renewed now; try again in a while"}
}
