// Package wire holds the bytes and the rules of the Model Context Protocol. It reads
// JSON-RPC messages without re-encoding them, and server-sent events. It has the protocol
// versions, the names of methods and headers, and the error codes.
//
// It hides JSON. A message goes through [Parse] once. From then on its parts are slices of
// the received bytes. Ids keep their type and every digit (9007199254740993 survives), and
// unknown members survive. [Replace] exchanges one value and keeps all other bytes.
//
// The package does no I/O, reads no clock and keeps no state. Its users decide what a method means, who
// may call it and which version a session speaks. Comments call the versions up to 2025-11-25, which
// have initialize and sessions, the legacy era, and 2026-07-28, which has neither, the modern era.
package wire
