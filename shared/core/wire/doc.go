// Package wire has what the Model Context Protocol defines for messages: the protocol versions,
// the names of methods and headers, and the error codes. It parses JSON-RPC messages and
// server-sent events.
//
// The parts of a message that [Parse] returns are slices of the received bytes. Ids keep their type and
// every digit (9007199254740993 survives), and unknown members survive. [Replace] exchanges one value
// and keeps all other bytes.
//
// The package does no I/O, reads no clock and keeps no state.
//
// Comments distinguish two eras. The versions up to 2025-11-25 are the legacy era: they have initialize
// and sessions. Version 2026-07-28, which has neither, is the modern era.
package wire
