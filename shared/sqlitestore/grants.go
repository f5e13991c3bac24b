package sqlitestore

import (
	"context"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// grants returns the collection of grants.
func grants() collection[session.Grant] {
	return collection[session.Grant]{
		table: "grants", what: "grant", marshal: session.MarshalGrant, unmarshal: session.UnmarshalGrant,
		fields: func(v *session.Grant) fields { return fields{v.ID, &v.Rev, v.Tenant, v.Expires} },
	}
}

// CreateGrant stores a new grant; see [session.Grants].
func (s *Store) CreateGrant(ctx context.Context, v session.Grant) error {
	return grants().create(ctx, s, v)
}

// Grant reads a grant; see [session.Grants].
func (s *Store) Grant(ctx context.Context, id string) (session.Grant, error) {
	return grants().read(ctx, s, id)
}

// SaveGrant replaces a grant; see [session.Grants].
func (s *Store) SaveGrant(ctx context.Context, v session.Grant) error {
	return grants().save(ctx, s, v)
}

// ListGrants returns grants; see [session.Grants].
func (s *Store) ListGrants(ctx context.Context, tenant, after string, limit int) ([]session.Grant, error) {
	return grants().list(ctx, s, tenant, after, limit)
}
