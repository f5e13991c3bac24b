package runner_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/runner"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func closedWith(code runner.CloseCode) error { return &runner.ClosedError{Code: code} }

func TestConnectionClosedAsRefusedStopsTheRunner(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.wire.set(nil, closedWith(4099))
		b.conn.cut()
		var closed *runner.ClosedError
		if err := b.returned(); storage.CodeOf(err) != storage.Invalid || !errors.As(err, &closed) || closed.Code != 4099 {
			t.Errorf("Run returned %v", err)
		}
	})
}

func TestRunnerThatIsNotUnderstoodTimeAndAgainStops(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.wire.set(nil, closedWith(runner.CloseTooBig))
		for range 12 {
			b.conn.cut()
			b.welcome(b.dialed(), benchGen)
			b.pass(4 * time.Minute)
		}
		for range 4 {
			b.runs()
			b.conn.cut()
			b.welcome(b.dialed(), benchGen)
		}
		b.conn.cut()
		b.returnedWith(storage.Invalid)
	})
}

func TestHostThatIsBusyIsTriedAgainWithPauses(t *testing.T) {
	for name, row := range map[string]struct {
		refusal     runner.RefusedError
		least, most time.Duration
	}{
		"of its own":        {runner.RefusedError{Status: 403}, time.Second, 11 * time.Second}, // API Gateway also answers 403 when it is throttled
		"that the host set": {runner.RefusedError{Status: 429, After: 17 * time.Second}, 17 * time.Second, 17 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			onAwakeBench(t, func(b *bench) {
				b.wire.set(&row.refusal, nil)
				b.conn.cut()
				time.Sleep(90 * time.Second)
				synctest.Wait()
				b.runs()
				if gaps := b.wire.gaps()[1:]; len(gaps) < 3 || len(gaps) > 40 || slices.Max(gaps) > row.most || slices.Min(gaps) < row.least {
					t.Errorf("tried again after %v", gaps)
				}
				b.wire.set(nil, nil)
				b.welcome(b.dialed(), benchGen)
				b.pass(time.Hour)
			})
		})
	}
}

func TestRunnerThatIsNotAdmittedDoesNotTryForEver(t *testing.T) {
	tries := 0
	onBench(t, func(b *bench) {
		time.Sleep(time.Minute)
		var refused *runner.RefusedError
		if err := b.returned(); storage.CodeOf(err) != storage.Invalid || !errors.As(err, &refused) || refused.Status != 401 {
			t.Errorf("Run returned %v", err)
		}
		commontest.Equal(t, 5, tries)
	}, func(c *runner.Config) {
		c.Dial = func(context.Context, string, http.Header) (runner.Conn, error) {
			tries++
			return nil, &runner.RefusedError{Status: 401}
		}
	})
}

func TestRefusedRenewalDoesNotEndAConnectionThatWorks(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.wire.set(&runner.RefusedError{Status: 401}, nil)
		b.pass(115 * time.Minute)
		b.runs()
		if n := len(b.wire.gaps()); n < 20 {
			t.Errorf("%d attempts in five minutes", n)
		}
		b.wire.set(nil, nil)
		b.welcome(b.dialed(), benchGen)
		b.pass(20 * time.Minute)
	})
}

func TestDrainedRunnersComeSpreadOut(t *testing.T) {
	const runners, drain = 60, 40 * time.Second
	var quarter [4]int
	for seed := range uint64(runners) {
		onAwakeBench(t, func(b *bench) {
			begun := time.Now()
			b.conn.in <- frame.DrainFrame(drain)
			for len(b.wire.dialed) == 0 {
				time.Sleep(100 * time.Millisecond)
				synctest.Wait()
			}
			if at := time.Since(begun); at >= 30*time.Second {
				t.Errorf("runner %d came after %s: nothing is left of %s to connect in", seed, at, drain)
			} else {
				quarter[at/(7500*time.Millisecond)]++
			}
		}, func(c *runner.Config) { c.Rand = rand.New(rand.NewPCG(seed, 0)) })
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
	commontest.EqualIn(t, "the close was answered with opcode", 8, server.read().opcode)
	var closed *runner.ClosedError
	if err := <-received; !errors.As(err, &closed) || closed.Code != runner.CloseFenced || closed.Reason != "somebody newer" {
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
	if !errors.As(err, &refused) || refused.Status != http.StatusTooManyRequests || refused.After != 9*time.Second {
		t.Errorf("got %v", err)
	}
}
