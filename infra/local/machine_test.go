package local

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/functions/wiring/endpoints"
	"github.com/dormouse-mcp/dormouse/infra/local/datafolder"
	"github.com/dormouse-mcp/dormouse/infra/local/scheduler"
	"github.com/dormouse-mcp/dormouse/shared/backend/native"
	"github.com/dormouse-mcp/dormouse/shared/backend/native/nativetest"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

// configured returns a machine that hosts one native server. The end of the test stops
// it.
func configured(t testing.TB, change func(*Config)) *machine {
	t.Helper()
	dir := t.TempDir()
	servers := filepath.Join(dir, "servers.json")
	commontest.OK(t, os.WriteFile(servers, []byte(`{"mcpServers":{"counter":{"x-dormouse":{"native":"counter"}}}}`), 0o600))
	cfg := Config{
		Listen: "127.0.0.1:0", Servers: servers, Data: filepath.Join(dir, "data"), Runner: []string{"/does/not/exist"},
		Native: nativetest.Servers(), Idle: time.Minute, Log: io.Discard,
	}
	if change != nil {
		change(&cfg)
	}
	m := newMachine(cfg)
	t.Cleanup(func() { m.stop(context.WithoutCancel(t.Context())) })
	return m
}

func TestAMachineWhoseStoreCannotBeOpenedSaysSo(t *testing.T) {
	m := configured(t, func(c *Config) {
		c.Store = "sqlite:" + filepath.Join(filepath.Dir(c.Servers), "other.db")
		commontest.OK(t, os.WriteFile(strings.TrimPrefix(c.Store, "sqlite:"), []byte("a text, and no database at all"), 0o600))
	})
	if err := m.start(t.Context()); err == nil || !strings.Contains(err.Error(), "is not a session store") {
		t.Errorf("the error is %v", err)
	}
	m.stop(t.Context())
}

func started(t testing.TB, change func(*Config)) *machine {
	t.Helper()
	m := configured(t, change)
	commontest.OK(t, m.start(t.Context()))
	return m
}

func request(t *testing.T, client *http.Client, method, target, authorization, body string) (status int, answer string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
	commontest.OK(t, err)
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	r.Header.Set("X-Amz-Invocation-Type", "Event")
	r.Header.Set("X-Amz-Date", "20000101T000000Z")
	res, err := client.Do(r)
	commontest.OK(t, err)
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	commontest.OK(t, err)
	return res.StatusCode, string(text)
}

func TestTheControlSocketAnswersThoseWhoReadTheDataFolder(t *testing.T) {
	m := started(t, nil)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", m.folder.Socket("control"))
	}}}
	other := t.TempDir()
	folder, err := datafolder.Open(other)
	commontest.OK(t, err)
	foreign, key := folder.Key(), m.folder.Key()
	folder.Close()
	for _, path := range []string{"", "servers", "processes", "bill"} {
		for _, says := range []string{"", "Bearer ", "Bearer " + foreign, key, "Bearer " + hex.EncodeToString(m.folder.Secret)} {
			if status, text := request(t, client, http.MethodGet, "http://local"+api.Prefix+path, says, ""); status != http.StatusUnauthorized || strings.Contains(text, "servers") {
				t.Errorf("%s, who says %.10q: %d %s, want 401", path, says, status, text)
			}
		}
	}
	if status, _ := request(t, client, http.MethodGet, "http://local/api/v1/processes", "Bearer "+key, ""); status != http.StatusOK {
		t.Errorf("who has the key: %d", status)
	}
	var info api.Info
	if up, err := operate(t, m.folder.Path, http.MethodGet, "", &info); err != nil || !up || info.URL != m.public.address(0) || info.Access != AccessOpen {
		t.Errorf("what it says of itself: %+v, %v, %v", info, up, err)
	}
	var s api.Status
	if up, err := operate(t, m.folder.Path, http.MethodGet, "processes", &s); err != nil || !up || s.Boxes == nil {
		t.Errorf("what runs: %+v, %v, %v", s, up, err)
	}
	if up, err := operate(t, other, http.MethodGet, "", &info); up || err != nil {
		t.Errorf("where nothing runs: %v, %v", up, err)
	}
}

// operate sends a request to the API for operators, on the control socket of a data
// folder. up is false if no machine runs on the folder.
func operate(t *testing.T, folder, method, path string, into any) (up bool, err error) {
	t.Helper()
	transport, key, up, err := Control(t.Context(), folder)
	if err != nil || !up {
		return up, err
	}
	defer transport.CloseIdleConnections()
	_, text := request(t, &http.Client{Transport: transport}, method, "http://local"+api.Prefix+path, "Bearer "+key, "")
	return true, json.Unmarshal([]byte(text), into)
}

// A failed start returns the error, and ends the parts that it has already started.
func TestAStartThatFailsEnds(t *testing.T) {
	m := configured(t, func(c *Config) {
		commontest.OK(t, errors.Join(os.Mkdir(c.Data, 0o700), os.WriteFile(filepath.Join(c.Data, "schedules"), nil, 0o600)))
	})
	if err := m.start(t.Context()); err == nil || !strings.Contains(err.Error(), "schedules") {
		t.Errorf("it starts: %v", err)
	}
}

// alarmed returns the handlers of one machine, with schedules in a folder.
func alarmed(t *testing.T, folder string, handle func(context.Context, native.Alarm) error) *inprocess {
	t.Helper()
	in := &inprocess{m: &machine{log: slog.New(slog.DiscardHandler)}}
	in.made.Store(&handlers{http: endpoints.HTTP{Alarm: handle}})
	in.ctx, in.cancel = context.WithCancel(context.WithoutCancel(t.Context()))
	var err error
	if in.alarm, err = scheduler.New(scheduler.Config{Folder: folder, Send: in.send}); err != nil {
		t.Fatal(err)
	}
	in.alarm.Start()
	return in
}

func TestAnAlarmThatTheEndCutsShortComesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		folder := t.TempDir()
		begun := false
		in := alarmed(t, folder, func(ctx context.Context, _ native.Alarm) error {
			begun = true
			<-ctx.Done()
			return ctx.Err()
		})
		a := native.Alarm{Session: "s1", Tenant: "acme", Server: "job", Name: "done", At: time.Now()}
		commontest.OK(t, in.alarms().Schedule.Schedule(t.Context(), a))
		time.Sleep(time.Minute) // virtual
		synctest.Wait()
		in.work.Go(func() { time.Sleep(time.Second) }) // a request that takes longer to end
		if err := in.Close(t.Context()); err != nil || !begun {
			t.Errorf("begun: %v, %v", begun, err)
		}
		var handled []string
		again := alarmed(t, folder, func(_ context.Context, a native.Alarm) error {
			handled = append(handled, a.Name)
			return nil
		})
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(handled) != 1 || handled[0] != a.Name || again.alarm.Len() != 0 {
			t.Errorf("after the restart came %q, and %d schedules are left", handled, again.alarm.Len())
		}
		commontest.Check(t, again.Close(t.Context()))
	})
}
