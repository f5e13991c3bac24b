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
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// # The host's end

// keeping gives the relayhost of an asylum a bucket.
func (a *asylum) keeping() *buckettest.S3 {
	s3 := buckettest.New(a.t)
	b := bucket.New(bucket.Config{
		Location: bucket.Location{Bucket: "kept", Region: buckettest.Region, Endpoint: s3.Endpoint()},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: buckettest.KeyID, SecretAccessKey: buckettest.Secret, SessionToken: buckettest.Token}, nil
		}),
	})
	a.config.Kept = func(string) bool { return true }
	a.host = sessions.New(a.store, relayserver.NewBackend(a.config), sessions.Limits{}) // has no rights in it
	a.config.Snapshots, a.config.Forget = b, b.Forget
	return s3
}

// asks makes the relay function answer a frame of the runner of the box.
func (a *asylum) asks(f frametest.Frame) frametest.Frame {
	a.t.Helper()
	if f.Box == "" {
		f.Box, f.Gen, f.Runner = asylumBox, asylumGen, "r"
	}
	got := a.handle(f)
	if got.Type != frame.TypeKept || got.N != f.N {
		a.t.Fatalf("answered with %+v", got)
	}
	return got
}

// upload uploads text to the URL in room, as a box does.
func (a *asylum) upload(room frametest.Frame, text string) {
	a.t.Helper()
	r, err := http.NewRequestWithContext(a.t.Context(), http.MethodPut, room.URL, bytes.NewReader([]byte(text)))
	commontest.OK(a.t, err)
	for name, value := range room.Header {
		r.Header.Set(name, value)
	}
	res, err := http.DefaultClient.Do(r)
	commontest.OK(a.t, err)
	_ = res.Body.Close()
	if res.StatusCode != http.StatusOK {
		a.t.Fatalf("put is answered %d", res.StatusCode)
	}
}

// saves saves a snapshot of an owner.
func (a *asylum) saves(owner, text string) {
	a.t.Helper()
	room := a.asks(frametest.Frame{Type: frame.Put, N: 1, Owner: owner, Size: int64(len(text))})
	a.upload(room, text)
	for n := range 2 { // the first answer is lost
		if done := a.asks(frametest.Frame{Type: frame.Done, N: int64(n), Owner: owner, Object: room.Object}); done.Refused != "" {
			a.t.Fatalf("done is refused: %s", done.Refused)
		}
	}
}

func TestRunnerSavesAndGetsASnapshotByURLs(t *testing.T) {
	a := newAsylum(t)
	a.keeping()
	if got := a.asks(frametest.Frame{Type: frame.Get, N: 3, Owner: "s1"}); got.Refused != storage.NotFound {
		t.Errorf("before: %+v", got)
	}
	a.saves("s1", "one")
	a.saves("s1", "two")
	got := a.asks(frametest.Frame{Type: frame.Get, N: 4, Owner: "s1"})
	if got.URL == "" || time.Since(time.UnixMilli(got.Saved)) > time.Hour {
		t.Errorf("after: %+v", got)
	}
	if other := a.asks(frametest.Frame{Type: frame.Get, N: 5, Owner: "s2"}); other.Refused != storage.NotFound {
		t.Errorf("another owner: %+v", other)
	}
}

func TestABoxIsKnownByTheDefinitionWhoseInstallIsKept(t *testing.T) {
	a := newAsylum(t)
	a.keeping()
	a.config.Definition = func(server string) string { return "definition of " + server }
	a.saves("s1", "a workspace")
	if got := a.box().Installed; got != "" {
		t.Errorf("a workspace counts as the install of %s", got)
	}
	a.saves("install-npx-4711", "an install")
	commontest.EqualIn(t, "the install that is kept is that of", "definition of s", a.box().Installed)
	a.asks(frametest.Frame{Type: frame.Get, N: 9, Owner: "install-npx-4711"})
}

func TestSnapshotThatWasPutAndNotDoneIsNone(t *testing.T) {
	a := newAsylum(t)
	s3 := a.keeping()
	a.saves("s1", "one")
	before := s3.Objects()
	room := a.asks(frametest.Frame{Type: frame.Put, Owner: "s1", Size: 3})
	a.upload(room, "two") // and the runner is killed
	a.changes(func(b *storage.Box) { b.Gen, b.Runner = b.Gen+1, "r2" })
	got := a.asks(frametest.Frame{Type: frame.Get, Box: asylumBox, Gen: asylumGen + 1, Runner: "r2", Owner: "s1"})
	if url, _, _ := strings.Cut(got.URL, "?"); !slices.Contains(before, strings.TrimPrefix(url, s3.Endpoint()+"/")) {
		t.Errorf("the next runner gets %s, and what was done is one of %v", url, before)
	}
}

func TestRunnerThatWasReplacedGetsNoURLAndMovesNoPointer(t *testing.T) {
	a := newAsylum(t)
	s3 := a.keeping()
	room := a.asks(frametest.Frame{Type: frame.Put, Owner: "s1", Size: 3})
	a.upload(room, "old")
	for what, replaced := range map[string]func(*storage.Box){
		"another is being started": func(b *storage.Box) { b.Gen, b.State, b.Runner = asylumGen+1, storage.Starting, "" },
		"another runs":             func(b *storage.Box) { b.Gen, b.State, b.Runner = asylumGen+1, storage.Awake, "r2" },
		"it was lost":              func(b *storage.Box) { b.Gen, b.State, b.Runner = asylumGen, storage.Asleep, "" },
	} {
		t.Run(what, func(t *testing.T) {
			a.changes(replaced)
			before := s3.Requests()
			for _, f := range []frametest.Frame{
				{Type: frame.Get, Owner: "s1"},
				{Type: frame.Put, Owner: "s1", Size: 3},
				{Type: frame.Done, Owner: "s1", Object: room.Object},
				{Type: frame.Forget, Owner: "s1"},
				{Type: frame.Get, Owner: "s1", Box: asylumBox, Gen: asylumGen},
				{Type: frame.Done, Owner: "s1", Object: room.Object, Box: asylumBox, Gen: 99, Runner: "r2"},
			} {
				if got := a.asks(f); got.Refused != storage.Fenced || got.URL != "" {
					t.Errorf("%s: %s is answered with %+v", what, f.Type, got)
				}
			}
			if after := s3.Requests(); len(after) != len(before) {
				t.Errorf("%s: the bucket was asked: %v", what, after[len(before):])
			}
		})
	}
}

func TestBoxReachesNoSnapshotOfAnother(t *testing.T) {
	a := newAsylum(t)
	a.keeping()
	a.saves("s1", "the other's")
	commontest.OK(t, a.store.SaveBox(t.Context(), storage.Box{ID: "evil/s", State: storage.Awake, Gen: 9, Runner: "e", Conn: "e"}))
	for _, f := range []frametest.Frame{
		{Box: asylumBox, Runner: "e", Gen: asylumGen}, // in the other's name
		{Box: asylumBox, Gen: asylumGen},
		{Box: "nobody/s", Gen: 1},
		{Box: "nobody/s", Runner: "e", Gen: 1},
	} {
		for _, kind := range []frame.Type{frame.Get, frame.Put, frame.Done, frame.Forget} {
			f.Type, f.Owner, f.Size = kind, "s1", 3
			if got := a.asks(f); got.Refused != storage.Fenced {
				t.Errorf("%+v is answered with %+v", f, got)
			}
		}
	}
	// In its own name, the box evil/s may write anything. The other tenant's snapshot
	// stays the same.
	mine := func(kind frame.Type, owner, object string) frametest.Frame {
		return frametest.Frame{Type: kind, Box: "evil/s", Gen: 9, Runner: "e", Owner: owner, Size: 3, Object: object}
	}
	for _, owner := range []string{"s1", "../s/s1", "t/s\x00s1"} {
		if got := a.asks(mine(frame.Get, owner, "")); got.Refused != storage.NotFound {
			t.Errorf("%q: %+v", owner, got)
		}
		if got := a.asks(mine(frame.Put, owner, "")); !strings.HasPrefix(got.URL[strings.Index(got.URL, "/kept/"):], "/kept/evil/s/") {
			t.Errorf("%q: %s", owner, got.URL)
		}
		a.asks(mine(frame.Forget, owner, ""))
	}
	for _, object := range []string{"", "current", "../../../t/s/x", strings.Repeat("x", 200)} {
		if got := a.asks(mine(frame.Done, "s1", object)); got.Refused != storage.Invalid {
			t.Errorf("%q: %+v", object, got)
		}
	}
	if got := a.asks(frametest.Frame{Type: frame.Get, Owner: "s1"}); got.URL == "" {
		t.Errorf("the other's is gone: %+v", got)
	}
}

func TestHostRefusesASnapshotThatIsTooLargeAndAnyWithoutABucket(t *testing.T) {
	a := newAsylum(t)
	put := frametest.Frame{Type: frame.Put, Owner: "s1", Size: bucket.MaxSnapshot + 1}
	if got := a.asks(put); got.Refused != storage.Invalid {
		t.Errorf("without a bucket: %+v", got)
	}
	a.keeping()
	if got := a.asks(put); got.Refused != storage.TooLarge || got.URL != "" {
		t.Errorf("too large: %+v", got)
	}
}

func TestTroubleOfTheBucketIsNoAnswer(t *testing.T) {
	a := newAsylum(t)
	a.keeping().Before(func(*http.Request) int { return http.StatusServiceUnavailable })
	f := frametest.Frame{Type: frame.Get, Owner: "s1", Box: asylumBox, Gen: asylumGen, Runner: "r"}
	if reply, err := a.say(f); !errors.Is(err, storage.Unavailable) {
		t.Errorf("answered with %+v, %v", reply, err)
	}
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

func (a *asylum) ends() {
	a.t.Helper()
	commontest.OK(a.t, a.host.End(a.t.Context(), a.caller, "s1"))
}

func TestSnapshotOfASessionThatEndsInItsSleepGoesWithTheNextSweep(t *testing.T) {
	a := newAsylum(t)
	s3 := a.keeping()
	a.saves("s1", "one")
	a.changes(func(b *storage.Box) { b.State = storage.Asleep })
	before := len(s3.Requests())
	a.ends()
	if n := len(s3.Requests()); n != before {
		t.Error("whoever ended it waited for the bucket")
	}
	commontest.EqualIn(t, "ended", "2 objects, 1 items, due: true", a.left(s3))
	a.sweep()
	commontest.EqualIn(t, "swept", "0 objects, 0 items, due: false", a.left(s3))
	if a.starts > 0 {
		t.Error("a box was started for it")
	}
}

func TestSnapshotIsRemovedAtOnceByWhoeverCanAndOtherwiseLater(t *testing.T) {
	for _, down := range []bool{false, true} {
		a := newAsylum(t)
		s3 := a.keeping()
		a.host = sessions.New(a.store, relayserver.NewBackend(a.config), sessions.Limits{})
		a.saves("s1", "one")
		a.changes(func(b *storage.Box) { b.State = storage.Asleep })
		if down {
			s3.Before(func(*http.Request) int { return http.StatusServiceUnavailable })
		}
		a.ends()
		if down {
			if err := relayserver.NewSweeper(a.config).Sweep(t.Context()); err == nil {
				t.Error("the sweep does not say that the bucket is down")
			}
			s3.Before(nil)
			a.sweep()
		}
		commontest.EqualIn(t, fmt.Sprintf("bucket down: %t", down), "0 objects, 0 items, due: false", a.left(s3))
	}
}

func TestAwakeBoxIsToldOfAnEndedSessionUntilItForgets(t *testing.T) {
	a := newAsylum(t)
	s3 := a.keeping()
	a.saves("s1", "one")
	a.ends() // and its stop is lost
	a.sweep()
	if n := len(a.posted(frame.TypeStop)); n != 2 {
		t.Errorf("it was told %d times", n)
	}
	commontest.EqualIn(t, "before", "2 objects, 1 items, due: true", a.left(s3))
	a.asks(frametest.Frame{Type: frame.Forget, Owner: "s1"})
	if got := a.left(s3); got != "0 objects, 0 items, due: true" { // since it is awake
		t.Errorf("after: %s", got)
	}
}

func TestSnapshotThatAnEndedSessionLeavesWhenItsBoxFallsAsleepGoesToo(t *testing.T) {
	a := newAsylum(t)
	s3 := a.keeping()
	a.ends() // and its stop is lost
	a.saves("s1", "what its process had left")
	a.changes(func(b *storage.Box) { b.State = storage.Asleep })
	a.sweep()
	commontest.EqualIn(t, "swept", "0 objects, 0 items, due: false", a.left(s3))
}

func TestLeftoverWakesNobodyAndIsDeliveredToNobody(t *testing.T) {
	a := newAsylum(t)
	a.keeping()
	a.config.Forget = nil // as of a function without rights
	a.ends()
	a.sweep()
	if f := a.handle(frametest.Frame{Type: frame.TypePull, Box: asylumBox, Gen: asylumGen, Runner: "r", N: 1}); f.Type != frame.TypePulled || len(f.IDs) > 0 {
		t.Errorf("pulled %+v", f)
	}
	a.changes(func(b *storage.Box) { b.State = storage.Asleep })
	a.sweep()
	if a.starts > 0 || len(a.posted(frame.TypeDeliver)) > 0 || len(a.posted(frame.TypeNudge)) > 0 {
		t.Errorf("%d starts, posts %+v", a.starts, a.posts)
	}
}

func TestServerThatKeepsNothingLeavesNothingBehind(t *testing.T) {
	a := newAsylum(t)
	s3 := a.keeping()
	a.config.Kept = func(string) bool { return false }
	a.host = sessions.New(a.store, relayserver.NewBackend(a.config), sessions.Limits{})
	a.changes(func(b *storage.Box) { b.State = storage.Asleep })
	a.store.Reset()
	a.ends()
	if n := a.store.Counts(); n.Writes != 1 {
		t.Errorf("it took %v", n.Calls)
	}
	commontest.Equal(t, "0 objects, 0 items, due: false", a.left(s3))
}
