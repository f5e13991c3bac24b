//go:build clients

package clients

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
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
		{"Kotlin", "0.8.1", "2025-12", streamable, false, prepareKotlinRelease},
		{"Kotlin", "0.14.0", "2026-06", streamable, false, prepareKotlinRelease},
		{"Kotlin", "0.16.0", "2026-11", streamable, false, prepareKotlinRelease},
		{"Rust", "0.12.0", "2025-12", streamable, false, prepareRustRelease},
		{"Rust", "1.8.0", "2026-06", streamable, false, prepareRustRelease},
	}
}

func (r release) String() string { return r.sdk + " " + r.version + " over " + r.transport }

// slug names the server of a release.
func (r release) slug() string {
	return regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ToLower(r.sdk+"-"+r.version+"-"+r.transport), "-")
}

// releaseCheck is a check of a release, and the step that the program is told for it.
type releaseCheck struct{ title, step string }

// These checks begin after something else: the server sleeps, or the first response with
// the standalone stream has ended.
const (
	wakes    = "call that wakes"
	latePush = "push after 30 s"
)

// lateAfter is longer than Dormouse holds the standalone stream.
const lateAfter = 30 * time.Second

// releaseChecks returns the checks in their order. The server starts slowly, so that
// Dormouse answers those that start it with an event stream.
func releaseChecks() []releaseCheck {
	return []releaseCheck{
		{"cold start", "connect"},
		{"list", "list"},
		{"call", "call"},
		{"call of 3 s", "slow"},
		{"push", "push"},
		{wakes, "call"},
		{"push to the woken", "push"},
		{latePush, "push"},
		{"close", "close"},
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

// asleep waits until the server sleeps.
func (s slowServer) asleep(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, sleepLimit)
	defer cancel()
	for {
		journal, err := os.ReadFile(s.journal)
		if err != nil {
			return err
		}
		if bytes.Count(journal, []byte("started")) == bytes.Count(journal, []byte("ended")) {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.New("the server does not sleep")
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// TestReleasesThatOnceBroke leaves out the late push, which takes half a minute.
func TestReleasesThatOnceBroke(t *testing.T) {
	broke := slices.DeleteFunc(releases(), func(r release) bool { return !r.broke })
	fast := slices.DeleteFunc(releaseChecks(), func(c releaseCheck) bool { return c.title == latePush })
	playReleases(t, broke, fast)
}

// playReleases runs releases, some of them at the same time, each with a server of its
// own. A subtest reports each. It returns what failed, by row and title of the check.
func playReleases(t *testing.T, rows []release, checks []releaseCheck) []map[string]string {
	t.Helper()
	eras := prepareEras(t)
	runs, entries := make([]releaseRun, len(rows)), map[string]any{}
	for i, r := range rows {
		server := slowServer{filepath.Join(t.TempDir(), "journal")}
		programtest.Write(t, server.journal, nil)
		entries[r.slug()] = server.entry(eras)
		runs[i] = releaseRun{release: r, command: r.prepare(t, r.version), server: server}
	}
	hosted := programtest.Host(t, entries)
	const atOnce = 6 // they wait more than they compute
	failed := make([]map[string]string, len(rows))
	var running sync.WaitGroup
	free := make(chan struct{}, atOnce)
	for i, run := range runs {
		url := hosted[run.slug()].URL
		if run.transport != streamable {
			url = dormouseURLs(url, "")[sse]
		}
		run.command = append(run.command, "--url", url, "--transport", run.transport)
		running.Go(func() {
			free <- struct{}{}
			defer func() { <-free }()
			failed[i] = run.play(t.Context(), checks)
		})
	}
	running.Wait()
	for i, r := range rows {
		t.Run(r.String(), func(t *testing.T) {
			for _, check := range checks {
				why, ok := failed[i][check.title]
				if ok {
					t.Errorf("%s: %s", check.title, why)
				}
			}
		})
	}
	return failed
}

// releaseRun is one run of a release's program.
type releaseRun struct {
	release
	command []string
	server  slowServer
}

// play runs the program through the checks. It returns what failed, by the title of the
// check. After a failure it goes on, as users would, but not without a connection.
func (r releaseRun) play(ctx context.Context, checks []releaseCheck) map[string]string {
	ctx, cancel := context.WithTimeout(ctx, 2*runLimit)
	defer cancel()
	failed := map[string]string{}
	cmd := exec.CommandContext(ctx, r.command[0], r.command[1:]...)
	var stderr bytes.Buffer
	cmd.Stderr, cmd.WaitDelay = &stderr, 5*time.Second
	steps, inErr := cmd.StdinPipe()
	stdout, outErr := cmd.StdoutPipe()
	lost := errors.Join(inErr, outErr)
	if lost == nil {
		lost = cmd.Start()
	}
	started := lost == nil
	for lines := bufio.NewReader(stdout); len(checks) > 0; checks = checks[1:] {
		check := checks[0]
		if lost != nil {
			failed[check.title] = lost.Error()
			continue
		}
		if err := r.await(ctx, check); err != nil {
			failed[check.title] = err.Error()
		}
		got, err := takeStep(steps, lines, check.step)
		switch {
		case err != nil:
			lost = fmt.Errorf("the client ended: %w", err)
			failed[check.title] = lost.Error()
		case got.Client != r.client():
			failed[check.title] = "the client calls itself " + got.Client
		case !got.OK:
			failed[check.title] = fmt.Sprintf("after %d ms: %s", got.MS, got.Error)
			if check.step == "connect" {
				lost = errors.New("not run: there is no connection")
			}
		}
	}
	if started {
		_ = steps.Close() // the program ends at the end of its input
		if err := cmd.Wait(); err != nil {
			failed["close"] = fmt.Sprintf("%v: %.4000s", err, &stderr)
		}
	}
	return failed
}

// await waits for what comes before a check.
func (r releaseRun) await(ctx context.Context, check releaseCheck) error {
	switch check.title {
	case wakes:
		return r.server.asleep(ctx)
	case latePush:
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(lateAfter):
		}
	}
	return nil
}

// takeStep has a program take a step, and returns its outcome.
func takeStep(steps io.Writer, lines *bufio.Reader, step string) (got outcome, err error) {
	if _, err := fmt.Fprintln(steps, step); err != nil {
		return got, err
	}
	line, err := lines.ReadBytes('\n')
	if err != nil {
		return got, err
	}
	if err := json.Unmarshal(line, &got); err != nil || got.Check != step {
		return got, fmt.Errorf("%q is not the outcome of %s: %w", line, step, err)
	}
	return got, nil
}

// client returns the name that the program must report.
func (r release) client() string {
	short := map[string]string{"TypeScript": "ts", "Python": "py"}
	return cmp.Or(short[r.sdk], strings.ToLower(r.sdk)) + "-" + r.version
}
