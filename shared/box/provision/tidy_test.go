package provision

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// tidy calls Tidy, even if Tidy has just run. Meanwhile no test that runs beside this one starts
// a process: until it executes its program, it has the locks that this process has just closed.
func (r *rig) tidy(keep Keep) int {
	r.t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	_ = os.Remove(filepath.Join(r.root, "cache", tidiedFile))
	n, err := Tidy(r.t.Context(), filepath.Join(r.root, "cache"), keep)
	commontest.OK(r.t, err)
	return n
}

// unused sets the last use of an install to a time in the past.
func (r *rig) unused(l Launch, since time.Duration) {
	r.t.Helper()
	at := time.Now().Add(-since)
	commontest.OK(r.t, os.Chtimes(filepath.Join(filepath.Dir(l.Reads[0]), usedFile), at, at))
}

const day = 24 * time.Hour

func TestInstallThatNobodyUsesIsRemovedAndMadeAgain(t *testing.T) {
	for name, server := range map[string]func(*rig) Server{
		"dependencies": func(r *rig) Server {
			return r.python(map[string]string{"host/requirements.txt": "a\n", "host/server.py": ""})
		},
		"npx": (*rig).registry,
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			server := server(r)
			one := r.stager(server)
			l := r.stageWith(one)
			r.unused(l, 31*day)
			if n := r.tidy(Keep{Age: 30 * day}); n != 0 || !there(l.Reads[0]) {
				t.Errorf("removed %d, and a box that lives uses it", n)
			}
			one.Close()
			if n := r.tidy(Keep{Age: 32 * day}); n != 0 || !there(l.Reads[0]) {
				t.Errorf("removed %d before its time", n)
			}
			if n := r.tidy(Keep{Age: 30 * day}); n != 1 || there(l.Reads[0]) {
				t.Errorf("removed %d", n)
			}
			commontest.EqualIn(t, "removed", 0, r.tidy(Keep{Age: 30 * day}))
			two := r.stager(server)
			defer two.Close()
			if again := r.stageWith(two); !there(again.Reads[0]) {
				t.Errorf("the next start gets %+v", again)
			}
		})
	}
}

func TestStartUsesAnInstall(t *testing.T) {
	r := newRig(t)
	server := r.registry()
	for range 2 {
		s := r.stager(server)
		l := r.stageWith(s)
		s.Close()
		if n := r.tidy(Keep{Age: 30 * day}); n != 0 {
			t.Fatal("one that was just used is removed")
		}
		r.unused(l, 29*day) // the next start is that of the second round
	}
}

func TestInstallsThatWereNotUsedForLongestGoWhenThereIsTooMuch(t *testing.T) {
	r := newRig(t)
	var all []Launch
	for i, manifest := range []string{"a\n", "b\n", "c\n", "d\n"} {
		server := r.python(map[string]string{"host/requirements.txt": manifest, "host/server.py": ""})
		r.write(map[string]string{"pip": `head -c 100000 /dev/zero >"$VENV/big"`})
		s := r.stager(server)
		l := r.stageWith(s)
		if i == 0 {
			defer s.Close() // a box lives
		} else {
			s.Close()
		}
		r.unused(l, time.Duration(10-i)*time.Hour)
		all = append(all, l)
	}
	commontest.EqualIn(t, "removed", 0, r.tidy(Keep{Bytes: 1 << 20}))
	commontest.EqualIn(t, "removed", 2, r.tidy(Keep{Bytes: 250_000}))
	for i, want := range []bool{true, false, false, true} {
		commontest.EqualIn(t, "install", want, there(all[i].Reads[0]))
	}
}

func TestInstallThatWasNeverFinishedIsRemoved(t *testing.T) {
	r := newRig(t)
	r.write(map[string]string{"cache/npm/k/made-1/x": "x", "cache/npm/k/lock": "", "cache/work/lock": "", "cache/work/box-1/made-1/x": ""})
	at := time.Now().Add(-40 * day)
	commontest.OK(t, os.Chtimes(filepath.Join(r.root, "cache", "npm", "k", "lock"), at, at))
	unlock, _, err := tryLock(filepath.Join(r.root, "cache", "npm", "k", "lock"), unix.LOCK_EX)
	commontest.OK(t, err)
	commontest.EqualIn(t, "removed while it is being made", 0, r.tidy(Keep{Age: 30 * day}))
	unlock()
	commontest.EqualIn(t, "removed", 1, r.tidy(Keep{Age: 30 * day}))
	if _, err := os.Stat(filepath.Join(r.root, "cache", "work", "box-1", "made-1", "x")); err != nil {
		t.Errorf("what is no install: %v", err)
	}
}

func TestCacheIsTidiedOnceADayAndAfterAnInstall(t *testing.T) {
	r := newRig(t)
	cache := filepath.Join(r.root, "cache")
	tidied := func() bool {
		t.Helper()
		before, _ := os.Stat(filepath.Join(cache, tidiedFile))
		if _, err := Tidy(t.Context(), cache, Keep{Age: day}); err != nil {
			t.Fatal(err)
		}
		after, err := os.Stat(filepath.Join(cache, tidiedFile))
		return err == nil && (before == nil || !os.SameFile(before, after))
	}
	commontest.EqualIn(t, "there is nothing to tidy", false, tidied())
	server := r.python(map[string]string{"host/requirements.txt": "a\n", "host/server.py": ""})
	r.stageWith(r.stager(server))
	if !tidied() || tidied() {
		t.Error("not once after an install")
	}
	r.stageWith(r.stager(server)) // this installs nothing
	commontest.EqualIn(t, "tidied after a start that installs nothing", false, tidied())
	at := time.Now().Add(-25 * time.Hour)
	commontest.OK(t, os.Chtimes(filepath.Join(cache, tidiedFile), at, at))
	commontest.EqualIn(t, "tidied after a day", true, tidied())
}

func TestStartWaitsForWhoRemovesItsInstall(t *testing.T) {
	r := newRig(t)
	server := r.registry()
	one := r.stager(server)
	l := r.stageWith(one)
	one.Close()
	home := filepath.Dir(l.Reads[0])
	release, _, err := tryLock(filepath.Join(home, usedFile), unix.LOCK_EX) // as remove locks it
	commontest.OK(t, err)
	two := r.stager(server)
	defer two.Close()
	done := make(chan Launch, 1)
	go func() { done <- r.stageWith(two) }()
	commontest.OK(t, os.RemoveAll(l.Reads[0]))
	release()
	if again := <-done; !there(again.Reads[0]) || !strings.HasPrefix(again.Reads[0], filepath.Join(r.root, "cache")) {
		t.Errorf("it got %+v", again)
	}
}
