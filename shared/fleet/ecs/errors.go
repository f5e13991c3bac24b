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

// placement is RunTask's answer that the request was right but no task was started.
type placement struct{ reason, detail string }

func (p placement) Error() string {
	return "ECS could not place the task: " + p.reason + " " + p.detail
}

func notPlaced(failures []types.Failure) error {
	p := placement{reason: "no reason given"}
	for _, f := range failures {
		p.reason, p.detail = value(f.Reason), value(f.Detail)
	}
	return p
}

// refused reports whether ECS calls a request invalid. It does so too for tasks and task
// definitions that do not exist.
func refused(err error) bool {
	var client *types.ClientException
	var parameter *types.InvalidParameterException
	return errors.As(err, &client) || errors.As(err, &parameter)
}

// classify wraps an error of ECS in the matching error of package fleet. The text is for
// the operator's log.
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

// crowded reports whether a quota or a rate is used up. ECS reports both as throttling,
// even the quota of Fargate vCPUs, so they look alike. In both cases nothing was started,
// and a start may succeed a minute later.
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
