package relayhost

import (
	"context"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// secretsOf returns the keys and tokens of the principal of a session at third parties.
// It logs an error.
func secretsOf(ctx context.Context, x boxes, s session.Session) (map[string]session.Secret, error) {
	if x.Secrets == nil {
		return nil, nil
	}
	has, err := x.Secrets(ctx, s)
	if err != nil {
		x.Log.WarnContext(ctx, "what a caller has at third parties cannot be read", "server", s.Server, "session_id", s.ID, "error", err)
	}
	return has, err
}

// noSecrets is the failure of a call whose caller's tokens of third parties could not be
// read or renewed when its process was ready.
func noSecrets() session.Failure {
	return session.Failure{Phase: phaseUnavailable, Detail: "what you have connected at third parties cannot be read or renewed now; try again in a while"}
}
