//go:build e2e

package dormouse_test

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/runner"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// soakTime is the variable with the length of TestE2ESoak.
const soakTime = "DORMOUSE_TEST_SOAK"

// soakListed is the variable that has the server of one tenant reach a list of hosts only, so
// that it is sealed, if it is not "". make chaos sets it.
const soakListed = "DORMOUSE_TEST_SOAK_LISTED"

// soakSessions is how many sessions each tenant has.
const soakSessions = 2

// Sessions of two tenants make calls while dormouse itself, its runners and servers are
// killed. Dormouse is killed only in the first half, so that growth in the second half
// shows. No call runs twice, each accepted call ends, and each session continues. No
// client gets a byte of the other tenant. Memory and descriptors return to their first
// values.
func TestE2ESoak(t *testing.T) {
	lasts, err := time.ParseDuration(cmp.Or(os.Getenv(soakTime), "10s"))
	commontest.OK(t, err)
	tenants := []string{"crimson", "azure"}
	hosted := servers{}
	logs := t.TempDir()
	for _, name := range tenants {
		hosted[name] = []string{"-calls", filepath.Join(logs, name)}
	}
	listed := os.Getenv(soakListed) != ""
	if listed {
		hosted["azure"] = []string{"-calls", "${workspaceFolder}/azure"}
	}
	file := hosted.file(t)
	if listed {
		file["azure"].(map[string]any)["x-dormouse"] = map[string]any{"box": map[string]any{"network": []string{"api.github.com", "*.slack.com:443"}, "host_path": logs, "host_path_mode": "rw"}} //nolint:forcetypeassert // see file
	}
	m := machineOf(t, file)
	if listed {
		m.env = append(m.env, "PATH="+filepath.Dir(keeper(t))+":"+os.Getenv("PATH"))
	}
	m.ours(`{"profile": "none"}`) // the servers note their calls outside of their workspaces
	m.start("--access", "keys")
	var clients []*client
	seen := &marks{}
	for i, name := range tenants {
		key := m.keys("create", "ada", "--tenant", name, "--server", name)
		for range soakSessions {
			c := m.as(key, name)
			c.mark = name
			c.http = &http.Client{Transport: &markedTrip{RoundTripper: c.http.Transport, own: name, foreign: tenants[1-i], seen: seen}}
			clients = append(clients, c)
		}
	}
	over, done := time.After(lasts), make(chan struct{})
	made := keepCalling(clients, done)
	killed := m.killForAWhile(lasts/2, over)
	close(done)
	calls := made()
	alive(t, clients)
	ran := 0
	for _, name := range tenants {
		all := ranOnce(t, filepath.Join(logs, name))
		ran += len(all)
		for _, tag := range all {
			if !strings.HasPrefix(tag, name) {
				t.Errorf("a server of %s was told to execute %q", name, tag)
			}
		}
	}
	if seen.foreign.Load() > 0 || seen.own.Load() == 0 {
		t.Errorf("the other tenant's mark came %d times, the own one %d times", seen.foreign.Load(), seen.own.Load())
	}
	after := m.settled(killed.start.plus(64<<20, 20))
	t.Logf("killed: dormouse %d, runners and servers %d times; %d calls made (also into a dormouse that was down), %d ran; %d bytes read, own mark %d times, the other's %d times",
		killed.hosts, killed.others, calls, ran, seen.bytes.Load(), seen.own.Load(), seen.foreign.Load())
	t.Logf("half way: %s; when all was over: %s", killed.start, after)
}

// kills counts the kills, and keeps what the machine used when dormouse was killed for the
// last time.
type kills struct {
	hosts, others int
	start         taken
}

// killForAWhile kills a process every second until over. The victims include dormouse
// until half has passed.
func (m *machine) killForAWhile(half time.Duration, over <-chan time.Time) (k kills) {
	m.t.Helper()
	begun := time.Now()
	settled := false
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-over:
			if !settled {
				k.start = m.taken()
			}
			return k
		case <-tick.C:
		}
		hosts := time.Since(begun) < half
		if hosts && (k.hosts == 0 || rand.IntN(2) == 0) {
			m.restart()
			k.hosts++
			continue
		}
		if !hosts && !settled && len(m.those("stdio", runner.Keeper)) > soakSessions {
			k.start, settled = m.taken(), true
		}
		if all := m.those("runner", "stdio", runner.Keeper); len(all) > 0 {
			m.kill(all[rand.IntN(len(all))])
			k.others++
		}
	}
}

func (k taken) plus(memory, files int) taken {
	return taken{k.memory + memory, k.files + files, k.rows + 2*soakSessions*sessionRows}
}

// marks counts what clients have read.
type marks struct{ bytes, own, foreign atomic.Int64 }

// markedTrip counts marks in everything that a client reads.
type markedTrip struct {
	http.RoundTripper
	own, foreign string
	seen         *marks
}

func (k *markedTrip) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := k.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	head := fmt.Sprint(res.Header)
	if strings.Contains(head, k.foreign) {
		k.seen.foreign.Add(1)
	}
	res.Body = &markedBody{ReadCloser: res.Body, trip: k}
	return res, nil
}

type markedBody struct {
	io.ReadCloser
	trip *markedTrip
	tail []byte // the end of the data so far, which may be the beginning of a mark
}

func (b *markedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.trip.seen.bytes.Add(int64(n))
	text := append(b.tail, p[:n]...)
	for word, count := range map[string]*atomic.Int64{b.trip.own: &b.trip.seen.own, b.trip.foreign: &b.trip.seen.foreign} {
		// Do not count whole marks in the tail again.
		count.Add(int64(bytes.Count(text, []byte(word)) - bytes.Count(b.tail, []byte(word))))
	}
	b.tail = bytes.Clone(text[max(0, len(text)-len(b.trip.own)-len(b.trip.foreign)):])
	return n, err
}
