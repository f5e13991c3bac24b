//go:build e2e

package dormouse_test

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// wide is the width of the terminal of a person.
const wide = 80

// person is somebody who typed a line on a terminal, and looks at it.
type person struct {
	t        *testing.T
	line     string
	terminal *os.File
	cmd      *exec.Cmd
	pieces   chan string // what is written on the terminal, until its last program has ended
	written  string
	seen     int // up to where of it the person has looked, without what controls the terminal
}

// controls matches what moves the cursor, clears or colors.
var controls = regexp.MustCompile("\x1b\\[[0-9;?]*[A-Za-z]")

// overwritten matches what a terminal shows for a moment only.
var overwritten = regexp.MustCompile(`[^\r\n]+\r([^\r\n])`)

// reader returns a walk of somebody in a folder of their own, whose packages come from an index.
func reader(t *testing.T, newer ...string) (*walk, *index) {
	t.Helper()
	w, x := newWalk(t), newIndex(t, newer...)
	w.home = w.from(x)
	w.env = append(w.env, "XDG_RUNTIME_DIR="+t.TempDir(), "TERM=xterm", "CI=")
	return w, x
}

// person types a line in the folder, and inHome in the home folder, where a new terminal begins.
func (w *walk) person(line string) *person { return w.at(w.folder, line) }

func (w *walk) inHome(line string) *person { return w.at(w.home, line) }

func (w *walk) at(folder, line string) *person {
	w.t.Helper()
	cmd := w.shell(line)
	cmd.Dir = folder
	terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 40, Cols: wide})
	commontest.OK(w.t, err)
	w.t.Cleanup(func() { _, _, _ = terminal.Close(), cmd.Process.Kill(), cmd.Wait() })
	p := &person{t: w.t, line: line, terminal: terminal, cmd: cmd, pieces: make(chan string, 1<<16)}
	go func() {
		defer close(p.pieces)
		for piece := make([]byte, 4096); ; {
			n, err := terminal.Read(piece)
			if p.pieces <- string(piece[:n]); err != nil {
				return
			}
		}
	}()
	return p
}

// sees waits until the terminal shows a text that matches, behind what the person has seen.
func (p *person) sees(pattern string) string {
	p.t.Helper()
	is, late := regexp.MustCompile(pattern), time.After(patience)
	for {
		shown := p.shown()
		if at := is.FindStringIndex(shown[p.seen:]); at != nil {
			begin := p.seen + at[0]
			p.seen += at[1]
			return shown[begin:p.seen]
		}
		if err := p.reads(late); err != nil {
			p.t.Fatalf("%s: %v; it shows %q, want %q", p.line, err, overwritten.ReplaceAllString(shown[p.seen:], ""), pattern)
		}
	}
}

func (p *person) shown() string { return controls.ReplaceAllString(p.written, "") }

// reads waits for more on the terminal.
func (p *person) reads(late <-chan time.Time) error {
	select {
	case piece, more := <-p.pieces:
		if !more {
			return io.EOF
		}
		p.written += piece
		return nil
	case <-late:
		return context.DeadlineExceeded
	}
}

// waits looks at a wait for something that does not come: soon, after 2 and after 20 seconds.
func (p *person) waits(phases ...string) {
	p.t.Helper()
	for _, phase := range phases {
		name, _, _ := strings.Cut(phase, "  ")
		p.sees(name + "  .* … 0\\.\\d s")
	}
	for _, after := range []string{`[2-9]\.\d s`, `[2-9]\d s`} {
		for _, phase := range phases {
			p.sees(phase + " … " + after)
		}
	}
}

// types types something further.
func (p *person) types(text string) {
	p.t.Helper()
	_, err := io.WriteString(p.terminal, text)
	commontest.OK(p.t, err)
}

// ends waits for the end of the command, with a code. No line that moves and no row was wider
// than the terminal, but for what is to be pasted, which a line break would spoil.
func (p *person) ends(code int) {
	p.t.Helper()
	var err error
	for late := time.After(patience); err == nil; {
		err = p.reads(late)
	}
	if !errors.Is(err, io.EOF) {
		p.t.Fatalf("%s does not end: %v; it shows %q", p.line, err, p.shown())
	}
	_ = p.cmd.Wait() // see ExitCode
	if got := p.cmd.ProcessState.ExitCode(); got != code {
		p.t.Errorf("%s ends with %d, want %d; it shows %s", p.line, got, code, p.shown())
	}
	for _, line := range strings.FieldsFunc(p.shown(), func(r rune) bool { return r == '\r' || r == '\n' }) {
		if n := len([]rune(line)); n > wide && strings.Contains(strings.TrimSpace(line), "  ") && !strings.Contains(line, "://") {
			p.t.Errorf("%s: a line of %d columns: %q", p.line, n, line)
		}
	}
}

// does types a line, sees texts in this order, and then its end.
func (w *walk) does(line string, sees ...string) {
	w.t.Helper()
	w.exits(0, line, sees...)
}

// exits is does for a line that ends with another code.
func (w *walk) exits(code int, line string, sees ...string) {
	w.t.Helper()
	p := w.person(line)
	for _, pattern := range sees {
		p.sees(pattern)
	}
	p.ends(code)
}

// up hosts the folder on a terminal, at a free port, and returns the address.
func (w *walk) up(line string) (p *person, address string) {
	w.t.Helper()
	p = w.person(line + " --listen 127.0.0.1:0")
	address = strings.TrimSuffix(p.sees(`http://127\.0\.0\.1:\d+/`), "/")
	return p, address
}

func (w *walk) file(name, text string) { write(w.t, filepath.Join(w.folder, name), text) }

func (w *walk) lacks(file, text string) {
	w.t.Helper()
	if got := read(w.t, filepath.Join(w.folder, file)); strings.Contains(got, text) {
		w.t.Errorf("%s has %s: %s", file, text, got)
	}
}

// readmeCommand matches a block of commands of the README, or a command in a sentence.
var readmeCommand = regexp.MustCompile("(?m)" + runBlock.String() + "|`(dormouse [^`]+)`")

// Somebody types every command of the README in its order, and the packages come slowly.
func TestE2EFirstHour(t *testing.T) {
	t.Parallel()
	for name, part := range map[string]func(*testing.T){
		"README": theREADME, "1 waits": waitsHaveAFace, "2 prepare": nobodyWaitsForAnInstall, "3 add": addTakesAnything, "4 found": oneMachineIsFound,
		"5 inner loop": theInnerLoop, "6 projects": projectsStart, "7 service": asAService, "8 doors": doors,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			part(t)
		})
	}
}

func theREADME(t *testing.T) {
	w, x := reader(t)
	write(t, filepath.Join(w.home, ".config/Claude/claude_desktop_config.json"), `{"mcpServers": {"notes": {"command": "npx", "args": ["-y", "notes-server"], "env": {"NOTES_TOKEN": "hunter2-hunter2"}}}}`)
	shows := map[string][]string{
		"dormouse call everything echo message=hi":     {"Echo: hi", `\d+ ms, after waking for \d`},
		"dormouse connect claude-code":                 {"claude mcp add --transport http everything http://127.0.0.1:"},
		"dormouse import claude-desktop":               {"NOTES_TOKEN", `notes  1 tool +\d`, "1 of 1 server ready"},
		"dormouse ps":                                  {"process"},
		"dormouse logs everything":                     {"==> everything"},
		"dormouse open":                                {"http://127.0.0.1:.*/console"},
		"dormouse keys create ada --server everything": {"dm_", "Key "},
		"dormouse bill":                                {`total +0\.\d`},
	}
	var host *person
	var lines []string
	for _, part := range readmeCommand.FindAllStringSubmatch(read(t, "../../README.md"), -1) {
		lines = append(lines, commands(part[1]+part[2]+part[3])...)
	}
	for _, line := range lines {
		line, _, _ = strings.Cut(line, " #")
		line = strings.TrimSpace(line)
		run := hostsHere.FindStringSubmatch(line)
		switch {
		case line == "" || line == "dormouse add" || line == "dormouse run" && host != nil || strings.HasPrefix(line, "dormouse run --"): // in a sentence
		case strings.HasPrefix(line, "dormouse add everything"):
			p := w.person(line)
			p.waits("@modelcontextprotocol/server-everything  resolving")
			x.metadata.opens()
			p.sees("everything  installing @modelcontextprotocol/server-everything … ")
			x.tarballs.opens()
			p.sees(`added everything 1\.0\.0: 1 tool in \d`)
			p.ends(0)
		case run != nil && (run[1] != "" || exists(w.folder, "servers.json")):
			if host != nil {
				w.kill(w.those("dormouse")...)
				host.ends(-1)
			}
			host, _ = w.up("dormouse run")
		case run != nil: // in a sentence above the first block
		case shows[line] == nil:
			t.Errorf("README has %q, and this test does not say what it shows", line)
		default:
			folder := w.home // where another terminal begins
			if strings.HasPrefix(line, "dormouse import") {
				folder = w.folder
			}
			p := w.at(folder, line)
			for _, pattern := range shows[line] {
				p.sees(pattern)
			}
			p.ends(0)
			delete(shows, line)
		}
	}
	if exists(w.home, ".dormouse") {
		t.Error("a command has made a data folder beside that of the machine")
	}
	for line := range shows {
		t.Errorf("README has no %q", line)
	}
	host.types("q")
	host.ends(0)
}

func exists(parts ...string) bool {
	_, err := os.Stat(filepath.Join(parts...))
	return err == nil
}

func waitsHaveAFace(t *testing.T) {
	w, x := reader(t)
	w.file("servers.json", `{"mcpServers": {"small": {"command": "npx", "args": ["-y", "small-server"]}}}`)
	host, _ := w.up("dormouse run")
	// The install began when the entry was taken, and both terminals show it.
	host.sees("small +resolving small-server … ")
	p := w.inHome("dormouse call small echo until=" + filepath.Join(w.home, "enough"))
	p.waits("small  (connecting|resolving.*|installing.*)")
	x.metadata.opens()
	p.sees("small  installing small-server … ")
	x.tarballs.opens()
	p.sees("echo needs message, a string: ")
	p.types("hi\n")
	p.sees("small  echo: 1 of 2 half … ")
	write(t, filepath.Join(w.home, "enough"), "")
	p.sees("Echo: hi")
	p.sees(`after waking for \d\d s`)
	p.ends(0)
	w.exits(2, "dormouse call small echo mesage=hi", "did you mean message")
	host.types("\x03")
	host.ends(0)
}

func nobodyWaitsForAnInstall(t *testing.T) {
	const config = `{"mcpServers": {"one": {"command": "npx", "args": ["-y", "slow-1"]}, "two": {"command": "npx", "args": ["-y", "slow-2"]}}}`
	for name, line := range map[string]string{"prepare": "dormouse prepare", "import": "dormouse import theirs.json"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, x := reader(t)
			w.file("theirs.json", config)
			if name == "prepare" {
				w.file("servers.json", strings.Replace(config, `{"one"`, `{"bad": {"command": "sh", "args": ["-c", "echo no license >&2; exit 3"]}, "one"`, 1))
			}
			p := w.person(line)
			p.waits("one  resolving slow-1", "two  resolving slow-2")
			x.opens()
			p.sees(`one  1 tool +\d`)
			if name == "prepare" {
				p.sees("bad: exited with code 3 before it answered initialize: no license")
				p.sees("2 of 3 servers ready")
				p.ends(1)
				return
			}
			p.sees("2 of 2 servers ready")
			p.ends(0)
		})
	}
}

func addTakesAnything(t *testing.T) {
	w, x := reader(t)
	x.opens()
	w.does("dormouse add npx://small-server", `added small 1\.0\.0: 1 tool in `)

	// A line that fails leaves nothing behind, and prints the one to type.
	w.file("needs.js", "if (!process.env.ACME_TOKEN) { console.error('ACME_TOKEN environment variable is required'); process.exit(1) }\n"+strings.TrimPrefix(smallServer, "#!/usr/bin/env node\n"))
	p := w.person("dormouse add needs.js")
	p.sees("needs needs ACME_TOKEN: ")
	p.types("\n")
	p.sees("give the value: dormouse add needs.js -e ACME_TOKEN=…")
	p.ends(1)
	w.lacks("servers.json", "needs")
	p = w.person("dormouse add needs.js")
	p.sees("needs needs ACME_TOKEN: ")
	p.types("hunter2-hunter2\n")
	p.sees("added needs 1.0.0: 1 tool in ")
	p.ends(0)
	p = w.person("dormouse env set ACME_TOKEN")
	p.sees("ACME_TOKEN.*: ")
	p.types("hunter3-hunter3\n")
	p.ends(0)
	w.lacks("servers.json", "hunter")
	if strings.Contains(p.shown(), "hunter") {
		t.Error("the terminal shows a secret")
	}

	w.file("project/package.json", `{"name": "tides", "version": "3.0.0", "bin": "index.js"}`)
	w.file("project/index.js", smallServer)
	w.does("dormouse add ./project", "added tides 1.0.0: 1 tool in ")
	w.does("cp -r project origin; cd origin; git init -q; git add .; git -c user.name=a -c user.email=a@example.com commit -qm one")
	w.does("dormouse add shore git+file://$PWD/origin", `added shore [0-9a-f]{12}: 1 tool in `)

	var bundle bytes.Buffer
	z := zip.NewWriter(&bundle)
	for name, text := range map[string]string{"main.js": smallServer, "manifest.json": `{"manifest_version": "0.3", "name": "notes", "version": "2.0.0",
		"server": {"type": "node", "entry_point": "main.js", "mcp_config": {"command": "node", "args": ["${__dirname}/main.js"], "env": {"KEY": "${user_config.key}"}}},
		"user_config": {"key": {"type": "string", "title": "Key", "sensitive": true, "required": true}}}`} {
		f, err := z.Create(name)
		commontest.OK(t, err)
		_, err = io.WriteString(f, text)
		commontest.OK(t, err)
	}
	commontest.OK(t, z.Close())
	w.file("notes.mcpb", bundle.String())
	p = w.person("dormouse add notes.mcpb")
	p.sees("notes needs Key: ")
	p.types("hunter4-hunter4\n")
	p.sees("added notes 2.0.0: 1 tool in ")
	p.ends(0)
	w.lacks("servers.json", "hunter")

	w.file("server.json", `{"name": "io.github.ada/weather", "version": "1.0.0", "packages": [{"registryType": "npm", "identifier": "weather-server", "version": "1.0.0", "transport": {"type": "stdio"}}]}`)
	w.does("dormouse add server.json", `added weather 1\.0\.0: 1 tool in `)
	far := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server {
		return mcp.NewServer(&mcp.Implementation{Name: "far", Version: "1"}, nil)
	}, nil))
	defer far.Close()
	w.exits(1, "dormouse add far "+far.URL, "to permit it: dormouse add far .* --private")
	w.does("dormouse add far "+far.URL+" --private", "added far 1: 0 tools in ")
	w.exits(1, "dormouse add ghcr.io/ada/rivers:1", "rivers was not added")
	w.exits(2, "dormouse add nothere.mcpb", "there is no ")
	w.does("dormouse list", `(?s)small .*needs .*tides .*shore .*notes .*weather .*far `)
}

func oneMachineIsFound(t *testing.T) {
	w, x := reader(t)
	x.opens()
	w.does("dormouse", "(?s)dormouse add everything .*dormouse run.*dormouse call .*Start here.*Servers")
	w.does("dormouse add small -- npx -y small-server", "added small")
	w.does("dormouse list", "(?s)small +not running +1 .*not hosted now: dormouse run")
	w.does("dormouse tools small", "(?s)echo +message=string")
	w.does("dormouse check", "can be hosted")
	host, address := w.up("dormouse up")
	for line, sees := range map[string]string{
		"dormouse ls": `(?s)small +(asleep|awake) +1 .*` + address + `/small/mcp`, "dormouse tools small": "echo +message=string",
		"dormouse call small echo message=hi": "Echo: hi", "dormouse open": "/console/", "dormouse backup b.tar.gz": "b.tar.gz has ",
	} {
		p := w.inHome(line)
		p.sees(sees)
		p.ends(0)
	}
	p := w.inHome("mkdir .dormouse; dormouse ps") // a folder with data of its own
	p.sees("name one that is up:\r\n  " + address + ": --data ")
	p.ends(3)
	w.does("dormouse rm small", "small")
	host.sees("small")
	host.types("\x03")
	host.ends(0)
	w.exits(3, "dormouse call small echo", "dormouse run")
}

func theInnerLoop(t *testing.T) {
	w, x := reader(t, "2.12.0") // of MCP Inspector
	w.file("more.py", "MORE = []\n")
	w.file("server.py", pythonServer)
	w.does("dormouse add mine -- python3 server.py", "added mine 1: 1 tool in ")
	host, address := w.up("dormouse run --watch")
	host.sees("A save starts anew: mine")
	w.file("more.py", "MORE = nothere\n")
	host.sees("NameError: name 'nothere' is not defined")
	host.sees("server.py:2: from more import MORE")
	host.sees("more.py:1: MORE = nothere")
	w.file("more.py", "MORE = [\"two\"] # mended\n") // Python tells files of one second apart by their size
	host.sees("ready after")
	w.does("dormouse tools mine", `(?m)^two `)
	p := w.person("dormouse inspect mine")
	p.sees("MCP Inspector with " + address + "/mine/mcp; Ctrl-C ends it")
	x.opens()
	p.types("\x03")
	p.ends(0)
	host.types("q")
	host.ends(0)
}

func projectsStart(t *testing.T) {
	w, x := reader(t)
	x.opens()
	w.file("app/package.json", `{"name": "app", "version": "1.0.0", "dependencies": {"small-server": "1.0.0"}}`)
	w.file("app/main.js", "require('small-server/index.js')\n")
	p := w.person("dormouse add app -- node app/main.js")
	mend := strings.Trim(p.sees(`\(cd \S+ && npm install\)`), " ")
	p.ends(1)
	w.lacks("servers.json", "app")
	w.does(mend)
	w.does("dormouse add app -- node app/main.js", "added app 1.0.0: 1 tool in ")
	w.file("reqs/mine.py", "import nothere\n")
	w.exits(1, "dormouse add reqs -- python3 reqs/mine.py", "(?s)write the packages that it needs into reqs/requirements.txt, and .*")
	w.file("reqs/requirements.txt", "nothere\n")
	w.exits(1, "dormouse add reqs/mine.py", "dormouse add mine (--host-path reqs -- python3 mine.py|-- uv run --no-project --with-requirements)")
}

func asAService(t *testing.T) {
	w, _ := reader(t)
	w.does("dormouse version", "store ")
	// The tools of the system are replaced: nothing of this machine is looked at or changed.
	for _, tool := range []string{"systemctl", "journalctl"} {
		executable(t, filepath.Join(w.folder, "bin", tool), "#!/bin/sh\necho from "+tool+"\n")
	}
	w.env = append(w.env, "PATH="+filepath.Join(w.folder, "bin")+":"+programs+":"+os.Getenv("PATH"))
	w.exits(3, "dormouse service status", "no service is installed: dormouse service install")
	w.exits(1, "dormouse service install --servers nothere.json", "(there is no|cannot see)")
}

func doors(t *testing.T) {
	w, x := reader(t)
	x.opens()
	w.file("theirs.json", `{"mcpServers": {"far": {"command": "npx", "args": ["-y", "mcp-remote", "https://mcp.example.com/sse"]}, "small": {"command": "cmd", "args": ["/c", "npx", "-y", "small-server"]}}}`)
	w.does("dormouse import theirs.json --no-start", "far", "small")
	w.lacks("servers.json", "mcp-remote")
	w.lacks("servers.json", "cmd")
	host, address := w.up("dormouse run")
	p := w.person("dormouse stdio " + address + "/small/mcp")
	p.types(initialize + "\n")
	p.sees(`"serverInfo":`)
	p.types("\x04")
	p.ends(0)
	w.does("curl -s "+address+"/.well-known/ai-catalog.json", "small")
	host.types("q")
	host.ends(0)
}
