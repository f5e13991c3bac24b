// Package apigateway serves the endpoints of package transport as Lambda functions behind
// API Gateway. [HTTP] is behind a REST API with response streaming, and [Socket] behind a
// WebSocket API. It translates events into requests, messages and connections, and
// translates the answers back. Package transport gives them their meaning.
package apigateway
