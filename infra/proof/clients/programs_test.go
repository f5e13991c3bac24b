//go:build clients

package clients

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/infra/proof/internal/programtest"
	"github.com/dormouse-mcp/dormouse/infra/proof/internal/webuser"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// person is the user of a program that signs in. The program prints the URL that the user
// should open, and listens for the callback.
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
		authorize := link.FindString(lines.Text())
		if authorize == "" {
			continue
		}
		p.logins.Add(1)
		if err := p.visit(ctx, authorize); err != nil {
			p.failed <- err
		}
	}
}

// visit goes through the pages, and back to the program. mcp-remote may listen only some
// time after it has printed the URL, so the user reloads the last page.
func (p *person) visit(ctx context.Context, authorize string) error {
	u, err := url.Parse(authorize)
	if err != nil {
		return err
	}
	back, err := p.user.Visit(ctx, authorize, u.Query().Get("redirect_uri"))
	if err != nil {
		return err
	}
	for tries := 0; ; tries++ {
		_, err := p.user.Visit(ctx, back.URL.String(), "")
		if !errors.Is(err, syscall.ECONNREFUSED) || tries > 60 {
			return err
		}
		time.Sleep(time.Second)
	}
}

// noBrowser is an environment in which a program that opens a browser opens none.
func noBrowser(t *testing.T) []string {
	t.Helper()
	nothing := programtest.Tool(t, "true", "a Unix system has it")
	dir := t.TempDir()
	for _, name := range []string{"open", "xdg-open", "gio", "x-www-browser", "sensible-browser"} {
		commontest.OK(t, os.Symlink(nothing, filepath.Join(dir, name)))
	}
	path := dir + string(os.PathListSeparator) + os.Getenv("PATH")
	return append(os.Environ(), "PATH="+path, "BROWSER="+nothing, "DISPLAY=", "WAYLAND_DISPLAY=", "XDG_CURRENT_DESKTOP=", "DESKTOP_SESSION=")
}

// The program mcp-remote signs in, and later refreshes its token. After its grant was
// revoked, it signs in again. It is in front of the Go client.
func TestMCPRemoteSignsIn(t *testing.T) {
	atBoth(t, func(t *testing.T, at string) {
		// The test names the port. mcp-remote would derive a port from the URL, which may be
		// taken the first time and free the second. It would then delete its registration,
		// and with it the sign-in.
		_, port, err := net.SplitHostPort(commontest.FreeAddress(t))
		commontest.OK(t, err)
		throughSignsIn(t, at, "*/*_tokens.json", func(at, state string) *exec.Cmd {
			cmd := exec.CommandContext(t.Context(), programtest.Tool(t, "node", programtest.NodeHelp),
				filepath.Join(nodeModules(t, "mcp-remote"), "node_modules", "mcp-remote", "dist", "proxy.js"), at, port)
			cmd.Env = append(noBrowser(t), "MCP_REMOTE_CONFIG_DIR="+state)
			return cmd
		})
	})
}

// dormouse stdio does the same.
func TestStdioSignsIn(t *testing.T) {
	atBoth(t, func(t *testing.T, at string) {
		throughSignsIn(t, at, "dormouse/tokens/*.json", func(at, state string) *exec.Cmd {
			cmd := exec.CommandContext(t.Context(), filepath.Join(programtest.Root(t), "bin", "dormouse"), "stdio", at)
			cmd.Env = append(noBrowser(t), "XDG_CONFIG_HOME="+state)
			return cmd
		})
	})
}

// atBoth runs a test at the URL of a server where users sign in with any name, and of one behind
// API Gateway.
func atBoth(t *testing.T, test func(t *testing.T, at string)) {
	t.Parallel()
	for place, host := range map[string]func(*testing.T) string{"any name": hostWithSignIn, "behind API Gateway": hostBehindAPIGateway} {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			test(t, host(t))
		})
	}
}

// throughSignsIn has the Go client use a program that makes the endpoint at a stdio server.
// The program keeps its tokens in the files of a folder.
func throughSignsIn(t *testing.T, at, files string, program func(at, state string) *exec.Cmd) {
	t.Helper()
	state := t.TempDir()
	connect := func(p *person) (tools int) {
		t.Helper()
		var said bytes.Buffer
		cmd := program(at, state)
		stderr, err := cmd.StderrPipe()
		commontest.OK(t, err)
		done := make(chan struct{})
		go func() {
			defer close(done)
			p.read(t.Context(), stderr, &said)
		}()
		defer func() {
			<-done
			if t.Failed() {
				t.Logf("the program said:\n%s", &said)
			}
		}()
		ctx, cancel := context.WithTimeout(t.Context(), runLimit)
		defer cancel()
		client := mcp.NewClient(&mcp.Implementation{Name: "signin", Version: "1"}, nil)
		session, err := client.Connect(ctx, &mcp.CommandTransport{Command: cmd}, &mcp.ClientSessionOptions{ProtocolVersion: legacyEra})
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
	store := programtest.OnlyFile(t, filepath.Join(state, files), "the program keeps its tokens there")
	before := spoil(t, store)
	if tools := connect(p); tools != 1 || p.logins.Load() != 1 {
		t.Fatalf("with a bad access token: %d tools, %d sign-ins", tools, p.logins.Load())
	}
	checkRefreshed(t, before, store)
	endGrant(t, at, kept(t, store))
	if tools := connect(p); tools != 1 || p.logins.Load() != 2 {
		t.Errorf("with a revoked grant: %d tools, %d sign-ins", tools, p.logins.Load())
	}
	p.check(t)
}

// The inspector's command line signs in, and later refreshes its token.
// After its grant was revoked, it signs in again. It registers, or it is the client of a
// metadata document.
func TestInspectorSignsIn(t *testing.T) {
	atBoth(t, func(t *testing.T, at string) { inspectorSignsIn(t, at) })
	t.Run("with a document", func(t *testing.T) {
		t.Parallel()
		s := newColdSite(t)
		inspectorSignsIn(t, s.url+"/counter/mcp", "--client-metadata-url", s.document)
		s.checkDocument(t)
	})
}

func inspectorSignsIn(t *testing.T, at string, flags ...string) {
	t.Helper()
	state := t.TempDir()
	cli := filepath.Join(nodeModules(t, "inspector"), "node_modules", "@modelcontextprotocol", "inspector", "clients", "launcher", "build", "index.js")
	p := newPerson()
	inspect := func(args ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), runLimit)
		defer cancel()
		args = slices.Concat([]string{cli, "--cli", at, "--transport", "http", "--callback-url", "http://" + commontest.FreeAddress(t) + "/oauth/callback"}, flags, args)
		cmd := exec.CommandContext(ctx, programtest.Tool(t, "node", programtest.NodeHelp), args...)
		cmd.WaitDelay = 5 * time.Second
		cmd.Env = append(noBrowser(t), "HOME="+state, "MCP_INSPECTOR_SECRET_STORE=file", "MCP_AUTO_OPEN_ENABLED=true")
		var out, said bytes.Buffer
		cmd.Stdout = &out
		stderr, err := cmd.StderrPipe()
		commontest.OK(t, err)
		commontest.OK(t, cmd.Start())
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
	endGrant(t, at, kept(t, store))
	if out := inspect("--method", "tools/list"); !strings.Contains(out, `"add"`) || p.logins.Load() != 2 {
		t.Errorf("with a revoked grant: %d sign-ins: %s", p.logins.Load(), out)
	}
	p.check(t)
}

// endGrant revokes the grant of tokens, and waits until the access token is refused.
func endGrant(t *testing.T, at string, of tokens) {
	t.Helper()
	post := func(to, kind, body string) int {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, to, strings.NewReader(body))
		commontest.OK(t, err)
		r.Header.Set("Content-Type", kind)
		r.Header.Set("Accept", "application/json, text/event-stream")
		if to == at {
			r.Header.Set("Authorization", "Bearer "+of.access)
		}
		res, err := http.DefaultClient.Do(r)
		commontest.OK(t, err)
		_ = res.Body.Close() // only its status matters
		return res.StatusCode
	}
	base := at[:strings.LastIndex(at, "/counter/")]
	if status := post(base+"/revoke", "application/x-www-form-urlencoded", "token="+of.refresh); status != http.StatusOK {
		t.Fatalf("the revocation: %d", status)
	}
	for until := time.Now().Add(time.Minute); post(at, "application/json", `{"jsonrpc":"2.0","id":1,"method":"ping"}`) != http.StatusUnauthorized; {
		if time.Now().After(until) {
			t.Fatal("the access token of a revoked grant is good after a minute")
		}
		time.Sleep(time.Second)
	}
}

// tokens are the tokens that a program has stored.
type tokens struct{ access, refresh string }

// kept reads the tokens in a program's file. Only Dormouse's tokens begin with da_ and
// dr_. The same letters may occur within another token, so kept also checks the character
// before them.
func kept(t *testing.T, path string) tokens {
	t.Helper()
	text := programtest.Read(t, path)
	find := func(begin string) string {
		found := regexp.MustCompile(`(?:^|[^A-Za-z0-9_-])(`+begin+`_[A-Za-z0-9_-]{20,})`).FindAllSubmatch(text, -1)
		if len(found) != 1 {
			t.Fatalf("%s has %d tokens that begin with %s, want one", path, len(found), begin)
		}
		return string(found[0][1])
	}
	return tokens{find("da"), find("dr")}
}

// spoil changes the end of the access token in a program's file, so that the token is
// refused like an expired one. It returns the tokens from before.
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

// check fails the test if a sign-in failed.
func (p *person) check(t *testing.T) {
	t.Helper()
	select {
	case err := <-p.failed:
		t.Error(err)
	default:
	}
}
