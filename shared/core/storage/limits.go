package storage

import "time"

// Limits of what a Store must accept and may return; see [Log] and [Parts].
const (
	MaxBatchEvents = 1000      // events of one Append
	MaxBatchBytes  = 16 << 20  // bytes of the events of one Append, and the size at which a page of Read ends
	MaxRead        = 1000      // events of one Read
	MaxWait        = MaxRead   // events of one Wait
	MaxPart        = 128 << 10 // bytes of one Part
)

// Limits of a durable value, in bytes.
const (
	MaxValueName = 128
	MaxValueData = 256 << 10
)

// Limits of a suspended call.
const (
	MaxRounds = 100      // how often a call may be suspended; a server that asks more often probably never ends
	MaxAsk    = EventAge // how long a question may stay open
)

const (
	// MaxProps bounds [Identity.Props], in bytes, because a session keeps them.
	MaxProps = 16 << 10
	// MaxPost bounds one message to a WebSocket client, in bytes.
	MaxPost = 131_072
)

const (
	// EventAge is how long events and answers are kept at most, and by default.
	EventAge = 24 * time.Hour
	// HandshakeLife is how long a [Handshake] is kept after its last write.
	HandshakeLife = 30 * 24 * time.Hour
	// ConnectTimeout is how long a gateway may wait for the answer to a client's $connect. The
	// gateway must refuse a connection whose $connect takes longer. If a post to a connection
	// fails some seconds after ConnectTimeout, the connection is gone for good.
	ConnectTimeout = 8 * time.Second
)
