package dynamostore

import (
	"context"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// grants returns the collection of grants.
func grants() collection[session.Grant] {
	return collection[session.Grant]{
		name: "G", what: "grant", marshal: session.MarshalGrant, unmarshal: session.UnmarshalGrant,
		fields: func(g *session.Grant) fields { return fields{g.ID, &g.Rev, g.Tenant, g.Expires} },
	}
}

// CreateGrant stores a new grant; see [session.Grants].
func (s *Store) CreateGrant(ctx context.Context, g session.Grant) error {
	return grants().create(ctx, s, g)
}

// Grant reads a grant; see [session.Grants].
func (s *Store) Grant(ctx context.Context, id string) (session.Grant, error) {
	return grants().read(ctx, s, id)
}

// SaveGrant replaces a grant; see [session.Grants].
func (s *Store) SaveGrant(ctx context.Context, g session.Grant) error {
	return grants().save(ctx, s, g)
}

// ListGrants returns grants; see [session.Grants]. It may miss grants that were created a
// moment ago.
func (s *Store) ListGrants(ctx context.Context, tenant, after string, limit int) ([]session.Grant, error) {
	return grants().list(ctx, s, tenant, after, limit)
}
