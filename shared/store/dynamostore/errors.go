package dynamostore

import (
	"context"
	"errors"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// failed turns trouble with the table into an error with a code of package storage. An error that
// already has a code keeps it.
func (q *requests) failed(err error) error {
	if _, coded := errors.AsType[*storage.Error](err); coded {
		return err
	}
	_, noTable := errors.AsType[*types.ResourceNotFoundException](err)
	switch {
	case noTable:
		return storage.Errorf(storage.Unavailable, "the session store has no table %q; create it or name another one", q.table).Because(err)
	case hasCode(err, "ValidationException", "SerializationException"):
		return storage.Errorf(storage.Internal, "the session store does not understand the request").Because(err)
	case hasCode(err, "AccessDeniedException", "UnrecognizedClientException", "MissingAuthenticationTokenException",
		"IncompleteSignatureException", "InvalidSignatureException", "ExpiredTokenException"):
		return storage.Errorf(storage.Unavailable, "the session store does not let us in; see the permissions of the function").Because(err)
	case isThrottle(err):
		return storage.Errorf(storage.Unavailable, "the session store is busy; try again").Because(err)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return storage.Errorf(storage.Unavailable, "the session store did not answer within the time of the request; try again").Because(err)
	}
	return storage.Errorf(storage.Unavailable, "the session store did not answer; try again").Because(err)
}

func hasCode(err error, codes ...string) bool {
	api, ok := errors.AsType[smithy.APIError](err)
	return ok && slices.Contains(codes, api.ErrorCode())
}

func isThrottle(err error) bool {
	return retry.IsErrorThrottles(retry.DefaultThrottles).IsErrorThrottle(err) == aws.TrueTernary
}

// refused reports whether DynamoDB refused a write because its condition does not hold, and
// returns the stored row, or nil if there is none.
func refused(err error) (stored row, ok bool) {
	e, ok := errors.AsType[*types.ConditionalCheckFailedException](err)
	if !ok || len(e.Item) == 0 {
		return nil, ok
	}
	return e.Item, true
}
