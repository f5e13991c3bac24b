package box

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/provision"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// acting gives the server a variable GITHUB_TOKEN with a template for the principal's
// secret github.
func acting(value string) func(*Server) {
	return func(s *Server) {
		s.Principal = []string{"github"}
		s.Env["GITHUB_TOKEN"] = value
	}
}

// actsFor calls a tool for a principal. The principal's secret for github is token, until a
// time.
func (r *rig) actsFor(principal, token string, until time.Time, id, tool string) string {
	return r.as(principal+"/1", `{"jsonrpc":"2.0","id":`+id+`,"method":"tools/call","params":{"name":"`+tool+`","arguments":0}}`, func(d *Delivery) {
		if token != "" {
			d.Secrets = map[string]Secret{"github": {Value: token, Until: until}}
		}
	})
}

func (r *rig) variable(stream, name string) string {
	r.t.Helper()
	var env []string
	commontest.OK(r.t, json.Unmarshal(r.result(stream), &env))
	for _, pair := range env {
		if value, ok := strings.CutPrefix(pair, name+"="); ok {
			return value
		}
	}
	return "(not set)"
}

func TestAProcessHasTheTokenOfItsPrincipalOnly(t *testing.T) {
	for _, scope := range []Scope{ScopeSession, ScopePrincipal} {
		r := newRig(t, "normal", acting("Bearer ${principal:github}"), func(s *Server) { s.Scope = scope })
		for _, who := range []string{"ada", "bob", "ada"} {
			commontest.EqualIn(t, string(scope), "Bearer token-of-"+who, r.variable(r.actsFor(who, "token-of-"+who, time.Time{}, "1", "env"), "GITHUB_TOKEN"))
		}
	}
}

func TestAVariableWithoutAValueIsLeftOut(t *testing.T) {
	r := newRig(t, "normal", acting("${principal:github}"))
	commontest.Equal(t, "(not set)", r.variable(r.actsFor("ada", "", time.Time{}, "1", "env"), "GITHUB_TOKEN"))
	commontest.EqualIn(t, "once the principal has connected", "now there", r.variable(r.actsFor("ada", "now there", time.Time{}, "2", "env"), "GITHUB_TOKEN"))
}

func TestANewTokenStartsAnIdleProcessAnew(t *testing.T) {
	r := newRig(t, "normal", acting("${principal:github}"))
	soon := time.Now().Add(time.Minute)
	first := r.result(r.actsFor("ada", "one", soon, "1", "pid"))
	commontest.EqualIn(t, "the same token starts another process", string(first), string(r.result(r.actsFor("ada", "one", soon, "2", "pid"))))
	hang := r.actsFor("ada", "one", soon, "3", "hang")
	commontest.EqualIn(t, "a process with a call in flight is replaced although its token is good", string(first), string(r.result(r.actsFor("ada", "two", soon.Add(time.Hour), "4", "pid"))))
	r.CloseStream("ada/1", storage.StreamID(hang))
	commontest.EqualIn(t, "the idle process was not started anew", "two", r.variable(r.actsFor("ada", "two", soon.Add(time.Hour), "5", "env"), "GITHUB_TOKEN"))
}

func TestAProcessWithATokenThatHasEndedGetsNoNewCall(t *testing.T) {
	r := newRig(t, "normal", acting("${principal:github}"))
	r.result(r.actsFor("ada", "one", time.Now().Add(-time.Second), "1", "pid"))
	hang := r.actsFor("ada", "one", time.Now().Add(-time.Second), "2", "hang")
	next := r.actsFor("ada", "two", time.Now().Add(time.Hour), "3", "env")
	r.none(t, next)
	r.CloseStream("ada/1", storage.StreamID(hang))
	commontest.Equal(t, "two", r.variable(next, "GITHUB_TOKEN"))
}

func TestATokenIsHiddenInWhatTheBoxPassesOn(t *testing.T) {
	r := newRig(t, "exits", func(s *Server) {
		s.Principal, s.Env["API_KEY"] = []string{"github"}, "${principal:github}"
	})
	f := r.failure(r.actsFor("ada", "gho_secret", time.Time{}, "1", "pid"))
	if shown := f.Message + f.Stderr; strings.Contains(shown, "gho_secret") || !strings.Contains(shown, "key ***") {
		t.Errorf("got %s", shown)
	}
}

func TestAServerThatReadsAFileIsNotStartedAnew(t *testing.T) {
	k := &keeperHand{}
	var place string
	saved := make(chan []string, 1)
	r, _ := withKeeper(t, "normal", k, acting("${principal_file:github}"))
	k.save = func(context.Context) error {
		entries, err := os.ReadDir(place)
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		saved <- names
		return err
	}
	file := r.variable(r.actsFor("ada", "one", time.Time{}, "1", "env"), "GITHUB_TOKEN")
	place = filepath.Dir(filepath.Dir(file))
	pid := r.result(r.actsFor("ada", "one", time.Time{}, "2", "pid"))
	commontest.EqualIn(t, "the process was started anew", string(pid), string(r.result(r.actsFor("ada", "two", time.Time{}, "3", "pid"))))
	if value, err := os.ReadFile(file); string(value) != "two" {
		t.Errorf("the file has %q, %v", value, err)
	}
	info, err := os.Stat(file)
	commontest.OK(t, err)
	commontest.EqualIn(t, "mode", 0o600, info.Mode().Perm())
	r.Halt("ada/1", "ada", 0)
	if names := <-saved; slices.Contains(names, secretsFolder) {
		t.Errorf("the snapshot would have %v", names)
	}
}

// A server can replace the folder of its secrets by a link. No file outside of its
// workspace may change.
func TestALinkLeadsNoTokenOutOfTheWorkspace(t *testing.T) {
	t.Parallel()
	outside, place := t.TempDir(), t.TempDir()
	folder, err := newFolder(provision.Launch{Workspace: place})
	commontest.OK(t, err)
	f := processSecrets{folder: folder}
	commontest.OK(t, os.Remove(folder))
	commontest.OK(t, os.Symlink(outside, folder))
	if err := f.write("github", "x"); err == nil {
		t.Error("a file was written")
	}
	commontest.Check(t, f.clear())
	if entries, err := os.ReadDir(outside); err != nil || len(entries) != 0 {
		t.Errorf("outside there is %v, %v", entries, err)
	}
}
