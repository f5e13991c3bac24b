//go:build e2e

package dormouse_test

import (
	"cmp"
	"context"
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

// repeatedCalls is the variable with the number of calls of
// TestE2ECallsWithAKeyAreExecutedOnce; make chaos has more.
const repeatedCalls = "DORMOUSE_TEST_REPEATED"

// Clients repeat every call blindly, over two sessions of 2025-11-25 and without one in
// 2026-07-28, and so at the address of all servers, while 150 processes a minute are killed:
// dormouse itself, the machine of the remote server, functions, runners and servers. Each call
// has a key. A server over stdio, one in Go and one that another machine hosts execute no call
// twice. Each call gets an answer, which no later repeat changes. There are several machines
// side by side: while one starts again, the others are killed.
func TestE2ECallsWithAKeyAreExecutedOnce(t *testing.T) {
	t.Parallel()
	calls, err := strconv.Atoi(cmp.Or(os.Getenv(repeatedCalls), "300"))
	commontest.OK(t, err)
	program := probes(t)
	var all repeated
	t.Run("machines", func(t *testing.T) {
		for n := range repeatedMachines {
			t.Run(strconv.Itoa(n), func(t *testing.T) {
				t.Parallel()
				all.of(t, program, (calls+repeatedMachines-1)/repeatedMachines, n%2 == 1)
			})
		}
	})
	commontest.EqualIn(t, "nothing was killed", false, all.kills.Load() == 0)
	t.Logf("%d calls were sent %d times while %d processes were killed; of %d the outcome is not known", calls, all.tries.Load(), all.kills.Load(), all.unknown.Load())
}

// repeatedMachines is how many machines are killed side by side.
const repeatedMachines = 3

// repeated counts what happens at all machines.
type repeated struct{ tries, kills, unknown atomic.Int64 }

// of makes calls at one machine, whose boxes may be processes with runners.
func (r *repeated) of(t *testing.T, program string, calls int, runners bool) {
	const workers = 8
	far := recorded(t)
	far.start()
	files := map[string]string{"one": filepath.Join(t.TempDir(), "calls"), "probe": filepath.Join(t.TempDir(), "calls"), "far": far.calls}
	m := machineOf(t, map[string]any{
		"one":   map[string]any{"command": stdio(t), "args": []string{"-name", "one", "-calls", files["one"]}},
		"probe": map[string]any{"x-dormouse": map[string]any{"native": "probe"}},
		"far":   map[string]any{"url": far.urls["one"], "x-dormouse": map[string]any{"remote": map[string]any{"private": true}}},
	})
	m.own, m.runner = program, runners
	m.start()
	names := []string{"one", "probe", "far"}
	doors := map[string][]*repeater{}
	for _, name := range names {
		for range 2 {
			doors[name] = append(doors[name], &repeater{client: m.session(name)})
		}
		doors[name] = append(doors[name], &repeater{client: m.client(name), modern: true},
			&repeater{client: m.session(m.atOne(name)), prefix: name + "__"},
			&repeater{client: m.client(m.atOne(name)), modern: true, prefix: name + "__"})
	}

	var next, heard atomic.Int64
	var mu sync.Mutex
	answered := map[string]map[string]bool{"one": {}, "probe": {}, "far": {}}
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for {
				n := int(next.Add(1))
				if n > calls {
					return
				}
				name := names[n%len(names)]
				k := keyed{doors: doors[name], tag: fmt.Sprintf("call %d", n), file: files[name], pause: rand.IntN(300), tries: &r.tries, heard: &heard}
				executed := k.insist(t)
				if !executed {
					r.unknown.Add(1)
				}
				mu.Lock()
				answered[name][k.tag] = executed
				mu.Unlock()
			}
		})
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	r.kills.Add(int64(m.killEverything(far, done, &heard)))

	for _, name := range names {
		ran := ranOnce(t, files[name])
		for tag, executed := range answered[name] {
			if executed && !slices.Contains(ran, tag) {
				t.Errorf("%s of %s was answered, and never ran", tag, name)
			}
		}
	}
}

// killEverything kills this machine's part of 150 processes a minute until done: dormouse, or
// what it has started, and the same of the far machine. It kills nothing while one of the two
// starts again, so it aims at 170. It kills none while no answer has come
// since the last kill, up to two seconds: a loaded machine may start processes no faster than
// they die. Then it kills several at once, as many as are due.
func (m *machine) killEverything(far *machine, done <-chan struct{}, heard *atomic.Int64) (kills int) {
	m.t.Helper()
	const every = repeatedMachines * time.Minute / 170
	tick := time.NewTicker(every / 4)
	defer tick.Stop()
	last, at, begun := int64(0), time.Now(), time.Now()
	for {
		select {
		case <-done:
			return kills
		case <-tick.C:
		}
		due := int(time.Since(begun)/every) - kills
		n := heard.Load()
		if due <= 0 || n == last && time.Since(at) < 2*time.Second {
			continue
		}
		last, at = n, time.Now()
		own := func(p process) bool { return p.program == "dormouse" }
		all := slices.Concat(slices.DeleteFunc(m.processes(), own), slices.DeleteFunc(far.processes(), own))
		for ; due > 0; due-- {
			kills++
			if len(all) == 0 || rand.IntN(8) == 0 {
				[]*machine{m, m, far}[rand.IntN(3)].restart() // what it had started ends, too
				break
			}
			i := rand.IntN(len(all))
			m.kill(all[i])
			all = slices.Delete(all, i, i+1)
		}
	}
}

// atOne adds the address of all servers to the machine's URLs, and returns its name
// there.
func (m *machine) atOne(server string) string {
	m.urls["/mcp"] = strings.Replace(m.urls[server], "/"+server+"/mcp", "/mcp", 1)
	return "/mcp"
}

// repeater is a way to a server.
type repeater struct {
	*client
	modern bool
	prefix string // of its tools' names
}

type keyed struct {
	doors     []*repeater
	tag, file string
	pause     int // of the tool, in milliseconds

	tries, heard *atomic.Int64 // of all calls: how often they were sent, and the answers
}

// insist repeats the call until it has an answer, and then until two repeats have confirmed
// it. It reports whether the answer is a result.
func (k keyed) insist(t *testing.T) (executed bool) {
	deadline := time.Now().Add(patience)
	var answers []string
	for n := 0; len(answers) < 3; n++ {
		if time.Now().After(deadline) {
			t.Errorf("%s has the answers %q after %s and %d repeats", k.tag, answers, patience, n)
			return false
		}
		d := k.doors[rand.IntN(len(k.doors))]
		answer, ok := d.try(t, k)
		if ok {
			k.heard.Add(1)
		}
		if !ok {
			select { // dormouse may be down at this moment
			case <-time.After(20 * time.Millisecond):
			case <-t.Context().Done():
			}
			continue
		}
		answers = append(answers, answer)
	}
	// The first request may say that the outcome is not known to it. The others have what the
	// log says.
	if answers[1] != answers[2] || answers[0] != answers[1] && answers[0] == "result" {
		t.Errorf("%s has the answers %q", k.tag, answers)
	}
	return answers[2] == "result"
}

// try sends the call once, with little patience. ok is false if there is no answer yet.
func (d *repeater) try(t *testing.T, k keyed) (answer string, ok bool) {
	k.tries.Add(1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(20+rand.IntN(3000))*time.Millisecond)
	defer cancel()
	tool, arguments := "work", fmt.Sprintf(`{"tag":%q,"before":1,"pause":%d}`, k.tag, k.pause)
	if strings.HasSuffix(d.url, "/probe/mcp") || d.prefix == "probe__" {
		tool, arguments = "note", fmt.Sprintf(`{"tag":%q,"file":%q,"pause":%d}`, k.tag, k.file, k.pause)
	}
	meta := `"progressToken":"t","` + wire.MetaIdempotencyKey + `":"` + k.tag + `"`
	if d.modern {
		meta += `,"` + wire.MetaProtocolVersion + `":"` + wire.V20260728 + `","` + wire.MetaClientCapabilities + `":{}`
	}
	id := d.id()
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":%q,"arguments":%s,"_meta":{%s}}}`, id, d.prefix+tool, arguments, meta)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, d.url, strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return "", false
	}
	if d.modern {
		r.Header.Set(wire.HeaderProtocolVersion, wire.V20260728)
		r.Header.Set(wire.HeaderMethod, wire.MethodToolsCall)
		r.Header.Set(wire.HeaderName, d.prefix+tool)
	} else {
		r.Header.Set(wire.HeaderSessionID, d.session)
		r.Header.Set(wire.HeaderProtocolVersion, wire.V20251125)
	}
	s, err := d.do(r)
	if err != nil {
		return "", false
	}
	defer s.close()
	m, err := s.response(id)
	if err != nil {
		return "", false
	}
	switch {
	case m.Error == nil && string(wire.Lookup(m.Result, "isError")) != "true":
		return "result", true
	case m.Error == nil:
		t.Errorf("%s got %s", k.tag, m.Raw)
		return "refusal", true
	}
	code := string(wire.Lookup(m.Raw, "error", "code"))
	final := code == strconv.Itoa(int(wire.CodeOutcomeUnknown)) || code == strconv.Itoa(int(wire.CodeInternal)) && string(wire.Lookup(m.Raw, "error", "data", "notExecuted")) != "true"
	return "error " + code, final
}
