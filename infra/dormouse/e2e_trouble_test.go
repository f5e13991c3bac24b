//go:build e2e

package dormouse_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/infra/local"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func (m *machine) health(server string) (status int, body string) {
	m.t.Helper()
	answer := web(m.t, http.DefaultClient, http.MethodGet, strings.TrimSuffix(m.urls[server], "/"+server+"/mcp")+"/healthz", "", http.Header{})
	return answer.status, answer.text
}

// spoil overwrites the pages of a SQLite file but the first.
func spoil(t *testing.T, path string) {
	t.Helper()
	info, err := os.Stat(path)
	commontest.OK(t, err)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	commontest.OK(t, err)
	defer func() { _ = f.Close() }()
	_, err = f.WriteAt([]byte(strings.Repeat("nonsense", int(info.Size()-4096)/8)), 4096)
	commontest.OK(t, err)
}

// A store that is damaged, emptied or gone stops the start of a machine that was in use, and
// doctor says it. When it is back, its sessions go on.
func TestE2EALostStoreStopsTheStart(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"one": nil})
	m.programs = false // programs that are killed leave a write-ahead log, which mends the file
	m.start(sleepy()...)
	c := m.session("one")
	_, err := c.call("echo", `{"text":"x"}`)
	commontest.OK(t, err)
	m.interrupt()
	store := filepath.Join(m.data, local.StoreFile)
	whole := read(t, store)
	for name, lose := range map[string]struct {
		how  func()
		says string
	}{
		"removed": {func() { _ = os.Remove(store) }, "is gone"},
		"emptied": {func() { _ = os.Truncate(store, 0) }, "is empty"},
		"damaged": {func() { spoil(t, store) }, "damaged"},
		"cut":     {func() { _ = os.Truncate(store, int64(len(whole)/2/4096*4096)) }, "damaged"},
	} {
		lose.how()
		m.run("--json", "--log-format=json")
		if state := m.ended(patience); state.ExitCode() == 0 {
			t.Errorf("%s: it ended well", name)
		}
		if said := m.log.tail(20) + m.out.tail(20); !strings.Contains(said, lose.says) || !strings.Contains(said, "dormouse restore") {
			t.Errorf("%s: it said %s", name, said)
		}
		if said, err := m.tries("doctor", "--servers", m.servers); err == nil || !strings.Contains(said, lose.says) {
			t.Errorf("%s: doctor said %v %s", name, err, said)
		}
		write(t, store, whole)
	}
	m.start(sleepy()...)
	c = m.again(c, "one")
	_, err = c.call("echo", `{"text":"again"}`)
	commontest.Check(t, err)
}

// A store that goes away or is damaged under a running machine is told everywhere, calls are
// refused at once, and the stop does not wait for what cannot be stored.
func TestE2EAStoreThatGoesAwayIsTold(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(store string) error{
		"removed":     os.Remove,
		"overwritten": func(store string) error { spoil(t, store); return nil },
		"log cut":     func(store string) error { return os.Truncate(store+"-wal", 8192) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := recorded(t)
			m.programs = false
			m.start(sleepy()...)
			_ = m.session("one").text("count", "")
			m.asleep()
			m.interrupt() // so that the file has everything
			m.start()
			c := m.session("one")
			_, err := c.call("echo", `{"text":"x"}`)
			commontest.OK(t, err)
			m.eventually(patience, "the log of the store has been seen", func() bool {
				status, _ := m.health("one")
				return status == http.StatusOK
			})
			before := read(t, m.calls)
			commontest.OK(t, lose(filepath.Join(m.data, local.StoreFile)))
			m.eventually(patience, "the machine is not healthy", func() bool {
				status, body := m.health("one")
				return status == http.StatusServiceUnavailable && body == "store: failed\n"
			})
			m.await(patience, "the terminal is told", func(e event) bool { return e.Kind == "folder.trouble" })
			if answer := c.outcome("echo", `{"text":"x"}`); answer.Error == nil {
				t.Errorf("a call was answered: %s", answer.Raw)
			}
			commontest.EqualIn(t, "it was executed", before, read(t, m.calls))
			if said, err := m.tries("doctor", "--servers", m.servers); err == nil || !strings.Contains(said, "✗ store") {
				t.Errorf("doctor finds nothing: %s", said)
			}
			m.terminate()
			m.ended(patience)
		})
	}
}
