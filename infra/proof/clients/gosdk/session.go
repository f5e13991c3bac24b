package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// session is the SDK's client, with everything that the server has asked it or sent it.
// The SDK calls the handlers from its own goroutines; mu guards the data that they leave.
type session struct {
	url, kind, protocol string   // kind is the transport: "http", "sse", "ws" or "stdio"
	through             []string // for stdio: the program that speaks to the URL
	modern              bool     // a protocol version without sessions is wanted
	cold                bool     // the server may not have been started when the client sends server/discover
	one                 string   // name of the server, if the URL is that of all servers; "" if it is that of one server
	label               string   // part of every text that this client sends, so that a message of another client is noticed
	client              *mcp.Client
	sdk                 *mcp.ClientSession
	hangUp              context.CancelFunc // ends what is left of the connection
	wire                *wiretap
	progress            chan string
	logs                chan logMessage

	mu              sync.Mutex
	samplingPrompts []string
	elicitations    []*mcp.ElicitParams
}

type logMessage struct{ level, text string }

// newSession prepares a client for url. An empty protocol leaves the choice to the SDK.
//
//nolint:staticcheck // sampling, roots and logging are what is tested, deprecated from 2026-07-28 or not
func newSession(url, kind, protocol string) *session {
	s := &session{
		url:      url,
		kind:     kind,
		protocol: protocol,
		label:    fmt.Sprintf("go-%s over %s", sdkVersion(), kind),
		wire:     &wiretap{base: http.DefaultTransport},
		progress: make(chan string, 64),
		logs:     make(chan logMessage, 64),
	}
	s.client = mcp.NewClient(&mcp.Implementation{Name: "dormouse-client-go", Version: "1.0.0"}, &mcp.ClientOptions{
		CreateMessageHandler:        s.sample,
		ElicitationHandler:          s.elicit,
		LoggingMessageHandler:       s.log,
		ProgressNotificationHandler: s.noteProgress,
	})
	s.client.AddRoots(
		&mcp.Root{URI: "file:///srv/one", Name: "one"},
		&mcp.Root{URI: "file:///srv/zw%C3%A9i", Name: "zwéi 🌱"},
	)
	return s
}

// connect fails when ctx ends, but a session that is connected outlives ctx. Over HTTP+SSE the SDK ends
// the stream with the context of Connect, so Connect gets a context of its own.
func (s *session) connect(ctx context.Context) error {
	life, hangUp := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, hangUp)
	defer stop()
	sdk, err := s.client.Connect(life, s.transport(), &mcp.ClientSessionOptions{ProtocolVersion: s.protocol})
	if err != nil {
		hangUp()
		return err
	}
	s.hangUp = hangUp
	s.sdk = sdk
	return nil
}

func (s *session) transport() mcp.Transport {
	tapped := &http.Client{Transport: s.wire}
	switch s.kind {
	case "sse":
		return &mcp.SSEClientTransport{Endpoint: s.url, HTTPClient: tapped}
	case "ws":
		return &webSocket{url: s.url, tap: s.wire}
	case "stdio":
		// The program ends when the session closes its stdin.
		program := exec.CommandContext(context.Background(), s.through[0], s.through[1:]...)
		program.Stderr = os.Stderr
		return &mcp.LoggingTransport{Transport: &mcp.CommandTransport{Command: program}, Writer: &tappedLines{tap: s.wire}}
	default:
		return &mcp.StreamableClientTransport{Endpoint: s.url, HTTPClient: tapped}
	}
}

//nolint:staticcheck // sampling is what is tested, deprecated from 2026-07-28 or not
func (s *session) sample(_ context.Context, req *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
	text, ok := req.Params.Messages[0].Content.(*mcp.TextContent)
	if !ok {
		return nil, fmt.Errorf("sampling message is a %T, not text", req.Params.Messages[0].Content)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.samplingPrompts = append(s.samplingPrompts, text.Text)
	return &mcp.CreateMessageResult{
		Model:      "test-model",
		Role:       "assistant",
		StopReason: "endTurn",
		Content:    &mcp.TextContent{Text: fmt.Sprintf(`sampled by %s 🐭 "%s"`, s.label, text.Text)},
	}, nil
}

func (s *session) elicit(_ context.Context, req *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.elicitations = append(s.elicitations, req.Params)
	return &mcp.ElicitResult{
		Action:  "accept",
		Content: map[string]any{"name": "Ada “🐭” Løvelace", "check": true, "integer": 17},
	}, nil
}

func (s *session) log(ctx context.Context, req *mcp.LoggingMessageRequest) {
	select {
	case s.logs <- logMessage{level: string(req.Params.Level), text: fmt.Sprint(req.Params.Data)}:
	case <-ctx.Done():
	}
}

func (s *session) noteProgress(ctx context.Context, req *mcp.ProgressNotificationClientRequest) {
	select {
	case s.progress <- fmt.Sprintf("%g/%g", req.Params.Progress, req.Params.Total):
	case <-ctx.Done():
	}
}

// forgetProgress drops the notifications that an earlier check left in the queue.
func (s *session) forgetProgress() {
	for {
		select {
		case <-s.progress:
		default:
			return
		}
	}
}

// call calls a tool and returns the text of its result. A result with isError is an error.
// Without arguments call sends {}: the SDK would write a nil map as null, which servers
// refuse.
func (s *session) call(ctx context.Context, name string, arguments map[string]any) (string, error) {
	if arguments == nil {
		arguments = map[string]any{}
	}
	return s.callWith(ctx, &mcp.CallToolParams{Name: name, Arguments: arguments})
}

// named returns the name of a tool or prompt at s.url. If that is the URL of all servers, the name
// begins with the server's.
func (s *session) named(name string) string {
	if s.one == "" {
		return name
	}
	return s.one + "__" + name
}

// located returns the URI of a resource or template at s.url. If that is the URL of all servers, the URI
// begins with dormouse://SERVER/.
func (s *session) located(uri string) string {
	if s.one == "" {
		return uri
	}
	return "dormouse://" + s.one + "/" + uri
}

func (s *session) callWith(ctx context.Context, params *mcp.CallToolParams) (string, error) {
	params.Name = s.named(params.Name)
	result, err := s.sdk.CallTool(ctx, params)
	if err != nil {
		return "", fmt.Errorf("call %s: %w", params.Name, err)
	}
	var parts []string
	for _, content := range result.Content {
		if text, ok := content.(*mcp.TextContent); ok {
			parts = append(parts, text.Text)
		}
	}
	text := strings.Join(parts, "\n")
	if result.IsError {
		return "", fmt.Errorf("tool %s answered an error: %.300s", params.Name, text)
	}
	return text, nil
}

// echo adds the label to what it sends, but an empty text stays empty.
func (s *session) echo(ctx context.Context, message string) error {
	if message != "" {
		message += " (" + s.label + ")"
	}
	text, err := s.call(ctx, "echo", map[string]any{"message": message})
	if err != nil {
		return err
	}
	return wantText(text, "Echo: "+message, "echo")
}
