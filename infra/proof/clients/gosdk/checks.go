package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	cancelPrompt = 3 * time.Second
	modernSince  = "2026-07-28"
	handshake    = "2025-11-25"
)

func allChecks() []check {
	return []check{
		{"initialize", checkInitialize},
		{"list", checkList},
		{"echo-unicode", checkEchoUnicode},
		{"echo-large", checkEchoLarge},
		{"echo-20", checkEcho20},
		{"progress", checkProgress},
		{"sampling", checkSampling},
		{"elicitation", checkElicitation},
		{"roots", checkRoots},
		{"logging", checkLogging},
		{"cancel", checkCancel},
		{"ping", checkPing},
		{"close", checkClose},
	}
}

// checks returns the checks for the protocol version. Without sessions there is no ping and no log
// level.
func (s *session) checks() []check {
	return slices.DeleteFunc(allChecks(), func(c check) bool {
		return s.modern && (c.name == "logging" || c.name == "ping")
	})
}

// checkInitialize checks the protocol version. With s.modern it must be one without sessions.
// Otherwise it must be s.protocol, or one that the SDK was free to choose.
//
//nolint:staticcheck // logging is part of what is tested, deprecated from 2026-07-28 or not
func checkInitialize(ctx context.Context, s *session) error {
	if err := s.connect(ctx); err != nil {
		return err
	}
	result := s.sdk.InitializeResult()
	want := s.protocol
	if want == "" {
		want = handshake
		if result.ProtocolVersion >= modernSince {
			want = modernSince
		}
	}
	modern := result.ProtocolVersion >= modernSince
	if s.modern && !modern {
		return fmt.Errorf("negotiated version %s is not of the modern era", result.ProtocolVersion)
	}
	if s.cold {
		return nil // the server may not have given its name yet
	}
	if result.ServerInfo == nil || result.Capabilities == nil {
		return errors.New("the server names neither itself nor what it can")
	}
	name, version := "mcp-servers/everything", "2.0.0"
	if s.one != "" {
		name, version = "dormouse", "1"
	}
	return errors.Join(
		wantText(result.ServerInfo.Name, name, "serverInfo.name"),
		wantText(result.ServerInfo.Version, version, "serverInfo.version"),
		wantText(result.ProtocolVersion, want, "negotiated version"),
		wantTrue(s.kind != "http" || modern == (s.sdk.ID() == ""), "session id %q does not fit version %s", s.sdk.ID(), want),
		wantTrue(result.Capabilities.Tools != nil, "capability tools is missing"),
		wantTrue(result.Capabilities.Prompts != nil, "capability prompts is missing"),
		wantTrue(result.Capabilities.Resources != nil, "capability resources is missing"),
		wantTrue(modern || result.Capabilities.Logging != nil, "capability logging is missing"),
	)
}

// checkList reads every page: the SDK's iterators follow the cursors.
func checkList(ctx context.Context, s *session) error {
	tools, err1 := names(s.sdk.Tools(ctx, nil), func(t *mcp.Tool) string { return t.Name })
	prompts, err2 := names(s.sdk.Prompts(ctx, nil), func(p *mcp.Prompt) string { return p.Name })
	resources, err3 := names(s.sdk.Resources(ctx, nil), func(r *mcp.Resource) string { return r.URI })
	templates, err4 := names(s.sdk.ResourceTemplates(ctx, nil), func(t *mcp.ResourceTemplate) string { return t.URITemplate })
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return err
	}
	return errors.Join(
		wantAll(tools, "tools", s.named, "echo", "get-roots-list", "toggle-simulated-logging",
			"trigger-elicitation-request", "trigger-long-running-operation", "trigger-sampling-request"),
		wantAll(prompts, "prompts", s.named, "simple-prompt", "args-prompt", "completable-prompt", "resource-prompt"),
		wantAll(resources, "resources", s.located, "demo://resource/static/document/architecture.md"),
		wantAll(templates, "resource templates", s.located, "demo://resource/dynamic/text/{resourceId}"),
	)
}

func checkEchoUnicode(ctx context.Context, s *session) error {
	for _, sample := range []string{
		"plain ascii",
		"",
		"emoji 🐭💤 family 👨‍👩‍👧‍👦 flag 🇨🇭 skin 👍🏽",
		"right to left: שלום עולם, مرحبا بالعالم \u202eoverride\u202c",
		"four bytes: 𝄞 𠜎 𐍈; three: 漢字 ‱; two: éß",
		"combining: e\u0301 vs \u00e9, Z\u0351\u036b",
		"quotes \" ' ` and backslashes \\ \\\\ \\\" \\u0041 \\n",
		`json in json: {"a":[1,"\""]}`,
		"line ends: \n \r \r\n U+0085 \u0085 U+2028 \u2028 U+2029 \u2029 end",
		"sse in data: \ndata: x\n\nevent: message\nid: 7\n\n:",
		"controls: \x00 \x01 \x1f \x7f \ufeff \ufffd \ufffe",
		"markup </script><!-- & &amp; %20 +",
	} {
		if err := s.echo(ctx, sample); err != nil {
			return err
		}
	}
	return nil
}

// checkEchoLarge sends exactly 256 KiB of UTF-8, with characters of every length so that a
// cut inside one shows. Over WebSocket it sends 12 KiB. API Gateway takes frames of up to
// 32 KiB from clients, which send each message in one frame, and in JSON this text grows
// to up to 2.4 times its size.
func checkEchoLarge(ctx context.Context, s *session) error {
	const unit = "aé漢🐭\"\\\n\u2028"
	size := 256 << 10
	if s.kind == "ws" {
		size = 12 << 10
	}
	return s.echo(ctx, strings.Repeat(unit, size/len(unit))+strings.Repeat("x", size%len(unit)))
}

func checkEcho20(ctx context.Context, s *session) error {
	const calls = 20
	results := make(chan error, calls)
	for i := range calls {
		go func() { results <- s.echo(ctx, fmt.Sprintf("call %d 🐭", i)) }()
	}
	var failed []error
	for range calls {
		failed = append(failed, <-results)
	}
	return errors.Join(failed...)
}

func checkProgress(ctx context.Context, s *session) error {
	const steps = 5
	s.wire.restart()
	s.forgetProgress()
	params := &mcp.CallToolParams{
		Name:      "trigger-long-running-operation",
		Arguments: map[string]any{"duration": 1, "steps": steps},
	}
	params.SetProgressToken("progress-check")
	text, err := s.callWith(ctx, params)
	if err != nil {
		return err
	}
	var handled, want []string
	for i := range steps {
		want = append(want, fmt.Sprintf("%d/%d", i+1, steps))
	}
	// Check the wire first: the loop below would wait in vain for messages that never
	// arrived.
	err = errors.Join(
		wantText(strings.Join(s.wire.noted(), " "), strings.Join(append(want, "result"), " "), "progress on the wire"),
		wantTrue(strings.Contains(text, fmt.Sprintf("Steps: %d.", steps)), "unexpected result: %s", text),
	)
	if err != nil {
		return err
	}
	for range want {
		select {
		case seen := <-s.progress:
			handled = append(handled, seen)
		case <-ctx.Done():
			return fmt.Errorf("progress: only %v reached the handler", handled)
		}
	}
	return wantText(strings.Join(handled, " "), strings.Join(want, " "), "progress")
}

func checkSampling(ctx context.Context, s *session) error {
	prompt := "what is \"U+2028\"? \u2028 🐭 asks " + s.label
	asked := "Resource trigger-sampling-request context: " + prompt
	text, err := s.call(ctx, "trigger-sampling-request", map[string]any{"prompt": prompt, "maxTokens": 50})
	if err != nil {
		return err
	}
	var result struct {
		Model   string
		Content struct{ Text string }
	}
	if err := json.Unmarshal([]byte(text[max(strings.Index(text, "{"), 0):]), &result); err != nil {
		return fmt.Errorf("the result holds no sampling result: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(
		wantText(strings.Join(s.samplingPrompts, "|"), asked, "prompt that reached the client"),
		wantText(result.Content.Text, fmt.Sprintf(`sampled by %s 🐭 "%s"`, s.label, asked), "sampled text in the result"),
		wantText(result.Model, "test-model", "model in the result"),
	)
}

func checkElicitation(ctx context.Context, s *session) error {
	text, err := s.call(ctx, "trigger-elicitation-request", nil)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.elicitations) != 1 || s.elicitations[0].RequestedSchema == nil {
		return fmt.Errorf("want one question with a schema at the client, got %d", len(s.elicitations))
	}
	for _, line := range []string{"- Name: Ada “🐭” Løvelace", "- Agreed to terms: true", "- Favorite Integer: 17"} {
		if !strings.Contains(text, line) {
			return fmt.Errorf("the result lacks %q: %s", line, text)
		}
	}
	return nil
}

//nolint:staticcheck // roots are what is tested, deprecated from 2026-07-28 or not
func checkRoots(ctx context.Context, s *session) error {
	text, err := s.call(ctx, "get-roots-list", nil)
	if err != nil {
		return err
	}
	for _, want := range []string{"one\n   URI: file:///srv/one", "zwéi 🌱\n   URI: file:///srv/zw%C3%A9i"} {
		if !strings.Contains(text, want) {
			return fmt.Errorf("%q is not in: %s", want, text)
		}
	}
	if s.modern {
		return nil // nothing tells the server that the roots have changed
	}
	// The server asks for the new list when it chooses, and does not announce that it has the list.
	learnt, cancel := context.WithTimeout(ctx, checkTimeout/2)
	defer cancel()
	s.client.AddRoots(&mcp.Root{URI: "file:///srv/three", Name: "three"})
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for !strings.Contains(text, "file:///srv/three") {
		select {
		case <-again.C:
		case <-learnt.Done():
			return fmt.Errorf("the server did not learn the new roots: %s", text)
		}
		if text, err = s.call(ctx, "get-roots-list", nil); err != nil {
			return err
		}
	}
	return nil
}

//nolint:staticcheck // logging is what is tested, deprecated from 2026-07-28 or not
func checkLogging(ctx context.Context, s *session) (err error) {
	if err := s.sdk.SetLoggingLevel(ctx, &mcp.SetLoggingLevelParams{Level: "debug"}); err != nil {
		return err
	}
	toggled, err := s.call(ctx, "toggle-simulated-logging", nil)
	if err == nil && strings.HasPrefix(toggled, "Stopped") {
		_, err = s.call(ctx, "toggle-simulated-logging", nil)
	}
	if err != nil {
		return err
	}
	defer func() {
		_, stopErr := s.call(ctx, "toggle-simulated-logging", nil)
		err = errors.Join(err, stopErr)
	}()
	arrived, cancel := context.WithTimeout(ctx, checkTimeout/2)
	defer cancel()
	simulated := regexp.MustCompile(`(?i)level[ -]message`)
	for {
		select {
		case log := <-s.logs:
			if simulated.MatchString(log.text) {
				return wantTrue(log.level != "", "a log message has no level")
			}
		case <-arrived.Done():
			return errors.New("no log message arrived")
		}
	}
}

func checkCancel(ctx context.Context, s *session) error {
	callCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.forgetProgress()
	var cancelled atomic.Pointer[time.Time]
	go func() {
		select {
		case <-s.progress:
			now := time.Now()
			cancelled.Store(&now)
			cancel()
		case <-callCtx.Done():
		}
	}()
	params := &mcp.CallToolParams{
		Name:      "trigger-long-running-operation",
		Arguments: map[string]any{"duration": 10, "steps": 20},
	}
	params.SetProgressToken("cancel-check")
	_, err := s.callWith(callCtx, params)
	at := cancelled.Load()
	switch {
	case at == nil:
		return fmt.Errorf("the call ended before it was cancelled: %w", err)
	case !errors.Is(err, context.Canceled):
		return fmt.Errorf("a cancelled call ended in %w", err)
	case time.Since(*at) > cancelPrompt:
		return fmt.Errorf("the cancelled call ended only after %s", time.Since(*at))
	}
	return s.echo(ctx, "after cancel")
}

func checkPing(ctx context.Context, s *session) error {
	return s.sdk.Ping(ctx, nil)
}

// checkClose ends the session. It gives up when ctx ends, because the SDK's Close takes no context.
func checkClose(ctx context.Context, s *session) error {
	defer s.hangUp()
	hadSession := s.sdk.ID() != ""
	closed := make(chan error, 1)
	go func() { closed <- s.sdk.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			return err
		}
	case <-ctx.Done():
		return fmt.Errorf("the session does not close: %w", ctx.Err())
	}
	status := s.wire.deleted()
	return wantTrue(!hadSession || status/100 == http.StatusOK/100, "DELETE answered %d", status)
}

// names collects one name of each item, and refuses a name that comes twice.
func names[T any](items iter.Seq2[T, error], name func(T) string) ([]string, error) {
	var all []string
	for item, err := range items {
		if err != nil {
			return nil, err
		}
		if slices.Contains(all, name(item)) {
			return nil, fmt.Errorf("%s comes twice", name(item))
		}
		all = append(all, name(item))
	}
	return all, nil
}

// wantAll checks that got has all wanted names, in the form that convert gives them.
func wantAll(got []string, what string, convert func(string) string, wanted ...string) error {
	for _, name := range wanted {
		name = convert(name)
		if !slices.Contains(got, name) {
			return fmt.Errorf("%s: no %s among %v", what, name, got)
		}
	}
	return nil
}

func wantTrue(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf(format, args...)
}

// wantText reports the first byte that differs: a quarter of a megabyte is too long for an
// error message.
func wantText(got, want, what string) error {
	if got == want {
		return nil
	}
	at := 0
	for at < min(len(got), len(want)) && got[at] == want[at] {
		at++
	}
	return fmt.Errorf("%s: got %.40q, want %.40q (at byte %d; lengths %d, %d)",
		what, got[at:], want[at:], at, len(got), len(want))
}
