// Package relay documents the protocol between the functions (the host) and a box (the
// runner). Its halves are packages of their own: frame has what both ends share,
// relayhost runs in Lambda functions, runner runs in the box. The tests of this package
// run both halves together.
//
// The rules come from a model-checked protocol. What follows is all that the author of a
// second runner has to know.
//
// # Frames
//
// A frame is one WebSocket text message, UTF-8: a header, one line of JSON, then,
// where the type has a payload, a newline and the payload, which is raw JSON-RPC
// copied byte for byte. "v" is 1 and "t" the type, and what else is in the header is
// said below; a field that is left out is zero or empty, and no key has an escape.
// Fields and types a reader does not know are passed over. A frame with another "v"
// is refused, and the connection goes on. A message is at most 120,000 bytes (API
// Gateway takes 131,072), in WebSocket frames of at most 32,768 with their heads.
//
// Each message of a runner is one invocation of the relay function. They are
// handled concurrently, in any order, some twice, some never. Behind "⇒" is the
// answer, on the same connection; behind ";" what makes up for a lost frame.
//
//	hello   box gen runner link task [token] [questions]  ⇒ welcome | fenced; again every 5 s, 3 times
//	pull    box gen runner n                              ⇒ delivers, then pulled | fenced; again every 2 s
//	taken   box gen tickets                               ⇒ nothing; the next deliver of the same id
//	ask     box gen id round ticket notAfter inbox        ⇒ may; again every 5 s
//	events  box gen seq session items tickets + payload   ⇒ ack; again every 5 s
//	status  box gen session ticket process phase detail [era] [+ payload]  ⇒ nothing
//	bye     box gen runner link looks                     ⇒ bye-ok | fenced; again every 2 s, 5 times
//	part    box gen runner frame n of + payload           ⇒ part-ok | fenced; again every 5 s
//	whole   box gen runner frame of                       ⇒ what the joined frame is answered with; every 5 s
//	get     box gen runner n owner                        ⇒ kept; again every 5 s, and so the next three
//	put     box gen runner n owner size                   ⇒ kept
//	done    box gen runner n owner object                 ⇒ kept
//	forget  box gen runner n owner                        ⇒ kept
//
// Host to runner:
//
//	welcome gen link             the hello link was taken; gen is the generation from now on
//	fenced  link                 somebody newer runs this box: stop, exit
//	nudge                        the inbox has something: pull
//	deliver id round base gen session principal server ticket level subscribed sent notAfter ackWithin inbox again looks lens trace + payload
//	may     id round refused     the answer to ask
//	pulled  n ids rounds         these ids were delivered for pull n
//	ack     seq session next closed fenced
//	bye-ok  link
//	answer  session question + payload   a client's response to a question; may come twice
//	stop    session              end the session's process: the client sent DELETE
//	drain   in                   connect anew at a random moment within so many milliseconds
//	part-ok frame n
//	part    frame n of + payload
//	kept    n [url] [header] [object] [saved] [refused]
//
// A message that is none of these (API Gateway's own word for a function that
// failed) says nothing; what was not answered is sent again.
//
// # Who runs a box
//
// A box is run by one runner at a time. It is started with the box's name, a
// generation and a one-time token, and draws a random id, runner. link counts its
// hellos with news: one for each connection, and one after a bye. Its first hellos
// bring the token, until a welcome. Only a welcome with the newest link counts;
// nothing is executed, and nothing but hello is sent, before it. A fenced for the
// newest link is the end; for an older one the runner says hello once more. A hello
// with a link that was welcomed is a ping. task is the fleet's name for it.
// questions are the ids of questions that clients have not answered, by session:
// answers that were lost come again. After a welcome with a new gen, and after
// each nudge, the runner pulls with the next n until every id of pulled has come.
//
// # Delivering
//
// lens cuts the payload of a deliver in two: the client's initialize params, then
// the message as it wrote it. level and subscribed are what a fresh process has to
// be told, again says that the session has had a process before, and principal is
// the same for all sessions of one principal in the box, which may share a process
// or what is kept of it, and tells nothing else. trace is the name of the client's
// request in all logs, and is for the runner's own. A message is
// executed if gen is the runner's, no bye was said since the last welcome and id is
// new. If ackWithin is set and sent (Unix milliseconds) is not within a second of the
// runner's clock, the runner asks first: a host that has ended the request in the
// meantime, or finds notAfter passed, answers may with refused, and the message is not
// executed. ids are
// remembered for 15 minutes and while in flight. ackWithin (milliseconds) is set if
// an end is owed: a runner that has no ack of the end by then sends taken with the
// ticket, unless inbox was set; so too when the same id comes again.
//
// # Suspended deliveries
//
// A delivery that needs something of its client can be suspended instead of ended:
// the item of its last event has asks, with the round that begins (one more than the
// delivery's, 0 if it had none), the questions, each the id of a request among its
// events, which is "stream.round.n", the key and the method of the server, and, in a
// batch, of which request; within (milliseconds), for the answers; and len, the
// length of the request that is to be sent again, which stands in the payload behind
// the events of the item. marked says what it says for an end. With the ack the
// runner knows nothing of the delivery any more. When all is answered it comes again
// through an inbox, maybe another runner's: with round, which makes it another
// delivery than that with the same id and a lower one, and with base, behind which the
// indexes of its stream go on. pulled tells the rounds of those ids that have one.
//
// # Events
//
// Of one session one batch is under way: seq goes up from 1 for the life of the
// runner, and the same bytes are sent again until the ack. A batch holds up to
// 1,000 events and 4 MiB, or one event of up to 16 MiB. items has, for each stream,
// common first: stream ("" for common), the ticket of its delivery (for common any
// of the session), first (from 1 on; for common 0 until an ack has told next in
// this generation, then counted on from there), final (the last event ends the
// stream) and marked (it ends, and inbox or taken left a trace), and lens, the
// lengths of its events, which follow on one another in the payload. tickets are
// those of streams in the batch that do not end and have no trace yet: it is put
// first. An ack with fenced is a fence. closed are streams the host has ended:
// nothing more is sent for them, and their calls are cancelled.
//
// A ticket is opaque to a runner: a sealed address that the host can open, good for
// 7 days, for one box, one session, one stream and the generation it was given to
// or later ones. It is copied, never made. status with a payload is the result of
// a fresh process's initialize, asked for with protocol version detail; without, it
// is a line for the host's log, if it comes over the connection that the box has.
// era says that the server was found to speak one era only, "modern" or "legacy", or
// both, "dual": what the next runner of the box is told.
//
// # Long frames
//
// Runner to host, for any frame but a hello with questions: its bytes are cut
// between characters into pieces of at most 100,000 bytes, n from 0 to of-1. frame
// is "place.nonce", place one of 0 to 63, of which a runner uses each for one frame
// at a time. At most 8 parts are under way. Once all have their part-ok, whole has
// the host join and handle the frame. Parts are not deleted but expire after 15
// minutes; after three wholes without an answer the parts are sent anew. Host to runner: parts come without
// part-ok and whole, in any order, some twice; those of a frame that is not
// complete when the connection closes are dropped. A joined frame is at most 17 MiB.
//
// # Connections
//
// A runner opens a connection with a pass, which the relay function checks without a
// read of the store (relayhost.Sealer.Admit). Its first pass is in its environment, and each
// welcome brings a fresh one as its ticket.
//
// A ping every 5 minutes keeps the idle limit of 10 minutes away. After 110 minutes,
// before the limit of 2 hours, or when a drain says so, the runner opens another
// connection and says hello on it; the old one is used until the welcome, and read
// for 5 seconds more. What was not acked, and an open pull, is then sent again.
// A connection that ends is followed by another after 0.5 s, doubled each time up
// to 10 s, times a random 0.1 to 1.1, for up to 2 minutes. The WebSocket close code,
// or the HTTP status of a refused upgrade, changes that:
//
//	1008 1013, 403 429 503        come back, after about 10 s or Retry-After
//	1002 1003 1007 1009 1010,
//	other 3xx and 4xx (not 408)   come back, but not after the fifth in 10 minutes
//	4001                          fenced
//	4002, others to 4499          do not come back
//	all others, 4500 to 4999, no code at all    come back
//
// # Snapshots
//
// A runner that keeps workspaces with its host asks for URLs; n counts what it asks.
// owner is a session, or a name of the runner's for several that share what is kept; all
// of it is the box's own. kept for get has a url to GET and when that was saved (Unix
// milliseconds); for put, with the size in bytes, a url to PUT exactly so many bytes to,
// the header to send with it, and the name of the object, which done then makes the
// newest snapshot of owner. Until then it is none. URLs are good for 10 minutes. refused
// is not_found, if there is no snapshot; fenced, if somebody newer runs the box or has
// saved; too_large; or invalid. forget removes what there is; so does the host, once the
// box sleeps, for a session that has ended. All of it may be said twice.
//
// # Sleeping
//
// With nothing in flight, unacked, asked or pulled for the idle time the runner
// says bye, and executes nothing from then on. After bye-ok it stays for 5 seconds.
// A deliver or nudge in that time, or a lost connection before bye-ok, makes it say
// hello with the next link: welcome with the same gen means that the bye was not
// processed, with a greater one that it was. Delivers of an older gen are dropped.
//
// # An exchange
//
//	→ {"v":1,"t":"hello","box":"acme/files","gen":4,"runner":"r9","token":"k3…","link":1,"task":"t1"}
//	← {"v":1,"t":"welcome","gen":4,"link":1}
//	→ {"v":1,"t":"pull","box":"acme/files","gen":4,"runner":"r9","n":1}
//	← {"v":1,"t":"deliver","gen":4,"session":"s1","principal":"Uq0kPzvZ3bXk9Qe1","ticket":"Zx…","id":"d1","server":"files","notAfter":1767225600000,"ackWithin":1000,"inbox":true,"lens":[2,40]}
//	  {}{"jsonrpc":"2.0","id":1,"method":"ping"}
//	← {"v":1,"t":"pulled","n":1,"ids":["d1"]}
//	→ {"v":1,"t":"events","box":"acme/files","gen":4,"session":"s1","seq":1,"items":[{"ticket":"Zx…","stream":"d1","first":1,"final":true,"marked":true,"lens":[36]}]}
//	  {"jsonrpc":"2.0","id":1,"result":{}}
//	← {"v":1,"t":"ack","session":"s1","seq":1}
package relay
