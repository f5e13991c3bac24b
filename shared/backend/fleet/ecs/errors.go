package ecs

import (
	"context"
	"errors"
	"fmt"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
)

// placement is RunTask's answer that the request was right but no task was started.
type placement struct{ reason, detail string }

func (p placement) Error() string {
	return "ECS could not place the task: " + p.reason + " " + p.detail
}

func notPlaced(answer taken) error {
	p := placement{reason: "no reason given"}
	for _, f := range answer.Failures {
		p.reason, p.detail = f.Reason, f.Detail
	}
	return p
}

// refused reports whether ECS calls a request invalid. ECS gives the same codes for tasks
// and task definitions that do not exist.
func refused(err error) bool { return is(err, "ClientException", "InvalidParameterException") }

// classify wraps an error of ECS in the matching error of package fleet.
func classify(what string, err error) error {
	kind := fleet.ErrUnavailable
	_, unplaced := errors.AsType[placement](err)
	switch {
	case errors.Is(err, fleet.ErrInvalid), errors.Is(err, fleet.ErrUnavailable): // Config.Inspect returns these errors
		return err
	case unplaced, crowded(err):
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
