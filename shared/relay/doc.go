// Package relay carries messages between the functions (the host) and a box: both
// ends of it, the records' transitions, tickets, and what is done when a box
// sleeps, wakes or is lost. It hides WebSocket connections, frames, resending and
// fencing; above it there is a session.Backend, below it a Box that executes.
//
// # Frames
//
// A frame is one WebSocket text message: a header, one line of JSON, then, where
// the type has a payload, a newline and the payload, which is raw JSON-RPC copied
// byte for byte. Header fields and types a reader does not know are ignored; "v"
// is 1. A frame is at most 120,000 bytes (API Gateway takes 131,072) and goes out
// in WebSocket frames of at most 32,768. A longer frame is cut, see below.
//
// Runner to host. Each is one invocation of the relay function; they are handled
// concurrently and in any order. What stands behind "⇒" is the answer, sent on
// the same connection as the route response.
//
//	hello   box gen token runner link task questions   ⇒ welcome | fenced
//	pull    box gen runner n                           ⇒ pulled   (after deliver frames)
//	taken   box gen tickets                            ⇒ (nothing)
//	events  box gen seq session items tickets + payload  ⇒ ack
//	status  box gen server process phase detail …      ⇒ (nothing)
//	bye     box gen runner link                        ⇒ bye-ok | fenced
//	part    box frame n of + payload                   ⇒ part-ok
//	whole   box frame of                               ⇒ what the joined frame is answered with
//
// Host to runner:
//
//	welcome gen link          the hello was taken; with a new gen, pull
//	fenced  link              somebody newer runs this box: stop, exit
//	nudge                     the inbox has something: pull
//	deliver id gen … + payload  execute this
//	pulled  n ids             these ids were delivered for pull n, or need not be
//	ack     seq session next closed fenced
//	bye-ok  link
//	answer  session question + payload   a client's response to a question
//	stop    session           end the process of this session (the client sent DELETE)
//	drain   in                reconnect within this many milliseconds (a redeploy)
//	part    frame n of + payload         a piece of a long frame
//
// # Waking, delivering, sleeping, losing
//
// The rules are those of a model-checked protocol; each file says which it holds:
//
//   - record.go: the box record's transitions, as pure functions.
//   - backend.go: the functions that have a message: deliver, look, wake, wait for
//     a sign of life, free or end a request whose box is gone.
//   - handler.go: the relay function: hello, pull with claim, taken, events, bye.
//   - sweep.go: whoever finds a box lost.
//   - runner.go and the files beside it: the runner's end.
//
// # Long frames
//
// Runner to host: the frame's bytes are cut at UTF-8 boundaries into parts with a
// payload of at most 100,000 bytes, each stored by whichever invocation gets it
// and answered with part-ok. When all are, whole makes the host join and handle
// the frame as if it had come in one piece. All of it may be repeated; parts are
// not deleted but expire, so that whole can always be sent again. Host to
// runner: parts are posted in order and joined in the runner's memory; whole is
// not sent, the last part completes the frame; parts of a frame that stays
// incomplete are dropped when the connection closes. A joined frame is at most 17 MiB.
package relay
