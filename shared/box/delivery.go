package box

import "github.com/dormouse-mcp/dormouse/shared/core/frame"

// Sink receives the output of a box. Goroutines of the box call its methods, for each session in
// order and one at a time. A method may call the box. When 4 MiB of output of a session wait for
// the Sink, the box stops reading from the processes of that session. The Sink owns the Raw of an
// event.
type Sink interface {
	Event(frame.Event)
	// Status receives the answer of a fresh process to initialize, and a fingerprint of its lists if
	// [Server].Lists is set. It must not change the Payload. Status is also told when the box runs as
	// many processes as it may, with [frame.PhaseFull].
	Status(frame.Status)
	Process(ProcessStatus)
}
