package local

import (
	"fmt"
	"strconv"

	"github.com/aws/aws-lambda-go/events"

	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// Events are written by hand because each request and message has one, for which
// encoding/json takes as long as all else that the gateway does.

// marshalEvent writes an event as API Gateway does: null where the Go type has "" or
// nothing, and the fields that the Go type does not have.
func marshalEvent(e *events.APIGatewayProxyRequest) ([]byte, error) {
	o := object{make([]byte, 0, 4<<10+len(e.Body))}
	o.open("")
	o.text("resource", e.Resource)
	o.text("path", e.Path)
	o.text("httpMethod", e.HTTPMethod)
	o.texts("headers", e.Headers)
	o.lists("multiValueHeaders", e.MultiValueHeaders)
	o.texts("queryStringParameters", e.QueryStringParameters)
	o.lists("multiValueQueryStringParameters", e.MultiValueQueryStringParameters)
	o.texts("pathParameters", e.PathParameters)
	o.raw("stageVariables", "null")
	o.requestContext(&e.RequestContext)
	o.textOrNull("body", e.Body)
	o.raw("isBase64Encoded", strconv.FormatBool(e.IsBase64Encoded))
	o.close()
	if len(o.b) > maxEvent {
		return nil, fmt.Errorf("the event has %d bytes, Lambda takes %d", len(o.b), maxEvent)
	}
	return o.b, nil
}

func (o *object) requestContext(c *events.APIGatewayProxyRequestContext) {
	o.open("requestContext")
	o.text("accountId", c.AccountID)
	o.text("resourceId", c.ResourceID)
	o.text("stage", c.Stage)
	o.text("domainName", c.DomainName)
	o.text("domainPrefix", c.DomainPrefix)
	o.text("requestId", c.RequestID)
	o.text("extendedRequestId", c.ExtendedRequestID)
	o.text("protocol", c.Protocol)
	o.open("identity")
	for _, unknown := range []string{
		"accessKey", "accountId", "caller", "cognitoAuthenticationProvider", "cognitoAuthenticationType",
		"cognitoIdentityId", "cognitoIdentityPoolId", "principalOrgId", "user", "userArn",
	} {
		o.raw(unknown, "null") // what only authorizers of other kinds know
	}
	o.text("sourceIp", c.Identity.SourceIP)
	o.textOrNull("userAgent", c.Identity.UserAgent)
	o.close()
	o.text("resourcePath", c.ResourcePath)
	o.text("path", c.Path)
	o.text("httpMethod", c.HTTPMethod)
	o.text("requestTime", c.RequestTime)
	o.number("requestTimeEpoch", c.RequestTimeEpoch)
	o.text("apiId", c.APIID)
	o.text("deploymentId", "local")
	o.close()
}

// marshalSocketEvent writes an event of a WebSocket API, without what is empty.
func marshalSocketEvent(e *events.APIGatewayWebsocketProxyRequest) []byte {
	o := object{make([]byte, 0, 1<<10+len(e.Body)+len(e.Body)/8)}
	o.open("")
	if len(e.Headers) > 0 {
		o.texts("headers", e.Headers)
		o.lists("multiValueHeaders", e.MultiValueHeaders)
	}
	if len(e.QueryStringParameters) > 0 {
		o.texts("queryStringParameters", e.QueryStringParameters)
		o.lists("multiValueQueryStringParameters", e.MultiValueQueryStringParameters)
	}
	o.socketContext(&e.RequestContext)
	if e.Body != "" {
		o.text("body", e.Body)
	}
	o.raw("isBase64Encoded", "false")
	o.close()
	return o.b
}

func (o *object) socketContext(c *events.APIGatewayWebsocketProxyRequestContext) {
	o.open("requestContext")
	o.text("stage", c.Stage)
	o.text("requestId", c.RequestID)
	o.open("identity")
	o.text("sourceIp", c.Identity.SourceIP)
	o.text("userAgent", c.Identity.UserAgent)
	o.close()
	o.text("apiId", c.APIID)
	o.number("connectedAt", c.ConnectedAt)
	o.text("connectionId", c.ConnectionID)
	o.text("domainName", c.DomainName)
	o.text("eventType", c.EventType)
	o.text("extendedRequestId", c.ExtendedRequestID)
	o.text("messageDirection", c.MessageDirection)
	if id, ok := c.MessageID.(string); ok {
		o.text("messageId", id)
	}
	o.text("requestTime", c.RequestTime)
	o.number("requestTimeEpoch", c.RequestTimeEpoch)
	o.text("routeKey", c.RouteKey)
	if c.DisconnectStatusCode != 0 {
		o.number("disconnectStatusCode", c.DisconnectStatusCode)
	}
	if c.DisconnectReason != nil {
		o.text("disconnectReason", *c.DisconnectReason)
	}
	o.close()
}

// object is JSON that is being written. Names are written as they are.
type object struct{ b []byte }

func (o *object) open(name string) {
	if name != "" {
		o.name(name)
	}
	o.b = append(o.b, '{')
}

func (o *object) close() { o.b = append(o.b, '}') }

func (o *object) comma() {
	if last := o.b[len(o.b)-1]; last != '{' && last != '[' {
		o.b = append(o.b, ',')
	}
}

func (o *object) name(name string) {
	o.comma()
	o.b = append(append(append(o.b, '"'), name...), '"', ':')
}

func (o *object) raw(name, value string) {
	o.name(name)
	o.b = append(o.b, value...)
}

func (o *object) number(name string, n int64) {
	o.name(name)
	o.b = strconv.AppendInt(o.b, n, 10)
}

func (o *object) text(name, s string) {
	o.name(name)
	o.b = wire.AppendString(o.b, s)
}

func (o *object) textOrNull(name, s string) {
	if s == "" {
		o.raw(name, "null")
		return
	}
	o.text(name, s)
}

func (o *object) texts(name string, all map[string]string) {
	if all == nil {
		o.raw(name, "null")
		return
	}
	o.open(name)
	for key, value := range all {
		o.comma()
		o.b = append(wire.AppendString(o.b, key), ':')
		o.b = wire.AppendString(o.b, value)
	}
	o.close()
}

func (o *object) lists(name string, all map[string][]string) {
	if all == nil {
		o.raw(name, "null")
		return
	}
	o.open(name)
	for key, values := range all {
		o.comma()
		o.b = append(wire.AppendString(o.b, key), ':', '[')
		for _, value := range values {
			o.comma()
			o.b = wire.AppendString(o.b, value)
		}
		o.b = append(o.b, ']')
	}
	o.close()
}
