package lambda

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/dormouse-mcp/dormouse/infra/local/localtest"
)

// isolated returns a rig whose function has room for two processes, each with a TMPDIR of
// its own, and the folders that were cleaned.
func isolated(t *testing.T) (r *rig, cleaned func() []string) {
	var mu sync.Mutex
	var folders []string
	r = newRig(t, func(c *PoolConfig) {
		f := &c.Functions[0]
		f.Temp, f.MaxInstances = t.TempDir(), 2
		f.Clean = func(folder string) {
			mu.Lock()
			defer mu.Unlock()
			folders = append(folders, folder)
		}
	})
	return r, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return folders
	}
}

func (r *rig) callFor(tenant string, pairs ...string) reply {
	r.t.Helper()
	inv, err := r.pool.InvokeFor(r.t.Context(), "echo", tenant, localtest.Payload(r.t, "hello", localtest.Query(pairs...)))
	if err != nil {
		return reply{err: err}
	}
	return finish(inv)
}

// temp returns the TMPDIR of the process that serves a tenant.
func (r *rig) temp(tenant string) string {
	r.t.Helper()
	var env []string
	if err := json.Unmarshal([]byte(r.callFor(tenant, "mode", "env").body), &env); err != nil {
		r.t.Fatal(err)
	}
	for n := len(env) - 1; n >= 0; n-- {
		if value, ok := strings.CutPrefix(env[n], "TMPDIR="); ok {
			return value
		}
	}
	return ""
}

func TestAProcessServesOneTenant(t *testing.T) {
	r, cleaned := isolated(t)
	one, other := r.temp("one"), r.temp("other")
	if one == other || one == "" {
		t.Fatalf("the tenants have the folders %q and %q", one, other)
	}
	if err := os.WriteFile(filepath.Join(one, "mark"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if r.temp("one") != one || r.temp("other") != other {
			t.Error("a tenant has got the process of another one, or a second one")
		}
	}
	r.settled(2)
	if !r.pool.Full("echo", "third") || r.pool.Full("echo", "one") {
		t.Error("there is room for the wrong tenants")
	}
	if got := r.callFor("third", "mode", "echo"); !errors.Is(got.err, ErrThrottled) {
		t.Errorf("a third tenant got %+v", got)
	}
	r.callFor("one", "mode", "crash")
	r.await(FunctionCrash)
	if got := cleaned(); len(got) != 1 || got[0] != one {
		t.Errorf("cleaned: %v", got)
	}
	if got := r.temp("third"); got == one || got == other {
		t.Errorf("the third tenant has the folder %s", got)
	}
}

func TestAFunctionWithTenantsRefusesWhatItHasNoRoomFor(t *testing.T) {
	r, _ := isolated(t)
	a := NewAPI(APIConfig{Tenants: r.pool, Functions: r.pool.Names(), Tries: 1})
	t.Cleanup(func() { _ = a.Close(t.Context()) })
	accepted := 0
	for _, c := range []struct {
		tenant string
		want   int
	}{{"", http.StatusBadRequest}, {"one", http.StatusAccepted}, {"other", http.StatusAccepted}, {"third", http.StatusTooManyRequests}} {
		q := invokeRequest(t, "/2015-03-31/functions/echo/invocations", "Event", string(localtest.Payload(t, "", localtest.Query("mode", "slow"))))
		if c.tenant != "" {
			q.Header.Set("X-Amz-Tenant-Id", c.tenant)
		}
		w := httptest.NewRecorder()
		a.ServeHTTP(w, q)
		if w.Code != c.want {
			t.Errorf("tenant %q: %d %s, want %d", c.tenant, w.Code, w.Body, c.want)
		}
		if w.Code == http.StatusAccepted {
			accepted++
		}
		localtest.Eventually(t, "the event has reached a process", func() bool { return r.pool.Status()[0].Invoked == accepted })
	}
}

// While the runtime still writes its answer, another process of the box may ask for the
// next invocation, or answer this one. The Runtime API refuses that.
func TestNobodyGetsAnInvocationWhileAnAnswerIsHeld(t *testing.T) {
	r, g := newRig(t, nil), localtest.NewGate(t)
	done := r.begin("mode", "stream", "n", "1", "gate", g.Path)
	held := g.Arrival()
	f := r.pool.functions["echo"]
	f.mu.Lock()
	var id, request string
	for i := range f.instances {
		id, request = i.id, i.inv.id
	}
	f.mu.Unlock()
	// The program may wait at the gate before the pool has got the head of its answer.
	localtest.Eventually(t, "the process writes its answer", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		for i := range f.instances {
			return i.inv != nil && i.inv.answering
		}
		return false
	})
	base := "http://" + r.pool.listener.Addr().String() + "/" + id + "/2018-06-01/runtime/"
	for path, want := range map[string]int{"GET invocation/next": http.StatusForbidden, "POST invocation/" + request + "/response": http.StatusBadRequest, "POST invocation/" + request + "/error": http.StatusBadRequest, "POST init/error": http.StatusForbidden} {
		method, path, _ := strings.Cut(path, " ")
		q, err := http.NewRequestWithContext(t.Context(), method, base+path, strings.NewReader(`{"forged":true}`))
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%s %s: %d, want %d", method, path, res.StatusCode, want)
		}
	}
	held.Pass()
	held.Pass()
	if got := localtest.Wait(t, done); got.readErr != nil || got.body != "chunk 1\n" {
		t.Errorf("the caller got %+v", got)
	}
}
