// Command gosdk is the official Go SDK as a test client. It runs a fixed list of checks
// against one MCP endpoint that hosts server-everything, and prints one JSON line for
// each.
//
//	gosdk --url http://127.0.0.1:8080/mcp --transport http
//	gosdk --url http://127.0.0.1:8080/sse --transport sse
//	gosdk --url 'ws://127.0.0.1:8081/local?server=everything' --transport ws
//
// With --era modern the SDK must speak the era without sessions (2026-07-28), and the
// checks leave out features that the era does not have.
//
// With --cold the server has not been started yet, and server/discover may lack the server's name.
//
// With --through it speaks stdio to a program that passes the messages on to the endpoint.
//
// With --sign-in it signs in, calls a tool, and refreshes its token instead; see signin.go.
//
// Exit code: 0 all checks passed, 1 some failed, 2 wrong usage. The same checks, under the same
// names, are in ../ts/client.mjs and ../py/client.py.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

const (
	checkTimeout = 60 * time.Second
	sdkModule    = "github.com/modelcontextprotocol/go-sdk"
)

// check is one named promise of the endpoint. The function run returns nil if the promise holds.
type check struct {
	name string
	run  func(context.Context, *session) error
}

// outcome is one line of output. Milliseconds are real time; Error is empty when OK.
type outcome struct {
	Client string `json:"client"`
	Check  string `json:"check"`
	OK     bool   `json:"ok"`
	MS     int64  `json:"ms"`
	Error  string `json:"error,omitempty"`
}

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("gosdk", flag.ContinueOnError)
	flags.SetOutput(stderr)
	url := flags.String("url", "", "the MCP endpoint")
	transport := flags.String("transport", "http", "the transport: http, sse or ws")
	protocol := flags.String("protocol", "", "the protocol version to offer; empty means the SDK's own default")
	era := flags.String("era", "legacy", "the checks to run: legacy or modern")
	cold := flags.Bool("cold", false, "the server has yet to start, and need not say who it is")
	one := flags.String("one", "", "the URL has all servers, among them the one of this name")
	through := flags.String("through", "", "a program, with arguments, that speaks stdio here and to the endpoint there; its URL is added")
	sign := flags.Bool("sign-in", false, "sign in and refresh the token instead of the checks; see signin.go")
	document := flags.String("document", "", "with --sign-in, the URL of the client's metadata document; without it the client registers itself")
	revoke := flags.Bool("revoke", false, "with --sign-in, revoke the grant at last, and sign in once more")
	stepUp := flags.Bool("step-up", false, "with --sign-in, only call the tool, which needs a scope that the token has not")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if *url != "" && *sign {
		return runSignIn(ctx, &signingIn{url: *url, protocol: *protocol, document: *document, revoke: *revoke, stepUp: *stepUp}, stdout, stderr)
	}
	if *url == "" || !slices.Contains([]string{"http", "sse", "ws"}, *transport) || !slices.Contains([]string{"legacy", "modern"}, *era) {
		flags.Usage()
		return 2
	}
	if *through != "" {
		*transport = "stdio"
	}
	s := newSession(*url, *transport, *protocol)
	s.through = append(strings.Fields(*through), *url)
	s.modern, s.cold, s.one = *era == "modern", *cold, *one
	lines := json.NewEncoder(stdout)
	lines.SetEscapeHTML(false)
	client, code := "go-"+sdkVersion(), 0
	for _, c := range s.checks() {
		line := runCheck(ctx, s, client, c)
		if !line.OK {
			code = 1
		}
		if err := lines.Encode(line); err != nil {
			return 1 // nobody reads the lines any more
		}
	}
	return code
}

func runCheck(ctx context.Context, s *session, client string, c check) outcome {
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	err := errors.New("not run: there is no session")
	if s.sdk != nil || c.name == "initialize" {
		err = c.run(ctx, s)
	}
	line := outcome{Client: client, Check: c.name, OK: err == nil, MS: time.Since(begin).Milliseconds()}
	if err != nil {
		line.Error = err.Error()
	}
	return line
}

// sdkVersion returns the version of the linked SDK, without its v.
func sdkVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, dep := range info.Deps {
		if dep.Path == sdkModule && len(dep.Version) > 1 {
			return dep.Version[1:]
		}
	}
	return "unknown"
}
