// Package wire holds the bytes and the rules of the Model Context Protocol:
// JSON-RPC messages read without re-encoding, server-sent events, protocol
// versions, method and header names, error codes.
//
// It hides JSON: a message goes through [Parse] once, and from then on its parts
// are slices of the bytes that came in. Ids keep their type and every digit
// (9007199254740993 survives), unknown members survive, and [Replace] exchanges
// one value while everything around it stays byte for byte as it was.
//
// The package is pure. It reads no clock, opens nothing, keeps no state, and knows
// neither sessions nor HTTP handlers. What a method means, who may call it and
// which version a session speaks is decided by its users.
package wire
