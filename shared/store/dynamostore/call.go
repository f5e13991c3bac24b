package dynamostore

import (
	"cmp"
	"context"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// ask sends one request, and repeats it for up to the store's Patience if it fails. It counts a
// failed request under the given name. The caller must count a successful request.
func ask[In, Out any](ctx context.Context, q *requests, as string, call func(context.Context, *In, ...func(*dynamodb.Options)) (*Out, error), in *In) (*Out, error) {
	ctx, cancel := context.WithTimeout(ctx, q.patience)
	defer cancel()
	until, _ := ctx.Deadline()
	out, err := call(ctx, in, func(o *dynamodb.Options) {
		o.Retryer = retryer{until}
		o.APIOptions = append(o.APIOptions, q.limitAttempts)
	})
	if err != nil {
		q.count(as, 0, 0)
	}
	return out, err
}

// retryer repeats every attempt that may succeed the next time, with full jitter, until there is
// no time for another attempt.
type retryer struct{ until time.Time }

func (retryer) IsErrorRetryable(err error) bool {
	var unread *smithy.DeserializationError
	var slow *slowAttemptError
	if errors.As(err, &slow) || errors.As(err, &unread) || errors.Is(err, io.ErrUnexpectedEOF) {
		return true
	}
	return retry.IsErrorRetryables(retry.DefaultRetryables).IsErrorRetryable(err) == aws.TrueTernary
}

func (retryer) MaxAttempts() int { return math.MaxInt32 }

func (r retryer) RetryDelay(attempt int, err error) (time.Duration, error) {
	delay := pause(attempt)
	if time.Until(r.until) <= delay {
		return 0, err
	}
	return delay, nil
}

func (retryer) GetRetryToken(context.Context, error) (func(error) error, error) {
	return func(error) error { return nil }, nil
}

func (retryer) GetInitialToken() func(error) error { return func(error) error { return nil } }

// pause returns a random time to wait after a failed attempt. Its limit is 50 ms
// after the first attempt, doubles with each further one, and is a second at most.
func pause(attempt int) time.Duration {
	return rand.N(min(50*time.Millisecond<<min(max(attempt-1, 0), 5), time.Second))
}

// slowAttemptError is the error of an attempt that took too long, so that another one is
// made.
type slowAttemptError struct{ cause error }

func (e *slowAttemptError) Error() string { return "no answer in time: " + e.cause.Error() }
func (e *slowAttemptError) Unwrap() error { return e.cause }

// limitAttempts limits each attempt to a third of Patience, because a connection that
// died while Lambda had frozen the process may never report it.
func (q *requests) limitAttempts(stack *middleware.Stack) error {
	return stack.Finalize.Insert(middleware.FinalizeMiddlewareFunc("LimitAttempt",
		func(ctx context.Context, in middleware.FinalizeInput, next middleware.FinalizeHandler) (middleware.FinalizeOutput, middleware.Metadata, error) {
			attempt, cancel := context.WithTimeout(ctx, q.patience/3)
			defer cancel()
			out, metadata, err := next.HandleFinalize(attempt, in)
			if err != nil && attempt.Err() != nil && ctx.Err() == nil {
				err = &slowAttemptError{err}
			}
			return out, metadata, err
		}), "Retry", middleware.After)
}

func units(consumed ...types.ConsumedCapacity) (sum float64) {
	for _, c := range consumed {
		sum += aws.ToFloat64(c.CapacityUnits)
	}
	return sum
}

func unitsOf(c *types.ConsumedCapacity) float64 {
	if c == nil {
		return 0
	}
	return units(*c)
}

// get reads one row. It returns nil if the row does not exist.
func (q *requests) get(ctx context.Context, pk, sk string) (row, error) {
	out, err := ask(ctx, q, "GetItem", q.client.GetItem, &dynamodb.GetItemInput{
		TableName: &q.table, Key: key(pk, sk), ConsistentRead: aws.Bool(true), ReturnConsumedCapacity: types.ReturnConsumedCapacityTotal,
	})
	if err != nil {
		return nil, q.failed(err)
	}
	q.count("GetItem", unitsOf(out.ConsumedCapacity), 0)
	if len(out.Item) == 0 {
		return nil, nil
	}
	return out.Item, nil
}

// put writes a row if the condition holds for the row stored under its key; the
// condition "" always holds. With a condition, put returns the stored row: the
// replaced one if it wrote, or else the one that refused the write. It returns nil if
// there is none.
//
// Each put has a nonce. If the row that refuses a put has the put's nonce, an earlier attempt
// wrote the row and the answer was lost, so put reports success, without the replaced row.
func (q *requests) put(ctx context.Context, r row, condition string, values row) (old row, written bool, err error) {
	nonce := storage.NewNonce()
	r["o"] = str(nonce)
	in := &dynamodb.PutItemInput{
		TableName: &q.table, Item: r, ReturnConsumedCapacity: types.ReturnConsumedCapacityTotal,
	}
	if condition != "" {
		in.ConditionExpression = &condition
		in.ReturnValues = types.ReturnValueAllOld
		in.ReturnValuesOnConditionCheckFailure = types.ReturnValuesOnConditionCheckFailureAllOld
	}
	if len(values) > 0 {
		in.ExpressionAttributeValues = values
	}
	out, err := ask(ctx, q, "PutItem", q.client.PutItem, in)
	if err != nil {
		stored, isRefused := refused(err)
		switch {
		case !isRefused:
			return nil, false, q.failed(err)
		case stored.str("o") == nonce:
			return nil, true, nil
		}
		return stored, false, nil
	}
	q.count("PutItem", 0, unitsOf(out.ConsumedCapacity))
	if len(out.Attributes) == 0 {
		return nil, true, nil
	}
	return out.Attributes, true, nil
}

// Conditions on the row that is stored under the key of a put. They need nowValue, and the second
// one also the revision as :rev.
const (
	isFree = "attribute_not_exists(PK) OR u <= :now"              // there is no row, or it has expired
	isSame = "r = :rev AND (attribute_not_exists(u) OR u > :now)" // the row has this revision and has not expired
)

func nowValue() row { return row{":now": num(time.Now().UnixMicro())} }

// texts are the errors of writes that are refused; see [storage.Kind].
type texts interface {
	Taken() error
	None() error
	Changed() error
}

// create writes a row whose key is free.
func (q *requests) create(ctx context.Context, r row, t texts) error {
	_, written, err := q.put(ctx, r, isFree, nowValue())
	if err == nil && !written {
		err = t.Taken()
	}
	return err
}

// replace writes a row in place of one with the revision rev, and returns the replaced row.
func (q *requests) replace(ctx context.Context, r row, rev int64, t texts) (old row, err error) {
	values := nowValue()
	values[":rev"] = num(rev)
	old, written, err := q.put(ctx, r, isSame, values)
	switch {
	case err != nil || written:
		return old, err
	case !old.alive(time.Now()):
		return nil, t.None()
	}
	return nil, t.Changed()
}

// update changes a row by a SET expression if its condition holds. It returns the changed row,
// or else the row that refused the update, or nil if there is no row. Each update has a nonce,
// like each put.
func (q *requests) update(ctx context.Context, k row, expression, condition string, values row) (now row, changed bool, err error) {
	nonce := storage.NewNonce()
	values[":o"] = str(nonce)
	out, err := ask(ctx, q, "UpdateItem", q.client.UpdateItem, &dynamodb.UpdateItemInput{
		TableName: &q.table, Key: k, UpdateExpression: aws.String(expression + ", o = :o"), ConditionExpression: &condition, ExpressionAttributeValues: values,
		ReturnValues:                        types.ReturnValueAllNew,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
		ReturnConsumedCapacity:              types.ReturnConsumedCapacityTotal,
	})
	if err != nil {
		stored, isRefused := refused(err)
		if !isRefused {
			return nil, false, q.failed(err)
		}
		return stored, stored.str("o") == nonce, nil
	}
	q.count("UpdateItem", 0, unitsOf(out.ConsumedCapacity))
	return out.Attributes, true, nil
}

// remove deletes a row if the condition holds for it; the condition "" always holds.
// It returns the deleted row, or nil if it deleted none, for any reason.
func (q *requests) remove(ctx context.Context, k row, condition string, values row) (old row, err error) {
	in := &dynamodb.DeleteItemInput{
		TableName: &q.table, Key: k, ExpressionAttributeValues: values,
		ReturnValues: types.ReturnValueAllOld, ReturnConsumedCapacity: types.ReturnConsumedCapacityTotal,
	}
	if condition != "" {
		in.ConditionExpression = &condition
	}
	out, err := ask(ctx, q, "DeleteItem", q.client.DeleteItem, in)
	if err != nil {
		if _, isRefused := refused(err); isRefused {
			return nil, nil
		}
		return nil, q.failed(err)
	}
	q.count("DeleteItem", 0, unitsOf(out.ConsumedCapacity))
	return out.Attributes, nil
}

// span is a range of sort keys, both ends included.
type span struct {
	pk, from, to string
	backwards    bool
	limit        int        // most rows of the first request; 0 for no limit
	next         func() int // returns the limit of each further request; nil: limit, but at least 100
	fields       string     // the attributes to return, "" for all
	as           string     // the name under which to count the requests; "" for Query
}

// query calls visit for every row of a span, until visit returns false or an error.
func (q *requests) query(ctx context.Context, sp span, visit func(row) (more bool, err error)) error {
	in := &dynamodb.QueryInput{
		ConsistentRead: aws.Bool(true), ScanIndexForward: aws.Bool(!sp.backwards),
		KeyConditionExpression:    aws.String("PK = :pk AND SK BETWEEN :from AND :to"),
		ExpressionAttributeValues: row{":pk": str(sp.pk), ":from": str(sp.from), ":to": str(sp.to)},
	}
	if sp.fields != "" {
		in.ProjectionExpression = &sp.fields
	}
	if sp.next == nil {
		sp.next = func() int { return max(sp.limit, 100) }
	}
	if sp.limit > 0 {
		in.Limit = aws.Int32(int32(sp.limit))
	}
	return q.queryAll(ctx, cmp.Or(sp.as, "Query"), in, sp.next, visit)
}

// queryAll sends a query, and repeats it from the end of each answer until there are no more rows.
// It calls visit for every row, until visit returns false or an error. If the query has a limit,
// the function next returns the limit of each request after the first. Requests are counted under
// the given name.
func (q *requests) queryAll(ctx context.Context, as string, in *dynamodb.QueryInput, next func() int, visit func(row) (more bool, err error)) error {
	in.TableName, in.ReturnConsumedCapacity = &q.table, types.ReturnConsumedCapacityTotal
	for {
		out, err := ask(ctx, q, as, q.client.Query, in)
		if err != nil {
			return q.failed(err)
		}
		q.count(as, unitsOf(out.ConsumedCapacity), 0)
		for _, it := range out.Items {
			if more, err := visit(it); err != nil || !more {
				return err
			}
		}
		if in.ExclusiveStartKey = out.LastEvaluatedKey; len(in.ExclusiveStartKey) == 0 {
			return nil
		}
		if in.Limit != nil {
			in.Limit = aws.Int32(int32(next()))
		}
	}
}

// maxGet is how many rows one BatchGetItem reads.
const maxGet = 100

// getMany reads rows, with one request for each hundred, and returns them in no
// order. It leaves out rows that do not exist. No key may appear twice.
func (q *requests) getMany(ctx context.Context, keys []row) ([]row, error) {
	var rows []row
	var left []map[string]types.AttributeValue
	var p progress
	for len(keys) > 0 || len(left) > 0 {
		for ; len(left) < maxGet && len(keys) > 0; keys = keys[1:] {
			left = append(left, keys[0])
		}
		out, err := ask(ctx, q, "BatchGetItem", q.client.BatchGetItem, &dynamodb.BatchGetItemInput{
			RequestItems:           map[string]types.KeysAndAttributes{q.table: {Keys: left, ConsistentRead: aws.Bool(true)}},
			ReturnConsumedCapacity: types.ReturnConsumedCapacityTotal,
		})
		if err != nil {
			return nil, q.failed(err)
		}
		q.count("BatchGetItem", units(out.ConsumedCapacity...), 0)
		for _, it := range out.Responses[q.table] {
			rows = append(rows, it)
		}
		asked := len(left)
		left = out.UnprocessedKeys[q.table].Keys
		if err := p.rest(ctx, q, len(left), asked); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// maxWrite is how many rows one BatchWriteItem writes.
const maxWrite = 25

// writeMany puts and deletes rows, 25 a request.
func (q *requests) writeMany(ctx context.Context, writes []types.WriteRequest) error {
	var left []types.WriteRequest
	var p progress
	for len(writes) > 0 || len(left) > 0 {
		n := min(maxWrite-len(left), len(writes))
		left, writes = append(left, writes[:n]...), writes[n:]
		out, err := ask(ctx, q, "BatchWriteItem", q.client.BatchWriteItem, &dynamodb.BatchWriteItemInput{
			RequestItems:           map[string][]types.WriteRequest{q.table: left},
			ReturnConsumedCapacity: types.ReturnConsumedCapacityTotal,
		})
		if err != nil {
			return q.failed(err)
		}
		q.count("BatchWriteItem", 0, units(out.ConsumedCapacity...))
		asked := len(left)
		left = out.UnprocessedItems[q.table]
		if err := p.rest(ctx, q, len(left), asked); err != nil {
			return err
		}
	}
	return nil
}

// progress paces the repeats of batch requests that DynamoDB left undone.
type progress struct {
	idle  int       // how many requests in a row have done nothing
	since time.Time // the last time a request did something
}

// rest waits if the last request did none of its work. It returns Unavailable when no
// request has done any work for the store's Patience.
func (p *progress) rest(ctx context.Context, q *requests, left, asked int) error {
	now := time.Now()
	if left < asked || p.since.IsZero() {
		p.idle, p.since = 0, now
	}
	if left < asked {
		return nil
	}
	p.idle++
	delay := pause(p.idle)
	if now.Add(delay).Sub(p.since) > q.patience {
		return storage.Errorf(storage.Unavailable, "the session store is busy; try again")
	}
	if err := storage.Rest(ctx, delay); err != nil {
		return q.failed(err)
	}
	return nil
}
