// Package lambdafront serves the endpoints of package front as Lambda functions behind API
// Gateway: [HTTP] behind a REST API with response streaming, [Socket] behind a WebSocket
// API. It translates events into requests, messages and connections, and answers back. What
// they mean is package front's.
package lambdafront
