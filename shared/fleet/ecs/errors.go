package ecs

import (
	"context"
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/ecs/types"
	"github.com/aws/smithy-go"

	"github.com/dormouse-mcp/dormouse/shared/fleet"
)

// placement is RunTask's way to say that a request was right and no task was started.
type placement struct{ reason, detail string }

func (p placement) Error() string { return "no task was placed: " + p.reason + " " + p.detail }

func notPlaced(failures []types.Failure) error {
	p := placement{reason: "no reason given"}
	for _, f := range failures {
		p.reason, p.detail = value(f.Reason), value(f.Detail)
	}
	return p
}

// refused says that ECS found a request wrong. It is also what ECS says of things that
// do not exist: tasks, and task definitions.
func refused(err error) bool {
	var client *types.ClientException
	var parameter *types.InvalidParameterException
	return errors.As(err, &client) || errors.As(err, &parameter)
}

// classify gives an error of ECS its place among the fleet's. Its text is for the
// operator's log.
func classify(what string, err error) error {
	kind := fleet.ErrUnavailable
	var unplaced placement
	var unsupported *types.UnsupportedFeatureException
	var platform *types.PlatformTaskDefinitionIncompatibilityException
	switch {
	case errors.As(err, &unplaced), crowded(err):
		kind = fleet.ErrCapacity
	case refused(err), errors.As(err, &unsupported), errors.As(err, &platform):
		kind = fleet.ErrInvalid
	}
	return fmt.Errorf("%w: %s: %w", kind, what, err)
}

// crowded says that a quota or a rate is used up. ECS reports the quota of Fargate
// vCPUs as throttling, so that the two cannot be told apart; in both cases nothing was
// started, and a minute later it may be.
func crowded(err error) bool {
	var limit *types.LimitExceededException
	if errors.As(err, &limit) {
		return true
	}
	var e smithy.APIError
	if !errors.As(err, &e) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	if _, throttle := retry.DefaultThrottleErrorCodes[e.ErrorCode()]; throttle {
		return true
	}
	return e.ErrorCode() == "ServiceQuotaExceededException"
}

func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
