package runner_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/runner"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// gate stands between a runner and the bench's network. It refuses connections, sets the
// errors with which others end, and records when each was dialed.
type gate struct {
	mu     sync.Mutex
	seed   uint64
	refuse error // of every dial; nil lets it through
	ending error // the error of a connection that is cut; nil for io.EOF
	dials  []time.Time
}

func (g *gate) at(c *runner.Config) {
	dial := c.Dial
	c.Rand = rand.New(rand.NewPCG(g.seed, 0))
	c.Dial = func(ctx context.Context, url string, header http.Header) (runner.Conn, error) {
		g.mu.Lock()
		g.dials = append(g.dials, time.Now())
		refuse := g.refuse
		g.mu.Unlock()
		if refuse != nil {
			return nil, refuse
		}
		conn, err := dial(ctx, url, header)
		return gatedConn{conn, g}, err
	}
}

func (g *gate) set(refuse, ending error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.refuse, g.ending = refuse, ending
}

// gaps returns the times between consecutive dials, beginning with dial number from.
func (g *gate) gaps(from int) []time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	var gaps []time.Duration
	for i := from + 1; i < len(g.dials); i++ {
		gaps = append(gaps, g.dials[i].Sub(g.dials[i-1]))
	}
	return gaps
}

type gatedConn struct {
	runner.Conn
	g *gate
}

func (c gatedConn) Receive() ([]byte, error) {
	data, err := c.Conn.Receive()
	c.g.mu.Lock()
	defer c.g.mu.Unlock()
	if err != nil && c.g.ending != nil {
		err = c.g.ending
	}
	return data, err
}

func closedWith(code runner.CloseCode) error { return &runner.ClosedError{Code: code} }

func TestConnectionClosedAsFencedStopsTheRunner(t *testing.T) {
	var g gate
	onAwakeBench(t, func(b *bench) {
		g.set(nil, closedWith(runner.CloseFenced))
		b.conn.cut()
		b.returnedWith(storage.Fenced)
	}, g.at)
}

func TestConnectionClosedAsRefusedStopsTheRunner(t *testing.T) {
	for _, code := range []runner.CloseCode{runner.CloseRefused, 4099} {
		var g gate
		onAwakeBench(t, func(b *bench) {
			g.set(nil, closedWith(code))
			b.conn.cut()
			var closed *runner.ClosedError
			if err := b.returned(); storage.CodeOf(err) != storage.Invalid || !errors.As(err, &closed) || closed.Code != code {
				t.Errorf("Run returned %v", err)
			}
		}, g.at)
	}
}

func TestRunnerComesBackAfterOtherCloseCodes(t *testing.T) {
	for _, code := range []runner.CloseCode{1000, 1001, 1006, 1011, 1012, 4500} {
		var g gate
		onAwakeBench(t, func(b *bench) {
			b.deliver("d1", fromInbox)
			g.set(nil, closedWith(code))
			b.conn.cut()
			b.welcome(b.dialed(), benchGen)
			b.ends("d1", "end")
			if got := batchOf(b.expect(frame.TypeEvents)); got != "d1@1 end!" {
				t.Errorf("after code %d: %s", code, got)
			}
			if gap := g.gaps(0); gap[0] > time.Second {
				t.Errorf("came back %s after code %d", gap[0], code)
			}
		}, g.at)
	}
}

func TestThrottledRunnerComesBackLater(t *testing.T) {
	for _, code := range []runner.CloseCode{1008, 1013} {
		g := gate{seed: 3}
		onAwakeBench(t, func(b *bench) {
			g.set(nil, closedWith(code))
			b.conn.cut()
			b.dialed()
			if gap := g.gaps(0); gap[0] < time.Second || gap[0] > 11*time.Second {
				t.Errorf("came back %s after code %d", gap[0], code)
			}
		}, g.at)
	}
}

func TestRunnerThatIsNotUnderstoodTimeAndAgainStops(t *testing.T) {
	var g gate
	onAwakeBench(t, func(b *bench) {
		g.set(nil, closedWith(runner.CloseTooBig))
		for range 4 {
			b.conn.cut()
			b.welcome(b.dialed(), benchGen)
		}
		b.conn.cut()
		b.returnedWith(storage.Invalid)
	}, g.at)
}

func TestRunnerThatIsSeldomNotUnderstoodGoesOn(t *testing.T) {
	var g gate
	onAwakeBench(t, func(b *bench) {
		g.set(nil, closedWith(runner.CloseTooBig))
		for range 12 {
			b.conn.cut()
			b.welcome(b.dialed(), benchGen)
			b.pass(4 * time.Minute)
		}
		b.runs()
	}, g.at)
}

func TestHostThatIsBusyIsTriedAgainWithPauses(t *testing.T) {
	for _, status := range []int{403, 429, 503} { // API Gateway also answers 403 when it or the function is throttled
		var g gate
		onAwakeBench(t, func(b *bench) {
			g.set(&runner.RefusedError{Status: status}, nil)
			b.conn.cut()
			time.Sleep(90 * time.Second)
			synctest.Wait()
			b.runs()
			gaps := g.gaps(1)
			if len(gaps) < 7 || len(gaps) > 40 || slices.Max(gaps) > 11*time.Second || slices.Min(gaps) < time.Second {
				t.Errorf("status %d: tried again after %v", status, gaps)
			}
			g.set(nil, nil)
			b.welcome(b.dialed(), benchGen)
			b.pass(time.Hour)
			b.runs()
		}, g.at)
	}
}

func TestRetryAfterIsHeeded(t *testing.T) {
	var g gate
	onAwakeBench(t, func(b *bench) {
		g.set(&runner.RefusedError{Status: 429, After: 17 * time.Second}, nil)
		b.conn.cut()
		time.Sleep(100 * time.Second)
		synctest.Wait()
		if gaps := g.gaps(1); len(gaps) < 3 || slices.Max(gaps) != 17*time.Second || slices.Min(gaps) != 17*time.Second {
			t.Errorf("tried again after %v", gaps)
		}
	}, g.at)
}

func TestRunnerThatIsNotAdmittedDoesNotTryForEver(t *testing.T) {
	g := gate{refuse: &runner.RefusedError{Status: 401}}
	onBench(t, func(b *bench) {
		time.Sleep(time.Minute)
		var refused *runner.RefusedError
		if err := b.returned(); storage.CodeOf(err) != storage.Invalid || !errors.As(err, &refused) || refused.Status != 401 {
			t.Errorf("Run returned %v", err)
		}
		if n := len(g.gaps(0)) + 1; n != 5 {
			t.Errorf("%d attempts", n)
		}
	}, g.at)
}

func TestRefusedRenewalDoesNotEndAConnectionThatWorks(t *testing.T) {
	var g gate
	onAwakeBench(t, func(b *bench) {
		g.set(&runner.RefusedError{Status: 401}, nil)
		b.pass(115 * time.Minute)
		b.runs()
		if n := len(g.gaps(0)); n < 20 {
			t.Errorf("%d attempts in five minutes", n)
		}
		g.set(nil, nil)
		b.welcome(b.dialed(), benchGen)
		b.pass(20 * time.Minute)
		b.runs()
	}, g.at)
}

// moments returns the times at which a runner with a given seed reconnects, after a drain
// and after cuts.
func moments(t *testing.T, seed uint64, drain time.Duration) []time.Duration {
	t.Helper()
	g := gate{seed: seed}
	onAwakeBench(t, func(b *bench) {
		begun := time.Now()
		b.conn.in <- frame.DrainFrame(drain)
		time.Sleep(drain)
		b.welcome(b.dialed(), benchGen)
		g.set(errors.New("network is down"), nil)
		b.conn.cut()
		time.Sleep(20 * time.Second)
		synctest.Wait()
		g.mu.Lock()
		g.dials[0] = begun
		g.mu.Unlock()
	}, g.at)
	return g.gaps(0)
}

func TestPausesFollowFromTheSeed(t *testing.T) {
	first := moments(t, 7, time.Minute)
	if again := moments(t, 7, time.Minute); len(first) < 4 || !slices.Equal(first, again) {
		t.Errorf("got %v, then %v", first, again)
	}
	if other := moments(t, 8, time.Minute); slices.Equal(first, other) {
		t.Errorf("another seed has the same pauses %v", other)
	}
}

func TestDrainedRunnersComeSpreadOut(t *testing.T) {
	var quarter [4]int
	const runners = 60
	for seed := range uint64(runners) {
		at := moments(t, seed, 40*time.Second)[0]
		if at >= 30*time.Second {
			t.Errorf("runner %d came after %s: nothing is left of 40 s to connect in", seed, at)
			continue
		}
		quarter[at/(7500*time.Millisecond)]++
	}
	if slices.Min(quarter[:]) < runners/12 {
		t.Errorf("in each quarter of the time came %v", quarter)
	}
}

func TestDrainDoesNotPutOffARenewal(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.pass(109 * time.Minute)
		b.conn.in <- frame.DrainFrame(24 * time.Hour)
		time.Sleep(time.Minute + time.Second)
		b.connected()
	}, func(c *runner.Config) { c.PingEvery = 7 * time.Minute })
}

func TestDrainThatMakesNoSenseIsFollowedAtOnce(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.send(frametest.Frame{Type: frame.TypeDrain, In: -1 << 62})
		time.Sleep(time.Millisecond)
		b.connected()
	})
}

func TestCloseCodeOfTheHostIsRead(t *testing.T) {
	conn, server := dialRaw(t)
	received := make(chan error, 1)
	go func() {
		_, err := conn.Receive()
		received <- err
	}()
	go server.write(0x88, append([]byte{0x0f, 0xa1}, "somebody newer"...)) // 4001
	if f := server.read(); f.opcode != 8 {
		t.Errorf("the close was answered with opcode %d", f.opcode)
	}
	var closed *runner.ClosedError
	if err := <-received; !errors.As(err, &closed) || closed.Code != runner.CloseFenced || closed.Reason != "somebody newer" {
		t.Errorf("got %v", err)
	}
}

func TestCutConnectionHasNoCloseCode(t *testing.T) {
	conn, server := dialRaw(t)
	_ = server.conn.Close()
	_, err := conn.Receive()
	var closed *runner.ClosedError
	if errors.As(err, &closed) || !errors.Is(err, io.EOF) {
		t.Errorf("got %v", err)
	}
}

func TestRefusalSaysWhenToComeAgain(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "9")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer server.Close()
	_, err := runner.DialWebSocket(t.Context(), "ws"+strings.TrimPrefix(server.URL, "http"), nil)
	var refused *runner.RefusedError
	if !errors.As(err, &refused) || refused.Status != http.StatusTooManyRequests || refused.After != 9*time.Second || !strings.Contains(err.Error(), "429") {
		t.Errorf("got %v", err)
	}
}

func TestAnEmptyMessageIsPassedOverWithoutAWord(t *testing.T) {
	var log bytes.Buffer
	onAwakeBench(t, func(b *bench) {
		log.Reset()
		b.conn.in <- nil
		b.nothing()
		if log.Len() > 0 {
			t.Errorf("the runner says %s", &log)
		}
		b.conn.in <- []byte(`{"message": "Internal server error", "connectionId":"c", "requestId":"r"}`)
		b.nothing()
		if !strings.Contains(log.String(), "no relay frame") {
			t.Errorf("of a message that is no frame the runner says %q", &log)
		}
		if b.runs(); b.conn.isClosed() {
			t.Error("the connection was closed")
		}
	}, func(c *runner.Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
}
