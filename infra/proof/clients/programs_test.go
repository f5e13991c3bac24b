//go:build clients

package clients

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/infra/proof/internal/programtest"
	"github.com/dormouse-mcp/dormouse/infra/proof/internal/webuser"
)

// person is at the browser of a program that signs in. The program prints the URL that its
// user should open, and listens for the answer.
type person struct {
	user   *webuser.User
	logins atomic.Int32
	failed chan error
}

func newPerson() *person {
	return &person{user: webuser.New(webuser.Ada()), failed: make(chan error, 8)}
}

// read reads what a program says, and goes to each URL of an authorization endpoint in it.
func (p *person) read(ctx context.Context, says io.Reader, copyTo io.Writer) {
	link := regexp.MustCompile(`https?://\S+/(authorize|auth)\?\S+`)
	lines := bufio.NewScanner(io.TeeReader(says, copyTo))
	for lines.Scan() {
		url := link.FindString(lines.Text())
		if url == "" {
			continue
		}
		p.logins.Add(1)
		if _, err := p.user.Visit(ctx, url, ""); err != nil {
			p.failed <- err
		}
	}
}

// noBrowser is an environment in which a program that opens a browser opens none.
func noBrowser(t *testing.T) []string {
	t.Helper()
	nothing := programtest.Tool(t, "true", "a Unix system has it")
	dir := t.TempDir()
	for _, name := range []string{"open", "xdg-open", "gio", "x-www-browser", "sensible-browser"} {
		if err := os.Symlink(nothing, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	path := dir + string(os.PathListSeparator) + os.Getenv("PATH")
	return append(os.Environ(), "PATH="+path, "BROWSER="+nothing, "DISPLAY=", "WAYLAND_DISPLAY=", "XDG_CURRENT_DESKTOP=", "DESKTOP_SESSION=")
}

// mcp-remote signs in, and later refreshes its token. It is in front of the Go client.
func TestMCPRemoteSignsIn(t *testing.T) {
	state, url := t.TempDir(), hostWithSignIn(t)
	connect := func(p *person) (tools int) {
		t.Helper()
		var said bytes.Buffer
		cmd := exec.CommandContext(t.Context(), programtest.Tool(t, "node", programtest.NodeHelp),
			filepath.Join(nodeModules(t, "mcp-remote"), "node_modules", "mcp-remote", "dist", "proxy.js"), url)
		cmd.Env = append(noBrowser(t), "MCP_REMOTE_CONFIG_DIR="+state)
		stderr, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			p.read(t.Context(), stderr, &said)
		}()
		defer func() {
			<-done
			if t.Failed() {
				t.Logf("mcp-remote said:\n%s", &said)
			}
		}()
		ctx, cancel := context.WithTimeout(t.Context(), runLimit)
		defer cancel()
		client := mcp.NewClient(&mcp.Implementation{Name: "signin", Version: "1"}, nil)
		session, err := client.Connect(ctx, &mcp.CommandTransport{Command: cmd}, &mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
		if err != nil {
			t.Error(err)
			return 0
		}
		defer func() { _ = session.Close() }()
		list, err := session.ListTools(ctx, nil)
		if err != nil {
			t.Error(err)
			return 0
		}
		if res, err := session.CallTool(ctx, &mcp.CallToolParams{Name: list.Tools[0].Name, Arguments: map[string]any{}}); err != nil || res.IsError {
			t.Errorf("%v, %v", res, err)
		}
		return len(list.Tools)
	}
	p := newPerson()
	if tools := connect(p); tools != 1 || p.logins.Load() != 1 {
		t.Fatalf("%d tools, %d sign-ins", tools, p.logins.Load())
	}
	store := onlyFile(t, filepath.Join(state, "*", "*_tokens.json"))
	before := spoil(t, store)
	if tools := connect(p); tools != 1 || p.logins.Load() != 1 {
		t.Fatalf("with a bad access token: %d tools, %d sign-ins", tools, p.logins.Load())
	}
	checkRefreshed(t, before, store)
	p.check(t)
}

// The inspector's command line signs in, and later refreshes its token.
func TestInspectorSignsIn(t *testing.T) {
	state, url := t.TempDir(), hostWithSignIn(t)
	cli := filepath.Join(nodeModules(t, "inspector"), "node_modules", "@modelcontextprotocol", "inspector", "clients", "launcher", "build", "index.js")
	p := newPerson()
	inspect := func(args ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), runLimit)
		defer cancel()
		args = append([]string{cli, "--cli", url, "--transport", "http", "--callback-url", "http://" + freeAddress(t) + "/oauth/callback"}, args...)
		cmd := exec.CommandContext(ctx, programtest.Tool(t, "node", programtest.NodeHelp), args...)
		cmd.WaitDelay = 5 * time.Second
		cmd.Env = append(noBrowser(t), "HOME="+state, "MCP_INSPECTOR_SECRET_STORE=file", "MCP_AUTO_OPEN_ENABLED=true")
		var out, said bytes.Buffer
		cmd.Stdout = &out
		stderr, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		p.read(t.Context(), stderr, &said)
		if err := cmd.Wait(); err != nil {
			t.Fatalf("%v\n%s%s", err, &out, &said)
		}
		return out.String()
	}
	if out := inspect("--method", "tools/list"); !strings.Contains(out, `"add"`) || p.logins.Load() != 1 {
		t.Fatalf("%d sign-ins: %s", p.logins.Load(), out)
	}
	store := filepath.Join(state, ".mcp-inspector", "secrets.json")
	before := spoil(t, store)
	if out := inspect("--method", "tools/call", "--tool-name", "add", "--tool-arg", "by=2"); !strings.Contains(out, `"2"`) || p.logins.Load() != 1 {
		t.Fatalf("with a bad access token: %d sign-ins: %s", p.logins.Load(), out)
	}
	checkRefreshed(t, before, store)
	p.check(t)
}

// tokens are those that a program keeps.
type tokens struct{ access, refresh string }

// kept reads the tokens in a program's file. Only we write tokens that begin so.
func kept(t *testing.T, path string) tokens {
	t.Helper()
	text := programtest.Read(t, path)
	find := func(begin string) string {
		found := regexp.MustCompile(begin+`_[A-Za-z0-9_-]{20,}`).FindAll(text, -1)
		if len(found) != 1 {
			t.Fatalf("%s has %d tokens that begin with %s, want one", path, len(found), begin)
		}
		return string(found[0])
	}
	return tokens{find("da"), find("dr")}
}

// spoil changes the end of the access token in a program's file, as if it had expired. It
// returns the tokens from before.
func spoil(t *testing.T, path string) tokens {
	t.Helper()
	before := kept(t, path)
	bad := before.access[:len(before.access)-4] + "AAAA"
	programtest.Write(t, path, bytes.ReplaceAll(programtest.Read(t, path), []byte(before.access), []byte(bad)))
	return before
}

// checkRefreshed checks that both tokens in a program's file are new.
func checkRefreshed(t *testing.T, before tokens, path string) {
	t.Helper()
	if now := kept(t, path); now.access == before.access || now.refresh == before.refresh {
		t.Error("the client has not refreshed its token")
	}
}

func onlyFile(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) != 1 {
		t.Fatalf("%s fits %q, want one file (%v)", pattern, found, err)
	}
	return found[0]
}

// check fails the test if a sign-in failed.
func (p *person) check(t *testing.T) {
	t.Helper()
	select {
	case err := <-p.failed:
		t.Error(err)
	default:
	}
}
