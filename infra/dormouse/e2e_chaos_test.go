//go:build e2e

package dormouse_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// TestE2EEveryCallEndsWhateverDies makes calls in a few sessions while the test kills
// the programs under them. An accepted call ends once, in its result or in an error
// with a phase. No call runs twice, and every session works afterwards. The test kills at
// random, so look into a failure with the log rather than the seed.
func TestE2EEveryCallEndsWhateverDies(t *testing.T) {
	t.Parallel()
	const sessions, calls, kills = 4, 30, 60
	m := recorded(t).asPrograms()
	m.start()
	clients := m.sessions(sessions)

	var callers sync.WaitGroup
	done := make(chan struct{})
	for i, c := range clients {
		callers.Go(func() {
			for n := range calls {
				c.survive(fmt.Sprintf("session %d call %d", i, n))
			}
		})
	}
	go func() {
		callers.Wait()
		close(done)
	}()
	m.killAround(kills, done)
	<-done

	ranOnce(t, m.calls)
	alive(t, clients)
}

// sessions opens sessions of the server one.
func (m *machine) sessions(n int) (all []*client) {
	m.t.Helper()
	for range n {
		all = append(all, m.session("one"))
	}
	return all
}

// alive checks that sessions go on when all is over.
func alive(t *testing.T, sessions []*client) {
	t.Helper()
	for i, c := range sessions {
		if got := c.text("echo", `{"text":"alive"}`); got != "alive" {
			t.Errorf("session %d at %s says %q when all is over", i, c.url, got)
		}
	}
}

// hostKills is the variable with the number of times that
// TestE2ECallsEndThoughTheHostIsKilled kills dormouse itself, once a second.
// DORMOUSE_TEST_KILLS=60 makes it a minute.
const hostKills = "DORMOUSE_TEST_KILLS"

// Sessions of two servers, one inside of dormouse and one with a runner, make calls while
// dormouse itself is killed every second and restarted at once, and a runner or a server three
// times a second. The test requires the same as [TestE2EEveryCallEndsWhateverDies].
func TestE2ECallsEndThoughTheHostIsKilled(t *testing.T) {
	t.Parallel()
	kills, err := strconv.Atoi(cmp.Or(os.Getenv(hostKills), "8"))
	commontest.OK(t, err)
	const sessions = 2 // of each server
	for _, durability := range []string{"process", "disk"} {
		t.Run(durability, func(t *testing.T) {
			t.Parallel()
			m := recorded(t)
			m.calls = filepath.Join(stdioFolder, "calls-"+durability) // a confined server is another user
			write(t, m.calls, "")
			commontest.OK(t, os.Chmod(m.calls, 0o666))
			hosted := map[string]any{}
			servers := map[string]map[string]any{"one": {}, "confined": {"memory_mb": 512}}
			if m.invokes() { // the folder of such a box is closed to the other user
				delete(servers, "confined")
			}
			for name, box := range servers {
				hosted[name] = map[string]any{
					"command": stdio(t), "args": []string{"-name", name, "-calls", m.calls}, "x-dormouse": map[string]any{"box": box},
				}
			}
			text, err := json.Marshal(map[string]any{"mcpServers": hosted})
			commontest.OK(t, err)
			write(t, m.servers, string(text))
			m.start("--durability", durability)
			var clients []*client
			for name := range servers {
				for range sessions {
					clients = append(clients, m.session(name))
				}
			}
			done := make(chan struct{})
			made := keepCalling(clients, done)
			tick := time.NewTicker(time.Second / 4)
			defer tick.Stop()
			beside := map[string]int{}
			for n := range 4 * kills {
				<-tick.C
				if n%4 == 3 {
					m.restart()
				} else if p, ok := m.killOne(); ok {
					beside[p.program]++
				}
			}
			close(done)
			t.Logf("dormouse was killed %d times, and beside it %v; %d calls were made, %d ran", kills, beside, made(), len(ranOnce(t, m.calls)))
			alive(t, clients)
		})
	}
}

// keepCalling has each client make one call after the other during the kills, until done. The tag
// of a call begins with the client's mark. made waits for the end of all, and returns how many
// there were.
func keepCalling(clients []*client, done <-chan struct{}) (made func() int64) {
	var callers sync.WaitGroup
	var calls atomic.Int64
	for i, c := range clients {
		callers.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-done:
					return
				case <-time.After(20 * time.Millisecond): // while dormouse is down, calls fail at once
					c.survive(strings.TrimSpace(fmt.Sprintf("%s session %d call %d", c.mark, i, n)))
					calls.Add(1)
				}
			}
		})
	}
	return func() int64 {
		callers.Wait()
		return calls.Load()
	}
}

// killAround kills one process after the other, at random, until done.
func (m *machine) killAround(kills int, done <-chan struct{}) {
	tick := time.NewTicker(150 * time.Millisecond)
	defer tick.Stop()
	for range kills {
		select {
		case <-done:
			return
		case <-tick.C:
		}
		m.killOne()
	}
}

// killOne kills one process at random, but not dormouse itself. ok is false if there is none.
func (m *machine) killOne() (p process, ok bool) {
	all := slices.DeleteFunc(m.processes(), func(p process) bool { return p.program == "dormouse" })
	if len(all) == 0 {
		return p, false
	}
	p = all[rand.IntN(len(all))]
	m.kill(p)
	return p, true
}

// survivable is how long a call may take whose programs are killed. The sweep that ends the
// calls of a lost box may be killed too, and the next one comes a minute later.
const survivable = patience + 3*time.Minute

// survive makes a call during the kills, and polls for its end as long as it has a cursor.
// Without a cursor the call was not accepted, so it need not end.
func (c *client) survive(tag string) {
	ctx, cancel := context.WithTimeout(c.t.Context(), survivable)
	defer cancel()
	id, last := c.id(), ""
	var all []wire.Message
	s, err := c.send(ctx, http.MethodPost, "", c.request(id, "work", fmt.Sprintf(`{"before":2,"after":2,"pause":50,"tag":%q,"mark":%t}`, tag, c.mark != "")))
	for ctx.Err() == nil {
		if err == nil && s.status == http.StatusOK {
			more, _ := s.messages() // read up to the end, or to the cut that this test makes
			all, last = append(all, more...), s.last
			s.close()
		} else if err == nil {
			s.close()
		}
		if n := len(all); n > 0 && all[n-1].Kind == wire.Response {
			c.wantEnd(tag, id, all)
			return
		}
		if last == "" {
			return
		}
		if err != nil { // the test has just killed the program that listened there
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
			}
		}
		s, err = c.send(ctx, http.MethodGet, last, "")
	}
	c.t.Errorf("%s was accepted and has no end after %s: %v, %v", tag, survivable, ended(all), errors.Join(err, ctx.Err()))
}

// wantEnd checks that each message came once and in order, and that the end explains what
// happened.
func (c *client) wantEnd(tag, id string, all []wire.Message) {
	got := ended(all)
	for n, what := range got[:len(got)-1] {
		if want := fmt.Sprintf("progress %d", n+1); what != want {
			c.t.Errorf("%s: message %d is %s, want %s: %v", tag, n, what, want, got)
		}
	}
	end := all[len(all)-1]
	if string(end.ID) != id {
		c.t.Errorf("%s: ended in %s, want a response to %s", tag, end.Raw, id)
	}
	if end.Error == nil {
		if len(got) != 5 || textOf(end) != "worked" {
			c.t.Errorf("%s: result %s behind %v", tag, end.Raw, got)
		}
		return
	}
	if f, err := failureOf(end); err != nil || f.Data.Phase == "" || f.Message == "" {
		c.t.Errorf("%s: ended in %s, want a phase and what happened", tag, end.Raw)
	}
}
