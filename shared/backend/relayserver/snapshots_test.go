package relayserver_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/dormouse-mcp/dormouse/shared/backend/bucket"
	"github.com/dormouse-mcp/dormouse/shared/backend/bucket/buckettest"
	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// keeping gives the relay function and the sweep of an asylum a bucket. The host has no rights
// in it.
func (a *asylum) keeping() *buckettest.S3 {
	s3 := buckettest.New(a.t)
	b := bucket.New(bucket.Config{
		Location: bucket.Location{Bucket: "kept", Region: buckettest.Region, Endpoint: s3.Endpoint()},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: buckettest.KeyID, SecretAccessKey: buckettest.Secret, SessionToken: buckettest.Token}, nil
		}),
	})
	a.config.Kept = func(string) bool { return true }
	a.rehost()
	a.config.Snapshots, a.config.Forget = b, b.Forget
	return s3
}

// asks makes the relay function answer a frame about the snapshot of session s1.
func (a *asylum) asks(kind frame.Type, change ...func(*frametest.Frame)) frametest.Frame {
	a.t.Helper()
	f := a.from(kind, append([]func(*frametest.Frame){func(f *frametest.Frame) { f.Owner, f.Size = "s1", 3 }}, change...)...)
	got := a.handle(f)
	if got.Type != frame.TypeKept || got.N != f.N {
		a.t.Fatalf("answered with %+v", got)
	}
	return got
}

func (a *asylum) saves(owner, text string) {
	a.t.Helper()
	room := a.asks(frame.Put, func(f *frametest.Frame) { f.Owner, f.Size = owner, int64(len(text)) })
	r, err := http.NewRequestWithContext(a.t.Context(), http.MethodPut, room.URL, bytes.NewReader([]byte(text)))
	commontest.OK(a.t, err)
	for name, value := range room.Header {
		r.Header.Set(name, value)
	}
	res, err := http.DefaultClient.Do(r)
	commontest.OK(a.t, err)
	_ = res.Body.Close()
	commontest.EqualIn(a.t, "put is answered", http.StatusOK, res.StatusCode)
	for range 2 { // the first answer is lost
		done := a.asks(frame.Done, func(f *frametest.Frame) { f.Owner, f.Object = owner, room.Object })
		commontest.EqualIn(a.t, "done is refused with", "", string(done.Refused))
	}
}

func TestRunnerSavesAndGetsASnapshotByURLs(t *testing.T) {
	a := newAsylum(t)
	s3 := a.keeping()
	gets := func(owner string) frametest.Frame {
		return a.asks(frame.Get, func(f *frametest.Frame) { f.Owner = owner })
	}
	commontest.EqualIn(t, "before it is refused with", storage.NotFound, gets("s1").Refused)
	a.saves("s1", "one")
	a.saves("s1", "two")
	if got := gets("s1"); got.URL == "" || time.Since(time.UnixMilli(got.Saved)) > time.Hour {
		t.Errorf("after: %+v", got)
	}
	commontest.EqualIn(t, "another owner is refused with", storage.NotFound, gets("s2").Refused)
	s3.Before(func(*http.Request) int { return http.StatusServiceUnavailable })
	if reply, err := a.say(a.from(frame.Get, func(f *frametest.Frame) { f.Owner = "s1" })); !errors.Is(err, storage.Unavailable) {
		t.Errorf("while the bucket is down: %+v, %v", reply, err)
	}
}

func TestRunnerThatWasReplacedGetsNoURLAndMovesNoPointer(t *testing.T) {
	a := newAsylum(t)
	s3 := a.keeping()
	room := a.asks(frame.Put)
	for what, replaced := range map[string]func(*storage.Box){
		"another is being started": func(b *storage.Box) { b.Gen, b.State, b.Runner = asylumGen+1, storage.Starting, "" },
		"another runs":             func(b *storage.Box) { b.Gen, b.State, b.Runner = asylumGen+1, storage.Awake, "r2" },
		"it was lost":              func(b *storage.Box) { b.Gen, b.State, b.Runner = asylumGen, storage.Asleep, "" },
	} {
		t.Run(what, func(t *testing.T) {
			a.changes(replaced)
			before := s3.Requests()
			for _, kind := range []frame.Type{frame.Get, frame.Put, frame.Done, frame.Forget} {
				for _, runner := range []string{"r", ""} {
					got := a.asks(kind, func(f *frametest.Frame) { f.Runner, f.Object = runner, room.Object })
					if got.Refused != storage.Fenced || got.URL != "" {
						t.Errorf("%s is answered with %+v", kind, got)
					}
				}
			}
			got := a.asks(frame.Done, func(f *frametest.Frame) { f.Object, f.Gen, f.Runner = room.Object, 99, "r2" })
			commontest.EqualIn(t, "a generation that nobody has is refused with", storage.Fenced, got.Refused)
			commontest.SameIn(t, "requests to the bucket", before, s3.Requests())
		})
	}
}

func TestBoxReachesNoSnapshotOfAnother(t *testing.T) {
	a := newAsylum(t)
	s3 := a.keeping()
	a.saves("s1", "the other's")
	before := s3.Objects()
	commontest.OK(t, a.store.SaveBox(t.Context(), storage.Box{ID: "evil/s", State: storage.Awake, Gen: 9, Runner: "e", Conn: "e"}))
	for _, as := range []frametest.Frame{
		{Box: asylumBox, Runner: "e", Gen: asylumGen}, // in the other's name
		{Box: asylumBox, Gen: asylumGen},
		{Box: "nobody/s", Gen: 1},
		{Box: "nobody/s", Runner: "e", Gen: 1},
	} {
		for _, kind := range []frame.Type{frame.Get, frame.Put, frame.Done, frame.Forget} {
			got := a.asks(kind, func(f *frametest.Frame) { f.Box, f.Gen, f.Runner = as.Box, as.Gen, as.Runner })
			commontest.EqualIn(t, fmt.Sprintf("%s of %s as %q", kind, as.Box, as.Runner), storage.Fenced, got.Refused)
		}
	}
	// In its own name, the box evil/s may write anything. The other tenant's snapshot stays.
	mine := func(kind frame.Type, owner, object string) frametest.Frame {
		return a.asks(kind, func(f *frametest.Frame) { f.Box, f.Gen, f.Runner, f.Owner, f.Object = "evil/s", 9, "e", owner, object })
	}
	for _, owner := range []string{"s1", "../s/s1", "t/s\x00s1"} {
		commontest.EqualIn(t, owner, storage.NotFound, mine(frame.Get, owner, "").Refused)
		commontest.Contains(t, owner, "/kept/evil/s/", mine(frame.Put, owner, "").URL)
		mine(frame.Forget, owner, "")
	}
	for _, object := range []string{"", "current", "../../../t/s/x", strings.Repeat("x", 200)} {
		commontest.EqualIn(t, object, storage.Invalid, mine(frame.Done, "s1", object).Refused)
	}
	commontest.SameIn(t, "objects", before, s3.Objects())
}

func TestHostRefusesASnapshotThatIsTooLargeAndAnyWithoutABucket(t *testing.T) {
	a := newAsylum(t)
	large := func(f *frametest.Frame) { f.Size = bucket.MaxSnapshot + 1 }
	commontest.EqualIn(t, "without a bucket", storage.Invalid, a.asks(frame.Put, large).Refused)
	a.keeping()
	commontest.EqualIn(t, "too large", storage.TooLarge, a.asks(frame.Put, large).Refused)
}

// # Sessions that have ended

// left says whether a snapshot is kept, and whether an item still makes the sweep check
// the box.
func (a *asylum) left(s3 *buckettest.S3) string {
	a.t.Helper()
	due, err := a.store.Due(a.t.Context())
	commontest.OK(a.t, err)
	items, err := a.store.Items(a.t.Context(), asylumBox)
	commontest.OK(a.t, err)
	return fmt.Sprintf("%d objects, %d items, due: %t", len(s3.Objects()), len(items), slices.Contains(due, asylumBox))
}

const nothingLeft = "0 objects, 0 items, due: false"

func (a *asylum) fallsAsleep() { a.changes(func(b *storage.Box) { b.State = storage.Asleep }) }

// Whoever ends a session removes its snapshot if it has the right, and a sweep does so later.
func TestSnapshotOfASessionThatEndsGoes(t *testing.T) {
	down := func(*http.Request) int { return http.StatusServiceUnavailable }
	for what, tt := range map[string]struct {
		forgets bool // of the host
		down    func(*http.Request) int
		awake   bool // the stop is lost, and its box saves once more before it falls asleep
		ended   string
	}{
		"by the sweep":                             {ended: "2 objects, 1 items, due: true"},
		"at once":                                  {forgets: true, ended: nothingLeft},
		"when the bucket is up again":              {forgets: true, down: down, ended: "2 objects, 1 items, due: true"},
		"that its box saves behind the end":        {awake: true, ended: "0 objects, 1 items, due: true"},
		"that it saves, for a host with the right": {awake: true, forgets: true, ended: "0 objects, 1 items, due: true"},
	} {
		t.Run(what, func(t *testing.T) {
			a := newAsylum(t)
			s3 := a.keeping()
			if tt.forgets {
				a.rehost()
			}
			if !tt.awake {
				a.saves("s1", "one")
				a.fallsAsleep()
			}
			before := s3.Requests()
			s3.Before(tt.down)
			commontest.OK(t, a.host.End(t.Context(), a.caller, "s1"))
			if !tt.forgets {
				commontest.SameIn(t, "whoever ended it waited for the bucket", before, s3.Requests())
			}
			commontest.EqualIn(t, "ended", tt.ended, a.left(s3))
			if tt.down != nil {
				if err := relayserver.NewSweeper(a.config).Sweep(t.Context()); err == nil {
					t.Error("the sweep does not say that the bucket is down")
				}
				s3.Before(nil)
			}
			if tt.awake {
				a.saves("s1", "what its process had left")
				a.fallsAsleep()
			}
			a.sweep()
			commontest.EqualIn(t, "swept", nothingLeft, a.left(s3))
			commontest.EqualIn(t, "starts for it", 0, a.starts)
		})
	}
}
