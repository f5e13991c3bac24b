// Package frame has the frames that the relay function and a runner exchange. A runner is the program
// that starts the processes of an MCP server. The package also has what else both ends must agree on:
// limits, environment variables, and the HTTP header of the pass. Package relay explains the protocol.
//
// [Cut] and [Assembler] carry a frame that is longer than one message of API Gateway.
package frame
