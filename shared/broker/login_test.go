package broker_test

import (
	"context"
	"net/url"

	"github.com/dormouse-mcp/dormouse/shared/broker"
)

// fixed is a sign-in that gives everybody the same claims, and shows no page.
type fixed map[string]any

func (fixed) Origin() string { return "" }

func (fixed) URL(_ context.Context, a broker.Attempt, redirect string) (string, error) {
	return redirect + "?" + url.Values{"state": {a.State}, "code": {"x"}}.Encode(), nil
}

func (f fixed) User(context.Context, broker.Attempt, string, url.Values) (broker.User, error) {
	return broker.User{Claims: f}, nil
}

func anys(texts []string) []any {
	all := make([]any, len(texts))
	for i, t := range texts {
		all[i] = t
	}
	return all
}
