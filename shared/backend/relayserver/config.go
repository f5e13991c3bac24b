package relayserver

import (
	"context"
	"log/slog"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/core/observe"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// Config is what the host's end of the relay works with. Store, Poster, Fleet, Sealer and
// Launch are required; each of the others says what its zero value means.
type Config struct {
	Store  storage.Store
	Poster storage.Poster // posts to the connections of runners
	// Clients reaches the connections of WebSocket clients. If Clients is nil, nothing is
	// pushed.
	Clients storage.Clients
	Fleet   fleet.Fleet
	// Place chooses the place in Fleet for the next attempt to start a box. b holds the
	// number of the attempt, from 1. Place may be nil if Fleet has one place.
	Place  func(b storage.Box) string
	Sealer *Sealer
	// Launch returns the environment variables that a runner for a box needs besides
	// those of the relay itself. It fails with NotFound if the server is not configured
	// (any more).
	Launch func(box storage.Box) (map[string]string, error)
	// Resolve returns those environment variables that hold secrets from other services, for a
	// runner that asks for its environment (frame.Hello.Invited). If Resolve fails with
	// Unavailable, the runner asks again. If Resolve is nil, there are none.
	Resolve func(ctx context.Context, box storage.Box) (map[string]string, error)
	// Definition returns the frame.Hello.Digest of a runner that a server would start now; "" if
	// the server is not configured any more. A runner with another digest is asked to retire. If
	// Definition is nil, no runner is asked.
	Definition func(server string) string
	// Code returns the digest of a server's present definition, [sessions.Server].Digest; "" if the
	// server is not configured any more. If Code is nil, [storage.Box].Code stays empty.
	Code func(server string) string
	// Elsewhere reports whether a box is only a name under which another part of the
	// program keeps items and handles them. [Sweeper.Sweep] skips such boxes. nil means
	// there are none.
	Elsewhere func(storage.BoxID) bool
	// Inside has the boxes of this program; nil: it has none. IsInside reports whether the
	// next box of a server is to be one of them. Bill counts their messages; nil: nobody counts.
	Inside   *Inside
	IsInside func(server string) bool
	Bill     Bill
	// MakeRoom begins to make room in the memory of the machine for a process of a box. nil
	// where boxes share no machine.
	MakeRoom func()
	// ListLag is how long the fleet's list may take to show a new task.
	ListLag time.Duration
	// Secrets returns the keys and tokens that a session's principal has for the third parties of
	// its server, by the third party's name. nil: no server has any.
	Secrets func(ctx context.Context, s storage.Session) (map[string]storage.Secret, error)
	// BoxesOf returns about how many boxes of a tenant may run at a time. A request that
	// would wake one more is Busy. 0, or nil in place of the function, means any number.
	BoxesOf func(ctx context.Context, tenant string) int
	// WaitingCalls is about how many requests may wait for one box that is not up. One more is
	// Busy: each occupies an instance, and the frames of runners need instances too. 0 means any
	// number.
	WaitingCalls int
	// Snapshots gives runners the URLs of snapshots. nil refuses every request for a URL.
	Snapshots Snapshots
	// Kept reports whether the workspaces of a server's sessions are saved while their box sleeps;
	// nil: none are. Forget removes the snapshots that generation gen of a box, or an older one, has
	// saved for an owner. Forget is nil in a Lambda function that has no right to remove snapshots.
	Kept   func(server string) bool
	Forget func(ctx context.Context, box storage.BoxID, owner string, gen storage.Generation) error
	// StartTimeout is how long a box may take to start and connect, if [fleet.Traits] of its place do
	// not say; 3 min by default.
	StartTimeout time.Duration
	// EventAge is how long events are kept (see sessions.Limits); storage.EventAge by
	// default.
	EventAge time.Duration
	Log      *slog.Logger
	// ShowErrors says whether log lines of failed calls repeat what the server answered. Set it
	// where the operator is the only caller.
	ShowErrors bool
	// Held keeps the tools of servers as they were accepted; see [sessions.Server].Pin. nil: a Held
	// that does not log.
	Held *sessions.Held
	// Observer gets an event for each request that may start a process, and for each frame that
	// Meter counts. If it is nil, Log gets a line for each.
	Observer observe.Observer
	Meter    storage.Meter // nil: frames are not counted
}

// Snapshots stores the workspaces of boxes, by owner. An owner is a session's id, or a name for
// several sessions that share a workspace. Every method fails with Unavailable if the outcome
// is not known. If a later generation than gen has saved a snapshot, Room and Commit fail with
// storage.Fenced, and Forget does nothing.
type Snapshots interface {
	// Newest returns a URL for a GET of the newest snapshot, the sum that Room got for it,
	// and the time it was saved. It returns NotFound if there is none.
	Newest(ctx context.Context, box storage.BoxID, owner string) (get, sum string, saved time.Time, err error)
	// Room returns the name of a new object of size bytes, and a URL for the PUT that uploads
	// it. header must be sent with that PUT. sum is the SHA-256 of the bytes in hexadecimal,
	// or "". Room returns TooLarge if size is over the limit.
	Room(ctx context.Context, box storage.BoxID, owner string, gen storage.Generation, size int64, sum string) (object, put string, header map[string]string, err error)
	// Commit makes an object the newest snapshot. Commit may be called twice, and late. It
	// returns Invalid if Room never named the object.
	Commit(ctx context.Context, box storage.BoxID, owner string, gen storage.Generation, object string) error
	// Forget removes the snapshots that generation gen or an older one has saved.
	Forget(ctx context.Context, box storage.BoxID, owner string, gen storage.Generation) error
}
