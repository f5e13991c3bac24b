package dynamostore

import (
	"context"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// upstreamTokens returns the collection of upstream tokens.
func upstreamTokens() collection[session.UpstreamToken] {
	return collection[session.UpstreamToken]{
		name: "U", what: "upstream token", marshal: session.MarshalUpstreamToken, unmarshal: session.UnmarshalUpstreamToken,
		fields: func(v *session.UpstreamToken) fields { return fields{v.ID, &v.Rev, v.Tenant, v.Expires} },
	}
}

// CreateUpstreamToken stores a new upstream token; see [session.UpstreamTokens].
func (s *Store) CreateUpstreamToken(ctx context.Context, v session.UpstreamToken) error {
	return upstreamTokens().create(ctx, s, v)
}

// UpstreamToken reads an upstream token; see [session.UpstreamTokens].
func (s *Store) UpstreamToken(ctx context.Context, id string) (session.UpstreamToken, error) {
	return upstreamTokens().read(ctx, s, id)
}

// SaveUpstreamToken replaces an upstream token; see [session.UpstreamTokens].
func (s *Store) SaveUpstreamToken(ctx context.Context, v session.UpstreamToken) error {
	return upstreamTokens().save(ctx, s, v)
}

// ListUpstreamTokens returns upstream tokens; see [session.UpstreamTokens]. It may miss upstream tokens that were created a
// moment ago.
func (s *Store) ListUpstreamTokens(ctx context.Context, tenant, after string, limit int) ([]session.UpstreamToken, error) {
	return upstreamTokens().list(ctx, s, tenant, after, limit)
}
