package loop

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
)

// Function makes a Handler of a function as Lambda's runtime for Go takes them: the
// payload is decoded as JSON, and so is what it returns encoded, unless that is an
// io.Reader. call gives the context of an invocation what the function looks for in
// it; nil for nothing.
func Function[E, R any](f func(context.Context, E) (R, error), call func(context.Context, Invocation) context.Context) Handler {
	return func(ctx context.Context, inv Invocation) (io.Reader, error) {
		var event E
		if err := decode(inv.Payload, &event); err != nil {
			return nil, err
		}
		if call != nil {
			ctx = call(ctx, inv)
		}
		result, err := f(ctx, event)
		if err != nil {
			return nil, err
		}
		if answer, ok := any(result).(io.Reader); ok {
			return answer, nil
		}
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(result); err != nil {
			return nil, fmt.Errorf("encode the answer: %w", err)
		}
		return &encoded{b}, nil
	}
}

// decode leaves out what encoding/json does first, a look at whether all of it is JSON,
// for events that decode themselves: who invokes functions has looked.
func decode(payload []byte, event any) error {
	if own, ok := event.(json.Unmarshaler); ok {
		return own.UnmarshalJSON(payload)
	}
	return json.Unmarshal(payload, event)
}

// encoded is an answer as JSON.
type encoded struct{ bytes.Buffer }

// ContentType says so.
func (*encoded) ContentType() string { return "application/json" }

// Ready says that all of it is there.
func (*encoded) Ready() bool { return true }
