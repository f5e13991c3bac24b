package dormouse

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/infra/local"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

// callPatience is how long one call may take, with the installation of its server if that is
// necessary.
const callPatience = 15 * time.Minute

type callCommand struct {
	Server    string   `arg:"" help:"Name of a server."`
	Tool      string   `arg:"" help:"Name of one of its tools."`
	Arguments []string `arg:"" optional:"" name:"key=value" help:"Arguments, converted to the types that the tool names."`
	Args      string   `placeholder:"JSON" help:"All arguments as a JSON object."`
	Once      string   `placeholder:"KEY" help:"Call the tool once, however often you repeat the command with this key within 24 hours."`
	fileFlag
	target
	printing
}

// Run calls a tool and prints its result as text.
func (c *callCommand) Run(t *terminal) error {
	ctx, stop := interruptible()
	defer stop()
	return use(ctx, c, callPatience, func(ctx context.Context, to *client) error {
		before, err := c.served(ctx, t, to)
		if err != nil {
			return err
		}
		begun, begin := time.Now(), func(phase string) (*waits, func()) {
			w := t.waits(phase, c.Server)
			end := func() {}
			if !c.remote() {
				end = to.follows(ctx, w)
			}
			return w, func() { end(); w.end(false) }
		}
		_, end := begin("connecting")
		s, err := to.connect(ctx, c.Server, "")
		var of tool
		if err == nil {
			defer func() { _ = s.Close() }()
			of, err = c.find(ctx, s)
		}
		if errors.Is(err, errNoTools) && !c.remote() { // while a server is being installed, it lists no tools
			if o := to.prepare(ctx, c.Server); o.err == nil {
				of, err = c.find(ctx, s)
			} else if !isCode(o.err, "invalid") { // "invalid" means that this endpoint cannot prepare servers
				err = fmt.Errorf("%s: %w", c.Server, o.err)
			}
		}
		end()
		if err != nil {
			return err
		}
		args, err := c.arguments(t, of)
		if err != nil {
			return err
		}
		asked := time.Now()
		shows, end := begin("calling " + c.Tool)
		result, err := to.callTool(ctx, s, c.Tool, c.Once, args, shows)
		took := time.Since(asked)
		end()
		if err != nil {
			return c.failed(err)
		}
		err = c.show(t, result, func() error { return printResult(t.out, result) })
		_, _ = fmt.Fprintln(t.err, waited(took, to.woke(ctx, before, begun), begun, asked))
		if err == nil && result.IsError {
			return failure{exitTool, nil}
		}
		return err
	})
}

// failed returns the error for a call without a result.
func (c *callCommand) failed(err error) error {
	op, _ := errors.AsType[*net.OpError](err)
	lost := errors.As(err, new(*url.Error)) && !errors.As(err, new(refusal)) && !errors.As(err, new(stranger)) && (op == nil || op.Op != "dial") ||
		strings.HasSuffix(err.Error(), "request terminated without response") // the SDK's only sign of a stream that broke
	switch err = plainly(c.Server, err); {
	case errors.Is(err, context.Canceled) && c.Once != "":
		err = errors.New("interrupted; the call goes on, and the same command waits for its result")
	case errors.Is(err, context.Canceled):
		err = errors.New("interrupted; the call may have been executed")
	case lost && c.Once != "":
		err = fmt.Errorf("%w; the same command asks for its result", err)
	case lost:
		err = fmt.Errorf("%w; the call may have been executed", err)
	}
	return fmt.Errorf("%s %s: %w", c.Server, c.Tool, err)
}

// callTool calls a tool and shows its progress. The argument key is the idempotency key of the
// call, or "". If another call with this key is running, callTool waits for its result.
func (c *client) callTool(ctx context.Context, s *mcp.ClientSession, tool, key string, args any, shows *waits) (*mcp.CallToolResult, error) {
	c.progress.Store(&progress{shows, tool})
	defer c.progress.Store(nil)
	params := &mcp.CallToolParams{Name: tool, Arguments: args}
	params.SetProgressToken(tool)
	if key != "" {
		params.Meta[wire.MetaIdempotencyKey] = key
	}
	for {
		result, err := s.CallTool(ctx, params)
		var refused *jsonrpc.Error
		if !errors.As(err, &refused) {
			return result, err
		}
		if kind, _ := wire.String(wire.Lookup(refused.Data, "type")); kind != sessions.KeyInUse {
			return result, err
		}
	}
}

type progress struct {
	on   *waits
	tool string
}

func (p *progress) show(server string, n *mcp.ProgressNotificationParams) {
	text := n.Message
	switch {
	case n.Progress < 0: // Dormouse sends steps of a server's start with a negative progress
		p.on.phase(server, text)
		return
	case n.Total > 0:
		text = strings.TrimSpace(fmt.Sprintf("%g of %g %s", n.Progress, n.Total, text))
	case text == "":
		text = fmt.Sprintf("%g", n.Progress)
	}
	p.on.phase(server, p.tool+": "+text)
}

// waited says how long a call took, and separately how long the user waited for a sleeping server.
// The argument ready is when the server was ready, or zero if it was not asleep. The command began at
// the time begun, and sent the call at the time sent.
func waited(call time.Duration, ready, begun, sent time.Time) string {
	if ready.IsZero() {
		return took(float64(call.Milliseconds()))
	}
	if ready.Before(sent) {
		ready = sent
	}
	call -= ready.Sub(sent)
	return fmt.Sprintf("%s, after waking for %s", took(float64(max(0, call).Milliseconds())), seconds(ready.Sub(begun)))
}

// served returns the server to call. If a server on this machine lacks values, it asks the user for
// them first.
func (c *callCommand) served(ctx context.Context, t *terminal, to *client) (api.Server, error) {
	s, err := to.server(ctx, c.Server)
	if isCode(err, forbidden) && c.remote() {
		return api.Server{Name: c.Server}, nil // this key may only call servers, which suffices here
	}
	if err != nil || s.Path != "" {
		return s, err
	}
	var filled []string
	if !c.remote() {
		if filled, err = t.fill(asked{servers: c.Servers, only: []string{c.Server}}); err != nil {
			return s, err
		}
	}
	if filled != nil {
		if _, err := to.reload(ctx, []string{c.Server}); err != nil {
			return s, err
		}
		if s, err = to.server(ctx, c.Server); err != nil || s.Path != "" {
			return s, err
		}
	}
	return s, fmt.Errorf("%s is %s: %s", s.Name, s.State, s.Why)
}

// find returns the tool that the user has named, with its input schema, from the server's list.
func (c *callCommand) find(ctx context.Context, s *mcp.ClientSession) (tool, error) {
	list, err := toolsOver(ctx, s, c.Server)
	var endless *wire.EndlessList // an endless list may have the tool in the part that was read
	if err != nil && !errors.As(err, &endless) {
		return tool{}, fmt.Errorf("%s %s: %w", c.Server, c.Tool, err)
	}
	all, err := toolsOf(list)
	if err != nil {
		return tool{}, err
	}
	if len(all) == 0 {
		return tool{}, fmt.Errorf("%s has no tool %s: %w", c.Server, c.Tool, errNoTools)
	}
	found, err := choose("tool", c.Tool, all, func(t tool) string { return t.Name })
	if err != nil {
		return tool{}, fmt.Errorf("%s has %w", c.Server, err)
	}
	return found, nil
}

var errNoTools = errors.New("there are none")

// arguments returns the arguments of the call in the types of the tool's input schema.
func (c *callCommand) arguments(t *terminal, of tool) (map[string]json.RawMessage, error) {
	args, err := of.values(c.Arguments, c.Args)
	if err != nil {
		return nil, err
	}
	var missing []string
	for _, name := range of.InputSchema.Required {
		if _, given := args[name]; given {
			continue
		}
		if t.ask == nil {
			missing = append(missing, name)
			continue
		}
		if args[name], err = of.askFor(t, name); err != nil {
			return nil, err
		}
	}
	if missing != nil {
		return nil, of.wrong("without %s, which it needs", strings.Join(missing, ", "))
	}
	return args, of.fits(args)
}

// askFor asks the user for an argument until the answer has the type in the schema.
func (t tool) askFor(by *terminal, name string) (json.RawMessage, error) {
	schema := t.InputSchema.Properties[name]
	what := name + ", " + aOrAn(typeOf(schema))
	if about, ok := wire.String(wire.Lookup(schema, "description")); ok && about != "" {
		what += " (" + clip(wire.OneLine(about), 60) + ")"
	}
	for {
		answer, err := by.ask(fmt.Sprintf("%s needs %s: ", t.Name, what), false)
		if err != nil {
			return nil, fmt.Errorf("%s needs %s: %w", t.Name, name, err)
		}
		value, err := valueOf(answer, typeOf(schema))
		if err == nil {
			return value, nil
		}
		_, _ = fmt.Fprintln(by.err, err)
	}
}

// fits checks arguments against the tool's input schema. If it cannot read the schema, it leaves
// the check to the server.
func (t tool) fits(args map[string]json.RawMessage) error {
	schema := new(jsonschema.Schema)
	if len(t.schema) == 0 || json.Unmarshal(t.schema, schema) != nil {
		return nil
	}
	resolved, err := schema.Resolve(nil)
	if err != nil {
		return nil //nolint:nilerr // the server will check
	}
	text, err := json.Marshal(args)
	if err != nil {
		return err
	}
	var value any
	if err := json.Unmarshal(text, &value); err != nil {
		return err
	}
	if err := resolved.Validate(value); err != nil {
		return t.wrong("%s", strings.TrimPrefix(err.Error(), "validating root: "))
	}
	return nil
}

// wrong returns an error about arguments, which ends with the arguments that the tool takes.
func (t tool) wrong(format string, args ...any) error {
	return failure{exitUsage, fmt.Errorf(format+"; %s takes %s", append(args, t.Name, cmp.Or(t.arguments(), "no arguments"))...)}
}

// toolsOver asks a server for all pages of its list of tools. If the error is a
// [*wire.EndlessList], list has the tools that were read.
func toolsOver(ctx context.Context, s *mcp.ClientSession, server string) (api.Tools, error) {
	list := api.Tools{Server: server, Taken: time.Now().UTC()}
	var pages wire.Pages
	for params := (&mcp.ListToolsParams{}); ; {
		page, err := s.ListTools(ctx, params)
		if err != nil {
			return list, plainly(server, err)
		}
		for _, tool := range page.Tools {
			raw, err := json.Marshal(tool)
			if err != nil {
				return list, err
			}
			list.Tools = append(list.Tools, raw)
		}
		if page.NextCursor == "" {
			return list, nil
		}
		if err := pages.Follow(page.NextCursor); err != nil {
			return list, err
		}
		params.Cursor = page.NextCursor
	}
}

// values returns the arguments that the user has given: pairs of the form key=value, and jsonArgs,
// which is a JSON object or "". A pair has precedence.
func (t tool) values(pairs []string, jsonArgs string) (map[string]json.RawMessage, error) {
	args := map[string]json.RawMessage{}
	if jsonArgs != "" {
		err := json.Unmarshal([]byte(jsonArgs), &args)
		if kind, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			err = fmt.Errorf("it is of the type %s", kind.Value)
		} else if args == nil {
			err = cmp.Or(err, errors.New("it is null"))
		}
		if err != nil {
			return nil, t.wrong("--args is no JSON object: %w", err)
		}
	}
	for _, pair := range pairs {
		name, value, ok := strings.Cut(pair, "=")
		if !ok {
			return nil, t.wrong("%q is no argument: want key=value", pair)
		}
		schema, known := t.InputSchema.Properties[name]
		if !known && len(t.InputSchema.Properties) > 0 {
			return nil, t.wrong("%w", unknown("argument", name, slices.Sorted(maps.Keys(t.InputSchema.Properties))))
		}
		text, err := valueOf(value, typeOf(schema))
		if err != nil {
			return nil, t.wrong("%s=%s: %w", name, value, err)
		}
		args[name] = text
	}
	return args, nil
}

// valueOf converts a text to a JSON value of a type in JSON Schema. For type "any", a text that is
// not valid JSON becomes a string.
func valueOf(text, kind string) (json.RawMessage, error) {
	quoted, err := json.Marshal(text)
	if kind == "string" || err != nil {
		return quoted, err
	}
	var value any
	err = json.Unmarshal([]byte(text), &value)
	if kind == "any" {
		if err != nil {
			return quoted, nil //nolint:nilerr // a text that is not JSON becomes a string
		}
		return json.RawMessage(text), nil
	}
	if err == nil {
		var schema *jsonschema.Resolved
		if schema, err = (&jsonschema.Schema{Type: kind}).Resolve(nil); err == nil {
			err = schema.Validate(value)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("want %s", aOrAn(kind))
	}
	return json.RawMessage(text), nil
}

func aOrAn(kind string) string {
	if strings.ContainsAny(kind[:1], "aio") {
		return "an " + kind
	}
	return "a " + kind
}

// endpoint returns the URL of a server, and the API key for requests to it. If the endpoint is on
// this machine and needs a key, endpoint creates one for this server with the given lifetime.
func (c *client) endpoint(ctx context.Context, server string, lifetime time.Duration) (address, key string, err error) {
	base, key := c.base, c.key
	if c.base == "http://local" {
		info, err := c.info(ctx)
		if err != nil {
			return "", "", err
		}
		c.shows = info.Certificate
		if base, key = info.URL, ""; info.Access != local.AccessOpen {
			var made api.Key // of the default tenant
			err = c.call(ctx, http.MethodPost, "keys", api.NewKey{Principal: "dormouse", Servers: []string{server}, Seconds: int64(lifetime.Seconds())}, &made)
			return base + "/" + server + "/mcp", made.Key, err
		}
	}
	return base + "/" + server + "/mcp", key, nil
}

// connect opens an MCP session with a server. The argument version is the protocol version; ""
// stands for the newest one that the server speaks.
func (c *client) connect(ctx context.Context, server, version string) (*mcp.ClientSession, error) {
	address, key, err := c.endpoint(ctx, server, callPatience)
	if err != nil {
		return nil, err
	}
	caller := mcp.NewClient(&mcp.Implementation{Name: "dormouse", Version: builtAs().Version}, &mcp.ClientOptions{
		Capabilities: &mcp.ClientCapabilities{}, // the SDK's default includes roots, which a server could ask for when this client is gone
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			if p := c.progress.Load(); p != nil {
				p.show(server, r.Params)
			}
		},
	})
	caller.AddSendingMiddleware(onceFailed)
	s, err := caller.Connect(ctx, &mcp.StreamableClientTransport{
		Endpoint: address, HTTPClient: &http.Client{Transport: bearer{key, trusting(address, c.shows)}}, DisableStandaloneSSE: true,
	}, &mcp.ClientSessionOptions{ProtocolVersion: version})
	switch {
	case err == nil:
		return s, nil
	case strings.HasSuffix(err.Error(), http.StatusText(http.StatusForbidden)):
		return nil, fmt.Errorf("%s refuses this key: it is for looking only, or for other servers", server)
	default:
		return nil, fmt.Errorf("%s does not answer: %w", server, plainly(server, err))
	}
}

// plainly returns err, the error of a call to a server, without what the SDK has added, and without
// the server's name.
func plainly(server string, err error) error {
	// The SDK wraps each of these errors in text of its own.
	if refused, ok := errors.AsType[refusal](err); ok {
		return refused
	}
	if other, ok := errors.AsType[stranger](err); ok {
		return other
	}
	if lost, ok := errors.AsType[*url.Error](err); ok {
		return fmt.Errorf("nothing answers at %s: %w", lost.URL, lost.Err)
	}
	var answer *jsonrpc.Error
	if !errors.As(err, &answer) {
		return err
	}
	return errors.New(strings.TrimPrefix(answer.Message, fmt.Sprintf("server %q: ", server)))
}

// bearer is a RoundTripper that adds an API key to requests.
type bearer struct {
	key  string
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper. It turns a response with 429 or 5xx into an error with
// the endpoint's message, because the SDK would hide that message.
func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	if b.key != "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+b.key)
	}
	res, err := b.next.RoundTrip(r)
	if err != nil || res.StatusCode < http.StatusInternalServerError && res.StatusCode != http.StatusTooManyRequests {
		return res, err
	}
	defer func() { _ = res.Body.Close() }()
	var answer struct{ Error struct{ Message string } }
	if err := json.NewDecoder(io.LimitReader(res.Body, 1<<20)).Decode(&answer); err != nil || answer.Error.Message == "" {
		return nil, stranger{r.URL.String(), res.Status}
	}
	return nil, refusal{message: answer.Error.Message}
}

// trusting returns a RoundTripper for an address. If certificate (DER) is not nil, it accepts that
// certificate in addition to those that the system trusts. dormouse run sends its certificate over its
// control socket.
func trusting(address string, certificate []byte) http.RoundTripper {
	own, ok := http.DefaultTransport.(*http.Transport)
	u, err := url.Parse(address)
	if certificate == nil || !ok || err != nil {
		return http.DefaultTransport
	}
	own = own.Clone()
	own.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true, VerifyConnection: func(s tls.ConnectionState) error { //nolint:gosec // VerifyConnection verifies
		if bytes.Equal(s.PeerCertificates[0].Raw, certificate) {
			return nil
		}
		return verified(s.PeerCertificates, u.Hostname())
	}}
	return own
}

// verified returns an error if this system does not trust the certificate chain for a host.
func verified(chain []*x509.Certificate, host string) error {
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{DNSName: host, Intermediates: between})
	return err
}

// onceFailed returns a middleware for one session. If server/discover fails because the server
// does not start, all later requests fail with the same error. Otherwise the SDK would fall back
// to initialize, and so start the server a second time.
func onceFailed(next mcp.MethodHandler) mcp.MethodHandler {
	var failed error
	return func(ctx context.Context, method string, r mcp.Request) (mcp.Result, error) {
		if failed != nil {
			return nil, failed
		}
		result, err := next(ctx, method, r)
		var refused *jsonrpc.Error
		if method == wire.MethodDiscover && errors.As(err, &refused) && wire.Lookup(refused.Data, "phase") != nil {
			failed = err
		}
		return result, err
	}
}

// info returns the description of the endpoint.
func (c *client) info(ctx context.Context) (info api.Info, err error) {
	err = c.call(ctx, http.MethodGet, "", nil, &info)
	return info, err
}

// woke returns the time at which the server became ready, if a call has woken it. The time is
// zero if the server was awake before, or if that is unknown.
func (c *client) woke(ctx context.Context, before api.Server, begun time.Time) (ready time.Time) {
	var status api.Status
	if before.State == api.Awake || c.call(ctx, http.MethodGet, "processes", nil, &status) != nil {
		return ready
	}
	for _, p := range status.Processes {
		if p.Server == before.Name && p.State == "ready" && p.Since.After(begun) && p.Since.After(ready) {
			ready = p.Since
		}
	}
	return ready
}

// printResult prints the content of a result: text as it is, and other content as a summary in
// brackets.
func printResult(out io.Writer, r *mcp.CallToolResult) error {
	var errs []error
	out = colored(out)
	say := func(format string, args ...any) {
		_, err := fmt.Fprintf(out, format, args...)
		errs = append(errs, err)
	}
	for _, c := range r.Content {
		switch c := c.(type) {
		case *mcp.TextContent:
			say("%s\n", strings.TrimSuffix(c.Text, "\n"))
		case *mcp.ImageContent:
			say("[image %s, %d bytes]\n", c.MIMEType, len(c.Data))
		case *mcp.AudioContent:
			say("[audio %s, %d bytes]\n", c.MIMEType, len(c.Data))
		case *mcp.ResourceLink:
			say("[resource %s]\n", c.URI)
		case *mcp.EmbeddedResource:
			if c.Resource.Text != "" {
				say("%s\n", strings.TrimSuffix(c.Resource.Text, "\n"))
			} else {
				say("[resource %s, %d bytes]\n", c.Resource.URI, len(c.Resource.Blob))
			}
		default:
			say("[%T]\n", c)
		}
	}
	if len(r.Content) == 0 && r.StructuredContent != nil {
		text, err := json.MarshalIndent(r.StructuredContent, "", "  ")
		if err != nil {
			return err
		}
		say("%s\n", text)
	}
	return errors.Join(errs...)
}
