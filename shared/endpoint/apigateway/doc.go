// Package apigateway serves the endpoints of package transport as Lambda functions behind API
// Gateway. [HTTP] is behind a REST API with response streaming, and [Socket] behind a WebSocket
// API. Both translate events into requests, messages and connections, and translate the answers
// back.
package apigateway
