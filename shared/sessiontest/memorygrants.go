package sessiontest

import (
	"bytes"
	"context"
	"slices"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// CreateGrant implements session.Grants.
func (m *Memory) CreateGrant(_ context.Context, v session.Grant) error { return m.grants.create(m, v) }

// Grant implements session.Grants.
func (m *Memory) Grant(_ context.Context, id string) (session.Grant, error) {
	return m.grants.read(m, id)
}

// SaveGrant implements session.Grants.
func (m *Memory) SaveGrant(_ context.Context, v session.Grant) error { return m.grants.save(m, v) }

// ListGrants implements session.Grants.
func (m *Memory) ListGrants(_ context.Context, tenant, after string, limit int) ([]session.Grant, error) {
	return m.grants.list(m, tenant, after, limit), nil
}

func grantsCollection() *collection[session.Grant] {
	return newCollection("grant", cloneGrant, grantFields)
}

func grantFields(v *session.Grant) fields { return fields{v.ID, &v.Rev, &v.Tenant, &v.Expires} }

func cloneGrant(g session.Grant) session.Grant {
	g.Scopes, g.Props, g.Claims = slices.Clone(g.Scopes), bytes.Clone(g.Props), bytes.Clone(g.Claims)
	g.Current, g.Previous, g.Before, g.Salt = bytes.Clone(g.Current), bytes.Clone(g.Previous), bytes.Clone(g.Before), bytes.Clone(g.Salt)
	return g
}
