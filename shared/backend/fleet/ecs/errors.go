package ecs

import (
	"context"
	"errors"
	"fmt"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
)

// refused reports whether ECS calls a request invalid. ECS gives the same codes for tasks
// and task definitions that do not exist.
func refused(err error) bool { return is(err, "ClientException", "InvalidParameterException") }

// classify wraps an error of ECS in the matching error of package fleet.
func classify(what string, err error) error {
	kind := fleet.ErrUnavailable
	switch {
	case errors.Is(err, fleet.ErrInvalid), errors.Is(err, fleet.ErrUnavailable), errors.Is(err, fleet.ErrCapacity): // of Config.Inspect, or of run
		return err
	case crowded(err):
		kind = fleet.ErrCapacity
	case refused(err), is(err, "UnsupportedFeatureException", "PlatformTaskDefinitionIncompatibilityException"):
		kind = fleet.ErrInvalid
	}
	return fmt.Errorf("%w: %s: %w", kind, what, err)
}

// crowded reports whether a quota or a rate limit is used up. ECS reports both as throttling, even
// the quota of Fargate vCPUs. ECS has started nothing in both cases.
func crowded(err error) bool {
	p, ok := errors.AsType[*problem](err)
	return ok && !errors.Is(err, context.DeadlineExceeded) &&
		(p.throttles() || is(p, "LimitExceededException", "ServiceQuotaExceededException"))
}
