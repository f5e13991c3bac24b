//go:build clients

package clients

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/proof/internal/programtest"
)

// These tests run releases of the SDKs of two years, by the programs in releases. Users
// keep old releases for long, and each protocol version adds what older clients refuse.
// The test says each step to a program on stdin, and the program answers with an outcome.
// An error that the SDK only logs fails the step, because users would see it.

// sseBelow is HTTP+SSE for an SDK that takes a base URL and a path. Its base is the
// server's URL. With sse the base is the host.
const sseBelow = "sse-below"

// release is one release of an SDK over one transport.
type release struct {
	sdk, version string
	published    string // the month
	transport    string
	broke        bool // at some time it did not work with Dormouse, so CI runs it
	prepare      func(t *testing.T, version string) []string
}

// releases returns a release of each SDK for each half year since 2025, as far as there is
// one with a client for HTTP.
func releases() []release {
	return []release{
		{"Java", "0.10.0", "2025-05", sse, false, prepareJavaRelease}, // its only transport
		{"Java", "0.14.1", "2025-10", streamable, false, prepareJavaRelease},
		{"Java", "0.14.1", "2025-10", sse, false, prepareJavaRelease},
		{"Java", "0.14.1", "2025-10", sseBelow, false, prepareJavaRelease},
		{"Java", "0.17.0", "2025-12", streamable, true, prepareJavaRelease},
		{"Java", "1.0.0", "2026-02", streamable, false, prepareJavaRelease},
		{"Java", "1.1.5", "2026-10", streamable, true, prepareJavaRelease},
		{"Java", "1.1.5", "2026-10", sse, true, prepareJavaRelease},
		{"Java", "1.1.5", "2026-10", sseBelow, false, prepareJavaRelease},
		{"Java", "2.1.0", "2026-10", streamable, false, prepareJavaRelease},
		{"Java", "2.1.0", "2026-10", sse, false, prepareJavaRelease},
		{"Java", "2.1.0", "2026-10", sseBelow, false, prepareJavaRelease},
		{"TypeScript", "1.10.2", "2025-04", streamable, true, prepareTypeScriptRelease},
		{"TypeScript", "1.10.2", "2025-04", sse, false, prepareTypeScriptRelease},
		{"TypeScript", "1.23.0", "2025-11", streamable, false, prepareTypeScriptRelease},
		{"TypeScript", "1.29.0", "2026-03", streamable, false, prepareTypeScriptRelease},
		{"TypeScript", "1.32.2", "2026-10", streamable, false, prepareTypeScriptRelease},
		{"TypeScript", "2.4.0", "2026-10", streamable, false, prepareTypeScriptRelease},
		{"Python", "1.9.4", "2025-06", streamable, true, preparePythonRelease},
		{"Python", "1.9.4", "2025-06", sse, false, preparePythonRelease},
		{"Python", "1.12.4", "2025-08", streamable, false, preparePythonRelease},
		{"Python", "1.22.0", "2025-11", streamable, false, preparePythonRelease},
		{"Python", "1.28.1", "2026-06", streamable, false, preparePythonRelease},
		{"Python", "1.30.0", "2026-09", streamable, false, preparePythonRelease},
		{"Python", "2.3.0", "2026-10", streamable, false, preparePythonRelease},
		{"Go", "1.0.0", "2025-09", streamable, false, prepareGoRelease},
		{"Go", "1.2.0", "2025-12", streamable, true, prepareGoRelease},
		{"Go", "1.2.0", "2025-12", sse, false, prepareGoRelease},
		{"Go", "1.6.1", "2026-05", streamable, false, prepareGoRelease},
		{"Go", "1.8.0", "2026-09", streamable, false, prepareGoRelease},
	}
}

func (r release) String() string { return r.sdk + " " + r.version + " over " + r.transport }

// slug names the server of a release.
func (r release) slug() string {
	return regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ToLower(r.sdk+"-"+r.version+"-"+r.transport), "-")
}

// releaseCheck is a check of a release, and the step that the program is told for it.
type releaseCheck struct{ title, step string }

// wakes is the title of the check before which the test waits until the server sleeps.
const wakes = "call that wakes"

// releaseChecks returns the checks in their order. The server starts slowly, so that
// Dormouse answers those that start it with an event stream.
func releaseChecks() []releaseCheck {
	return []releaseCheck{
		{"cold start", "connect"}, {"list", "list"}, {"call", "call"}, {"call of 3 s", "slow"}, {"push", "push"},
		{wakes, "call"}, {"push to the woken", "push"}, {"close", "close"},
	}
}

// sleepLimit bounds the time until an idle server sleeps.
const sleepLimit = 30 * time.Second

// slowServer is a server that starts slowly. It notes its starts and ends in a file.
type slowServer struct{ journal string }

func (s slowServer) entry(eras string) map[string]any {
	const script = `echo started >>"$1"; sleep 2; "$2" dual; echo ended >>"$1"`
	return map[string]any{
		"command": "/bin/sh", "args": []string{"-c", script, "sh", s.journal, eras},
		"x-dormouse": map[string]any{"idle_seconds": 2},
	}
}

// starts returns how often the server was started, and whether all of these have ended.
func (s slowServer) starts(t *testing.T) (n int, ended bool) {
	journal := programtest.Read(t, s.journal)
	n = bytes.Count(journal, []byte("started"))
	return n, n == bytes.Count(journal, []byte("ended"))
}

// asleep waits until the server sleeps.
func (s slowServer) asleep(ctx context.Context, t *testing.T) error {
	ctx, cancel := context.WithTimeout(ctx, sleepLimit)
	defer cancel()
	for {
		if _, ended := s.starts(t); ended {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.New("the server does not sleep")
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func TestReleasesThatOnceBroke(t *testing.T) {
	var broke []release
	for _, r := range releases() {
		if r.broke {
			broke = append(broke, r)
		}
	}
	runReleases(t, broke)
}

// runReleases runs releases, some of them at the same time, each with a server of its own.
// A subtest reports each.
func runReleases(t *testing.T, rows []release) {
	t.Helper()
	eras := prepareEras(t)
	commands, servers, entries := make([][]string, len(rows)), make([]slowServer, len(rows)), map[string]any{}
	for i, r := range rows {
		commands[i] = r.prepare(t, r.version)
		servers[i] = slowServer{filepath.Join(t.TempDir(), "journal")}
		programtest.Write(t, servers[i].journal, nil)
		entries[r.slug()] = servers[i].entry(eras)
	}
	hosted := programtest.Host(t, entries)
	const atOnce = 6 // they wait more than they compute
	failures := make([][]string, len(rows))
	var running sync.WaitGroup
	free := make(chan struct{}, atOnce)
	for i, r := range rows {
		url := dormouseURLs(hosted[r.slug()].URL, "")[streamable]
		if r.transport != streamable {
			url = dormouseURLs(url, "")[sse]
		}
		command := append(commands[i], "--url", url, "--transport", r.transport)
		running.Go(func() {
			free <- struct{}{}
			defer func() { <-free }()
			failures[i] = playRelease(t, r, command, servers[i])
		})
	}
	running.Wait()
	for i, r := range rows {
		t.Run(r.String(), func(t *testing.T) {
			for _, failure := range failures[i] {
				t.Error(failure)
			}
		})
	}
}

// playRelease runs the program of a release through the checks. It returns what failed. It
// goes on after a failure, but not without a connection.
func playRelease(t *testing.T, r release, command []string, server slowServer) (failures []string) {
	ctx, cancel := context.WithTimeout(t.Context(), runLimit)
	defer cancel()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stderr, cmd.WaitDelay = &stderr, 5*time.Second
	fail := func(format string, args ...any) { failures = append(failures, fmt.Sprintf(format, args...)) }
	steps, err := cmd.StdinPipe()
	if err != nil {
		return []string{err.Error()}
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return []string{err.Error()}
	}
	if err := cmd.Start(); err != nil {
		return []string{err.Error()}
	}
	lines := bufio.NewReader(stdout)
	for _, check := range releaseChecks() {
		if check.title == wakes {
			if err := server.asleep(ctx, t); err != nil {
				fail("%s: %v", check.title, err)
			}
		}
		got, err := takeStep(steps, lines, check.step)
		switch {
		case err != nil:
			fail("%s: %v", check.title, err)
		case got.Client != r.client():
			fail("%s: the client calls itself %s", check.title, got.Client)
		case !got.OK:
			fail("%s: after %d ms: %s", check.title, got.MS, got.Error)
		}
		if err != nil || !got.OK && check.step == "connect" {
			break
		}
	}
	_ = steps.Close() // the program ends at the end of its input
	if err := cmd.Wait(); err != nil {
		fail("the client ended with: %v", err)
	}
	if len(failures) > 0 && stderr.Len() > 0 {
		fail("stderr: %.4000s", stderr.Bytes())
	}
	return failures
}

// takeStep has a program take a step, and returns its outcome.
func takeStep(steps io.Writer, lines *bufio.Reader, step string) (got outcome, err error) {
	if _, err := fmt.Fprintln(steps, step); err != nil {
		return got, err
	}
	line, err := lines.ReadBytes('\n')
	if err != nil {
		return got, fmt.Errorf("the client ended: %w", err)
	}
	if err := json.Unmarshal(line, &got); err != nil || got.Check != step {
		return got, fmt.Errorf("the client's output is not the outcome of %s: %s (%w)", step, line, err)
	}
	return got, nil
}

// client returns the name that the program must report.
func (r release) client() string {
	return map[string]string{"Java": "java", "TypeScript": "ts", "Python": "py", "Go": "go"}[r.sdk] + "-" + r.version
}
