package runner_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/runner"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// replied is the outcome of a request about a snapshot.
type replied struct {
	answer frame.Kept
	err    error
}

func (b *bench) ask(ctx context.Context, f frame.Snapshot) <-chan replied {
	done := make(chan replied, 1)
	go func() {
		a, err := b.runner.Snapshot(ctx, f)
		done <- replied{a, err}
	}()
	return done
}

func TestSnapshotIsAskedForUntilTheHostAnswers(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.box.idleFrom(time.Now())
		done := b.ask(b.t.Context(), frame.Snapshot{Op: frame.Put, Owner: "s1", Size: 7})
		first := b.expect(frame.Put)
		if first.Owner != "s1" || first.Size != 7 || first.Box != benchBox || first.Gen != benchGen || first.Runner == "" {
			t.Errorf("got %+v", first)
		}
		for range 40 { // the box, which has no work, does not sleep meanwhile
			time.Sleep(5 * time.Second)
			commontest.EqualIn(t, "the same request has number", first.N, b.expect(frame.Put).N)
		}
		for range 2 { // both are answered
			b.send(frametest.Frame{Type: frame.TypeKept, N: first.N, URL: "https://x/y", Object: "o", Header: map[string]string{"If-None-Match": "*"}, Saved: 5})
		}
		got := <-done
		if got.err != nil || got.answer.URL != "https://x/y" || got.answer.Object != "o" || got.answer.Header["If-None-Match"] != "*" || got.answer.Saved != 5 {
			t.Errorf("got %+v, %v", got.answer, got.err)
		}
		b.soon(frame.TypeBye, time.Minute)
	}, func(c *runner.Config) { c.PingEvery = time.Hour })
}

func TestWhatTheHostRefusesOfASnapshotHasItsCode(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		for _, code := range []storage.Code{storage.NotFound, storage.Fenced} {
			done := b.ask(b.t.Context(), frame.Snapshot{Op: frame.Get, Owner: "s1"})
			b.send(frametest.Frame{Type: frame.TypeKept, N: b.expect(frame.Get).N, Refused: code})
			if got := <-done; !errors.Is(got.err, code) {
				t.Errorf("%s: %v", code, got.err)
			}
		}
		ctx, cancel := context.WithCancel(b.t.Context())
		done := b.ask(ctx, frame.Snapshot{Op: frame.Get, Owner: "s1"})
		b.expect(frame.Get)
		cancel()
		if got := <-done; !errors.Is(got.err, storage.Unavailable) || !errors.Is(got.err, context.Canceled) {
			t.Errorf("given up: %v", got.err)
		}
		time.Sleep(20 * time.Second)
		b.nothing()
	})
}
