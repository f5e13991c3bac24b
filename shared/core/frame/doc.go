// Package frame has the frames that the relay function and a runner exchange. It also has
// the other facts on which both ends must agree: limits, the environment of a runner, and
// the header that carries its pass. Package relay explains the protocol.
//
// [Encode] and [Decode] convert one frame. [Cut] and [Assembler] carry a frame that is
// longer than one message of the gateway.
package frame
