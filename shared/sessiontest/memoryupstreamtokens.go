package sessiontest

import (
	"context"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// CreateUpstreamToken implements session.UpstreamTokens.
func (m *Memory) CreateUpstreamToken(_ context.Context, v session.UpstreamToken) error {
	return m.upstreamTokens.create(m, v)
}

// UpstreamToken implements session.UpstreamTokens.
func (m *Memory) UpstreamToken(_ context.Context, id string) (session.UpstreamToken, error) {
	return m.upstreamTokens.read(m, id)
}

// SaveUpstreamToken implements session.UpstreamTokens.
func (m *Memory) SaveUpstreamToken(_ context.Context, v session.UpstreamToken) error {
	return m.upstreamTokens.save(m, v)
}

// ListUpstreamTokens implements session.UpstreamTokens.
func (m *Memory) ListUpstreamTokens(_ context.Context, tenant, after string, limit int) ([]session.UpstreamToken, error) {
	return m.upstreamTokens.list(m, tenant, after, limit), nil
}

func upstreamTokensCollection() *collection[session.UpstreamToken] {
	return newCollection("upstream token", func(v session.UpstreamToken) session.UpstreamToken { return v }, upstreamTokenFields)
}

func upstreamTokenFields(v *session.UpstreamToken) fields {
	return fields{v.ID, &v.Rev, &v.Tenant, &v.Expires}
}
