package front

import (
	"bytes"
	"encoding/json"

	"github.com/aws/aws-lambda-go/events"

	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// Event is an event of a REST API as far as [Lambda] looks at it, which is the smaller
// part: what else is in one is not decoded.
type Event struct{ events.APIGatewayProxyRequest }

// UnmarshalJSON decodes valid JSON.
func (e *Event) UnmarshalJSON(raw []byte) error {
	*e = Event{}
	if e.decode(raw, func(string, json.RawMessage) bool { return true }) {
		return nil
	}
	return json.Unmarshal(raw, &e.APIGatewayProxyRequest)
}

// DecodeEvent is UnmarshalJSON for an event with more members, which it calls other
// with. An error of other is returned.
func DecodeEvent(raw []byte, e *Event, other func(key string, value json.RawMessage) error) error {
	*e = Event{}
	var failed error
	if e.decode(raw, func(key string, value json.RawMessage) bool {
		failed = other(key, value)
		return failed == nil
	}) || failed != nil {
		return failed
	}
	if err := json.Unmarshal(raw, &e.APIGatewayProxyRequest); err != nil {
		return err
	}
	wire.Members(raw, func(key string, value json.RawMessage) bool {
		failed = other(key, value)
		return failed == nil
	})
	return failed
}

// decode is false for an event that is not as API Gateway writes it, or when other is.
func (e *Event) decode(raw []byte, other func(key string, value json.RawMessage) bool) bool {
	good := true
	whole := wire.Tokens(raw, func(token []byte, value json.RawMessage) bool {
		switch string(token) {
		case `"path"`:
			good = str(value, &e.Path)
		case `"httpMethod"`:
			good = str(value, &e.HTTPMethod)
		case `"body"`:
			good = str(value, &e.Body)
		case `"isBase64Encoded"`:
			e.IsBase64Encoded = string(value) == "true"
		case `"headers"`:
			good = texts(value, &e.Headers)
		case `"multiValueHeaders"`:
			good = lists(value, &e.MultiValueHeaders)
		case `"queryStringParameters"`:
			good = texts(value, &e.QueryStringParameters)
		case `"multiValueQueryStringParameters"`:
			good = lists(value, &e.MultiValueQueryStringParameters)
		case `"requestContext"`:
			good = e.context(value)
		case `"resource"`, `"pathParameters"`, `"stageVariables"`:
		default:
			if good = plain(token); good {
				good = other(string(token[1:len(token)-1]), value)
			}
		}
		return good
	})
	return whole && good
}

func (e *Event) context(raw []byte) (good bool) {
	c := &e.RequestContext
	good = true
	whole := wire.Tokens(raw, func(token []byte, value json.RawMessage) bool {
		switch string(token) {
		case `"domainName"`:
			good = str(value, &c.DomainName)
		case `"requestId"`:
			good = str(value, &c.RequestID)
		case `"identity"`:
			good = str(wire.Lookup(value, "sourceIp"), &c.Identity.SourceIP)
		default:
			good = plain(token)
		}
		return good
	})
	return whole && good
}

// plain is false for a key with an escape, which could be any.
func plain(token []byte) bool { return bytes.IndexByte(token, '\\') < 0 }

// str decodes a string; null and nothing are the empty one.
func str(raw json.RawMessage, into *string) (ok bool) {
	if len(raw) == 0 || string(raw) == "null" {
		return true
	}
	*into, ok = wire.String(raw)
	return ok
}

func texts(raw json.RawMessage, into *map[string]string) bool {
	if string(raw) == "null" {
		return true
	}
	all, good := make(map[string]string, 16), true
	*into = all
	return wire.Members(raw, func(key string, value json.RawMessage) bool {
		var s string
		good = str(value, &s)
		all[key] = s
		return good
	}) && good
}

func lists(raw json.RawMessage, into *map[string][]string) bool {
	if string(raw) == "null" {
		return true
	}
	all, good := make(map[string][]string, 16), true
	*into = all
	var ones []string // what the lists of one string are cut from
	return wire.Members(raw, func(key string, value json.RawMessage) bool {
		var one string
		// Most lists have one string, without a comma or bracket that could end it.
		if n := len(value); n > 4 && value[0] == '[' && value[1] == '"' && value[n-2] == '"' {
			if one, good = wire.String(value[1 : n-1]); good {
				if len(ones) == cap(ones) {
					ones = make([]string, 0, 16)
				}
				ones = append(ones, one)
				all[key] = ones[len(ones)-1 : len(ones) : len(ones)]
				return true
			}
		}
		var many []string
		good = json.Unmarshal(value, &many) == nil
		all[key] = many
		return good
	}) && good
}
