// Package relay documents the protocol between Lambda functions (the host) and a box (the
// runner). Package frame has what both ends share. Package relayserver runs in Lambda
// functions, and package runner in the box. The tests of package relay run both ends
// together.
//
// The author of a second runner need know no more than this page.
//
// # Frames
//
// A frame is one WebSocket text message in UTF-8. It begins with a header, which is one
// line of JSON. If its type has a payload, a newline and the payload follow. The
// payload is raw JSON-RPC, copied byte for byte. In the header, "v" is 1 and "t" is the
// type. The tables below list the other fields. A field that is left out is zero or
// empty. No key contains an escape. A reader ignores fields and types that it does not
// know. It refuses a frame with another "v", and the connection goes on. A message has
// at most 120,000 bytes (API Gateway takes 131,072). The runner sends it in WebSocket
// frames of at most 32,768 bytes, header included.
//
// Each message of a runner is one invocation of the relay function. The invocations run
// concurrently, in any order; some messages are handled twice, some never. In the
// table, "⇒" comes before the answer, which uses the same connection. ";" comes before
// what makes up for a lost frame.
//
//	hello   box gen runner link task [digest] [token] [questions] [invited]  ⇒ welcome | fenced; again every 5 s, 3 times
//	pull    box gen runner n                              ⇒ delivers, then pulled | fenced; again every 2 s
//	taken   box gen tickets                               ⇒ nothing; the next deliver of the same id
//	ask     box gen id round ticket notAfter inbox        ⇒ may; again every 5 s
//	return  box gen ticket notAfter + payload             ⇒ nothing; the next deliver of the same id
//	events  box gen seq session items tickets + payload   ⇒ ack; again every 5 s
//	status  box gen session ticket process phase detail [era] [lists] [own] [+ payload]  ⇒ nothing
//	bye     box gen runner link looks [idle]              ⇒ bye-ok | fenced; again every 2 s, 5 times
//	part    box gen runner frame n of + payload           ⇒ part-ok | fenced; again every 5 s
//	whole   box gen runner frame of                       ⇒ what the joined frame is answered with; every 5 s
//	get     box gen runner n owner                        ⇒ kept; again every 5 s, and so the next three
//	put     box gen runner n owner size                   ⇒ kept
//	done    box gen runner n owner object                 ⇒ kept
//	forget  box gen runner n owner                        ⇒ kept
//
// Host to runner:
//
//	welcome gen link [retire] [launch]  the hello link was taken; gen is the generation from now on
//	fenced  link                 a newer runner runs this box: stop, exit
//	nudge                        the inbox has something: pull
//	look                         nothing to do: the host learns from the post whether the connection is open
//	deliver id round base gen session principal server ticket level subscribed sent notAfter ackWithin inbox again moved looks lens trace secrets + payload
//	may     id round refused     the answer to ask
//	pulled  n ids rounds         these ids were delivered for pull n
//	ack     seq session next closed fenced
//	bye-ok  link
//	answer  session question + payload   a client's response to a question; may come twice
//	stop    session              end the session's process: the client sent DELETE
//	halt    [session] by [in] [keep] [alone]  stop the session's process, or all
//	yield                        end the process that has been idle longest, and sleep soon: the memory is needed
//	drain   in                   connect anew at a random moment within so many milliseconds
//	part-ok frame n
//	part    frame n of + payload
//	kept    n [url] [header] [object] [saved] [refused]
//
// Any other message carries no information; API Gateway sends one when a function has
// failed. The runner repeats what was not answered.
//
// # Who runs a box
//
// One runner at a time runs a box. The host starts it with the box's name, a generation and a
// one-time token. The runner draws a random id, runner. link counts the hellos that say something
// new: the first on each connection and the first after a bye. If a new connection was lost before
// its welcome, the runner also says a new hello on the earlier connection, which still lives. Hellos
// carry the token until the first welcome. Only a welcome with the newest link counts. Before it,
// the runner executes nothing, and sends nothing but hello. A fenced with the newest link ends the
// runner. After a fenced with an older link, the runner says hello once more. A hello with a link
// that was welcomed is a ping. task is the fleet's name for the runner. questions are the ids of
// the questions that clients have not answered, by session; the host posts lost answers again.
// After a welcome with a new gen, and after each nudge, the runner pulls with the next n, until
// every id of pulled has come.
//
// An invited runner knows only the box's name, the generation, the token and where the
// relay is. Its hellos say invited until the first welcome, which has its launch: the
// environment variables that other runners are started with. They may hold secrets. No
// runner without the token, or without the id of the welcomed runner, gets them.
//
// # Delivering
//
// lens cuts the payload of a deliver in two: the client's initialize params, and the message as the
// client wrote it. level and subscribed are for a fresh process. again says that the session has
// had a process before. moved says that the server's lists may have changed since that process.
// principal is the same for all sessions of one principal in the box, and tells nothing else. The
// sessions of one principal may share a process or a saved workspace. trace is the name of the
// client's request in all logs, for the runner's own log. secrets are the keys and tokens of the
// principal at third parties, by the names in the server's environment, with value and until.
// Secrets are for the process of this delivery, and for no log.
//
// A runner executes a message if gen is its own, it has said no bye since the last welcome,
// and id is new. It remembers ids for 15 minutes and while they are in flight. If ackWithin
// is set, and sent (Unix milliseconds) is not within a second of the runner's clock, the
// runner asks first. The host answers may with refused if it has ended the request in the
// meantime, or if notAfter has passed. The runner does not execute a refused message.
//
// ackWithin (milliseconds) is set if the request must have an end. A runner that has no ack of the
// end within that time sends taken with the ticket, unless inbox was set. It also sends taken when
// the same id comes again.
//
// A runner whose time is almost over executes nothing new. It gives back a deliver that has
// ackWithin and did not come from an inbox: return has its ticket, its notAfter and the message.
// The host then puts the message into the inbox, unless the store has an item or an end of the
// request by then. Another generation gets it after this one's bye.
//
// # Suspended deliveries
//
// A delivery that needs something of its client can be suspended instead of ended. The item of its
// last event then has asks, with these fields. round is the round that begins: one more than the
// delivery's, which is 0 if it had none. questions has, for each question, its id, key and method,
// and in a batch the request that it belongs to. The id is that of a request among the delivery's
// events, "stream.round.n". The key and the method are the server's. within is the time for the
// answers in milliseconds. len is the length of the request that is to be sent again; it is in the
// payload behind the events of the item. marked: see Events.
//
// After the ack the runner knows nothing of the delivery any more. When all questions are
// answered, the delivery comes again through an inbox, perhaps another runner's. The new
// delivery has a round, and is another delivery than one with the same id and a lower round.
// It also has base: the indexes of its stream go on behind base. pulled has the rounds of
// those ids that have one.
//
// # Events
//
// One batch of each session is under way. seq goes up from 1 over the life of the
// runner. The runner sends the same bytes again until the ack. A batch has at most
// 1,000 events and 4 MiB, or one event of at most 16 MiB.
//
// items has one entry for each stream. The first is for the session's standalone stream, here
// called common, if it has events. stream is "" for common. ticket is that of the stream's
// delivery; for common it is any ticket of the session. first counts from 1. For common, first is 0
// until an ack has named next in this generation, and then counts on from next. final says that the
// last event ends the stream. marked says that the batch ends or suspends the delivery, and that
// the host has an item of it because of inbox or taken. lens has the lengths of the events, which
// are in the payload one after the other.
//
// tickets are those of streams in the batch that do not end and have no item yet; the
// host writes the items first. An ack with fenced says what a fenced frame says. closed are
// streams that the host has ended: the runner sends nothing more for them and cancels their
// calls.
//
// A ticket is opaque to a runner, which copies it and never makes one. It is a sealed
// address that the host can open. It is valid for 7 days, for one box, one session and
// one stream, and for the generation it was given to or later ones.
//
// status with a payload is the result of a fresh process's initialize, which was asked
// for with protocol version detail. era says what the server was found to speak: one era
// ("modern" or "legacy") or both ("dual"). The next runner of the box gets it. status
// without a payload is a line for the host's log, if it comes over the connection that
// the box has.
//
// # Long frames
//
// A runner may send any frame in parts, except a hello with questions. It cuts the
// frame's bytes between characters into pieces of at most 100,000 bytes, with n from 0
// to of-1. frame is "place.nonce". place is a number from 0 to 63, and a runner uses
// each place for one frame at a time. At most 8 parts of a frame are under way. Once
// all parts have their part-ok, whole makes the host join and handle the frame. The
// host does not delete parts; they expire after 15 minutes. After three wholes without
// an answer, the runner sends the parts anew.
//
// The host sends parts without part-ok and whole, in any order, some twice. If a frame
// is not complete when the connection closes, the runner drops its parts. A joined
// frame has at most 17 MiB.
//
// # Halting
//
// halt stops processes, and their sessions stay: the next message of a session starts another
// process. Without session it is about all processes of the box, and the runner then says bye as
// soon as it has nothing to do. Calls in flight have as many milliseconds to end as the field in
// says. With alone, no client is connected, and a process whose calls all wait for answers of clients
// gets no time. The calls that are left end with an error that has the text of the field by. With
// keep, as at the end of dormouse run, the next process may go on with the memory of this one; else
// it starts afresh. There is no answer to halt.
//
// # Memory
//
// The boxes of one machine share its memory. A box that finds none for one more process says so in
// a status of phase memory. The host sends a yield to the box that has sent nothing for longest. A
// box that gets a yield ends one process that has been idle for ten seconds, and says bye once all
// of its processes have been idle for ten seconds. There is no answer to a yield.
//
// # Connections
//
// A runner opens a connection with a pass, which the relay function checks without a
// read of the store (relayserver.Sealer.Admit). Its first pass is in its environment.
// Each welcome brings a fresh pass in its field ticket.
//
// The runner pings every 5 minutes, because the gateway closes a connection that is
// idle for 10 minutes. After 110 minutes, before the limit of 2 hours, or when a drain
// says so, it opens another connection and says hello on it. It uses the old connection
// until the welcome, and reads it for 5 seconds more. Then it sends again what was not
// acked, and an open pull.
//
// After the end of a connection the runner tries to open another for up to 2 minutes. It
// first waits 0.5 s, and twice as long each time, up to 10 s. Each wait is multiplied by
// a random factor of 0.1 to 1.1. The WebSocket close code, or the HTTP status of a
// refused upgrade, changes that:
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
// A runner that keeps workspaces with its host asks for URLs; n counts its requests.
// owner is a session, or a name that the runner chose for several sessions that share a
// workspace. All owners belong to the box alone.
//
// kept for get has a URL to GET, and when the snapshot was saved (Unix milliseconds). put has the
// size in bytes. kept for put has a URL to PUT exactly that many bytes to, the header to send with
// them, and the name of the object. done makes that object the newest snapshot of owner. Before
// done, the object does not count as a snapshot. URLs are valid for 10 minutes. refused is
// not_found if there is no snapshot, fenced if a newer runner runs the box or has saved, too_large,
// or invalid. forget removes the snapshots of owner. After the end of a session the host removes
// its snapshots too, once the box sleeps. All of these frames may be sent twice.
//
// # Sleeping
//
// A runner says bye when it has had nothing in flight, unacked, asked or pulled for the idle
// time. After the bye it executes nothing. After bye-ok it stays for 5 seconds. A deliver or
// nudge in that time, or a connection that is lost before bye-ok, makes it say hello with the
// next link. A welcome with the same gen means that the bye was not processed, one with a
// greater gen that it was. The runner drops delivers of an older gen.
//
// # Retiring
//
// digest in a hello names the definition of the server that the runner was started with. If the
// host has another definition by now, or none, its welcome says retire, except to the first hello
// of a runner. A runner that is told to retire finishes what it has, ends its processes and says
// bye. It executes nothing new for 5 seconds. If it still has something in flight after 5 seconds,
// it executes new messages again until a moment when it has nothing in flight. It does not say
// hello again after its bye. A host that does not want to wait for the next hello sends drain.
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
