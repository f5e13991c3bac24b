//go:build e2e && servers

package dormouse_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// real is a published server from a package registry.
type real struct {
	command, tool, arguments, want string
	args                           []string
	env                            map[string]string
}

// realServers returns four servers from npm and four from PyPI. folder has a git
// repository and a note in it; page is the URL of a web page.
func realServers(folder, page string) map[string]real {
	npm := func(name string, more ...string) []string {
		return append([]string{"-y", "@modelcontextprotocol/server-" + name + "@2026.8.31"}, more...)
	}
	return map[string]real{
		"everything": {"npx", "echo", `{"message":"hello"}`, "hello", npm("everything"), nil},
		"filesystem": {"npx", "read_text_file", fmt.Sprintf(`{"path":%q}`, filepath.Join(folder, "note.txt")), "dormice sleep", npm("filesystem", folder), nil},
		"memory": {
			"npx", "create_entities", `{"entities":[{"name":"Dormouse","entityType":"guest","observations":["sleeps"]}]}`, "entities",
			npm("memory"),
			map[string]string{"MEMORY_FILE_PATH": filepath.Join(folder, "memory.jsonl")},
		},
		"thinking": {
			"npx", "sequentialthinking", `{"thought":"why","nextThoughtNeeded":false,"thoughtNumber":1,"totalThoughts":1}`, "thoughtNumber",
			npm("sequential-thinking"), nil,
		},
		"time":  {"uvx", "get_current_time", `{"timezone":"UTC"}`, "UTC", []string{"mcp-server-time==2026.10.19"}, nil},
		"git":   {"uvx", "git_log", fmt.Sprintf(`{"repo_path":%q}`, folder), "first commit", []string{"mcp-server-git==2026.10.19"}, nil},
		"fetch": {"uvx", "fetch", fmt.Sprintf(`{"url":%q}`, page), "dormice sleep", []string{"mcp-server-fetch==2026.10.24", "--ignore-robots-txt", "--allow-private-ips"}, nil},
		"sqlite": {
			"uvx", "list_tables", `{}`, "[]",
			[]string{"--with", "mcp<2", "mcp-server-sqlite==2025.4.25", "--db-path", filepath.Join(folder, "test.db")},
			nil,
		},
	}
}

// workFolder returns a folder with a git repository and a note in it.
func workFolder(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	write(t, filepath.Join(folder, "note.txt"), "dormice sleep\n")
	for _, args := range [][]string{
		{"init", "-q"},
		{"add", "note.txt"},
		{"-c", "user.name=t", "-c", "user.email=t@example.test", "commit", "-q", "-m", "first commit"},
	} {
		git := exec.CommandContext(t.Context(), "git", args...)
		git.Dir = folder
		if out, err := git.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
	return folder
}

// TestServersOfTheRegistriesRun calls a tool of each server three times: after a first
// start, after the box has slept, and from a server that was started without Dormouse.
func TestServersOfTheRegistriesRun(t *testing.T) {
	folder := workFolder(t)
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, "<html><body><h1>Notes</h1><p>dormice sleep</p></body></html>")
	}))
	defer page.Close()
	all := realServers(folder, page.URL)
	file := map[string]any{}
	for name, s := range all {
		file[name] = map[string]any{"command": s.command, "args": s.args, "env": s.env}
	}
	m := machineOf(t, file)
	m.env = append(m.env, "NO_PROXY=127.0.0.1", "no_proxy=127.0.0.1")
	m.start(sleepy()...)
	cold, warm := map[string]time.Duration{}, map[string]time.Duration{}
	for name, s := range all {
		m := m.in(t)
		c := m.client(name)
		c.patient = 5 * time.Minute // the box has to fetch packages
		begun := time.Now()
		if err := c.open(params); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		c.patient = 0
		m.wants(c, name, s)
		cold[name] = time.Since(begun)
		if name == "everything" { // this tool can be called only as a task of 2025-11-25
			m.wants(c, name, real{tool: "simulate-research-query", arguments: `{"topic":"dormice"}`, want: "Research Report: dormice"})
		}
		m.asleep()
		begun = time.Now()
		m.wants(c, name, s)
		warm[name] = time.Since(begun)
	}
	t.Logf("%-12s %10s %10s %14s %10s", "server", "cold", "from sleep", "npx/uvx alone", "program")
	for name, s := range all {
		form := "no " + s.command
		if _, err := exec.LookPath(s.command); err == nil {
			form = alone(t, s.command, s.args, s.env)
		}
		program, rest := s.installed(t)
		t.Logf("%-12s %10s %10s %14s %10s", name, cold[name].Round(time.Millisecond), warm[name].Round(time.Millisecond), form, alone(t, program, rest, s.env))
	}
}

// installed returns the program that the box executes instead of npx or uvx, and its
// arguments.
func (s real) installed(t *testing.T) (program string, args []string) {
	t.Helper()
	of := slices.IndexFunc(s.args, func(arg string) bool { return strings.Contains(arg, "server-") })
	name, _, _ := strings.Cut(strings.TrimPrefix(path.Base(s.args[of]), "mcp-"), "@")
	name, _, _ = strings.Cut(name, "==")
	files, err := filepath.Glob(filepath.Join(stdioFolder, "cache", "resolved", "*.json"))
	commontest.OK(t, err)
	for _, file := range files {
		var known struct{ Program string }
		if err := json.Unmarshal([]byte(read(t, file)), &known); err == nil && filepath.Base(known.Program) == "mcp-"+name {
			return known.Program, s.args[of+1:]
		}
	}
	t.Fatalf("no install of %s in %v", name, files)
	return "", nil
}

func (m *machine) wants(c *client, name string, s real) {
	m.t.Helper()
	all, err := c.call(s.tool, s.arguments)
	if err != nil {
		m.t.Errorf("%s: %s: %v", name, s.tool, err)
		return
	}
	if last := all[len(all)-1]; last.Error != nil || strings.Contains(string(last.Result), `"isError":true`) || !strings.Contains(string(last.Result), s.want) {
		m.t.Errorf("%s: %s answered %s, want %q in it", name, s.tool, last.Raw, s.want)
	}
}

// alone returns how long a warm start of a command takes by itself, up to the answer
// to initialize.
func alone(t *testing.T, command string, args []string, env map[string]string) string {
	t.Helper()
	var took time.Duration
	for range 2 { // the first fills the caches
		cmd := exec.CommandContext(t.Context(), command, args...)
		cmd.Env = os.Environ()
		for name, value := range env {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
		cmd.WaitDelay = time.Second
		in, err := cmd.StdinPipe()
		commontest.OK(t, err)
		out := newJournal()
		cmd.Stdout = out
		begun := time.Now()
		commontest.OK(t, cmd.Start())
		_, answered := out.lines()
		if _, err := fmt.Fprintf(in, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":%s}`+"\n", params); err != nil {
			t.Errorf("%s does not read: %v", command, err)
		}
		select {
		case <-answered:
		case <-time.After(5 * time.Minute):
			t.Errorf("%s %v by itself does not answer", command, args)
		}
		took = time.Since(begun)
		_ = in.Close()
		_ = cmd.Process.Kill() // some do not notice that their stdin has ended
		_ = cmd.Wait()         // says that it was killed
	}
	return took.Round(time.Millisecond).String()
}
