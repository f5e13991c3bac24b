// Command native is a program with two servers in Go. "everything" has all that the official suite
// calls, and "tasks" is for the scenarios about tasks. The servers know nothing of their clients'
// versions: one handler serves all.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/png"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/functions/dormouse"
	"github.com/dormouse-mcp/dormouse/shared/backend/native"
)

func main() { dormouse.Main(native.Servers{"everything": everything, "tasks": tasks}) }

func everything(_ context.Context, s native.Session) (*mcp.Server, error) {
	options := s.Options()
	options.CompletionHandler = func(context.Context, *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
		return &mcp.CompleteResult{Completion: mcp.CompletionResultDetails{Values: []string{}}}, nil
	}
	options.Capabilities.Resources = &mcp.ResourceCapabilities{Subscribe: true, ListChanged: true}
	options.Capabilities.Logging = &mcp.LoggingCapabilities{}
	server := mcp.NewServer(&mcp.Implementation{Name: "everything", Version: "1.0.0"}, options)
	t := tools{s, server}
	picture := pixel()
	t.plain(picture)
	t.texts()
	t.asking()
	t.announcing()
	addResources(server, picture)
	addPrompts(server, picture)
	addAskingPrompt(server)
	return server, nil
}

// tools adds tools to a server.
type tools struct {
	session native.Session
	server  *mcp.Server
}

// given are the arguments of a call.
type given map[string]any

type handler func(ctx context.Context, req *mcp.CallToolRequest, in given) (*mcp.CallToolResult, error)

// add adds a tool that takes any arguments.
func (t tools) add(name string, h handler) { t.tool(&mcp.Tool{Name: name}, h) }

func (t tools) tool(tool *mcp.Tool, h handler) {
	tool.Description = "For the scenarios that call it."
	native.AddTool(t.session, t.server, tool, func(ctx context.Context, req *mcp.CallToolRequest, in given) (*mcp.CallToolResult, any, error) {
		result, err := h(ctx, req, in)
		return result, nil, err
	})
}

// says returns the handler of a tool that always returns the same content.
func says(content ...mcp.Content) handler {
	return func(context.Context, *mcp.CallToolRequest, given) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{Content: content}, nil
	}
}

// text returns a text as a result, or as part of one.
func text(format string, values ...any) *mcp.TextContent {
	return &mcp.TextContent{Text: fmt.Sprintf(format, values...)}
}

func result(format string, values ...any) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{text(format, values...)}}
}

func embedded(uri string) *mcp.EmbeddedResource {
	return &mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: uri, MIMEType: "text/plain", Text: "An embedded resource."}}
}

// plain adds tools that each return one kind of content.
func (t tools) plain(picture []byte) {
	shown := &mcp.ImageContent{Data: picture, MIMEType: "image/png"}
	t.add("test_simple_text", says(text("This is a simple text response for testing.")))
	t.add("test_image_content", says(shown))
	t.add("test_audio_content", says(&mcp.AudioContent{Data: silence(), MIMEType: "audio/wav"}))
	t.add("test_embedded_resource", says(embedded("test://embedded-resource")))
	t.add("test_multiple_content_types", says(text("Multiple content types:"), shown, embedded("test://mixed-content-resource")))
	t.add("test_streaming_elicitation", says(text("Nothing was asked.")))
	echo := func(_ context.Context, req *mcp.CallToolRequest, _ given) (*mcp.CallToolResult, error) {
		return result("Called with %s", req.Params.Arguments), nil
	}
	t.tool(&mcp.Tool{Name: "test_x_mcp_header", InputSchema: json.RawMessage(headerSchema)}, echo)
	t.tool(&mcp.Tool{Name: "json_schema_2020_12_tool", InputSchema: json.RawMessage(vocabularySchema)}, echo)
}

const headerSchema = `{
	"type": "object",
	"properties": {"region": {"type": "string", "x-mcp-header": "Region"}, "level": {"type": "integer"}}
}`

// vocabularySchema uses a bit of every part of JSON Schema 2020-12.
const vocabularySchema = `{
	"$schema": "https://json-schema.org/draft/2020-12/schema",
	"type": "object",
	"$defs": {"address": {"$anchor": "addressDef", "type": "object", "properties": {"street": {"type": "string"}, "city": {"type": "string"}}}},
	"properties": {
		"name": {"type": "string"},
		"address": {"$ref": "#/$defs/address"},
		"contactMethod": {"type": "string", "enum": ["phone", "email"]},
		"phone": {"type": "string"},
		"email": {"type": "string"}
	},
	"allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
	"if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
	"then": {"required": ["phone"]},
	"else": {"required": ["email"]},
	"additionalProperties": false
}`

// texts adds tools that do something and then return a text about it.
func (t tools) texts() {
	t.add("test_error_handling", func(context.Context, *mcp.CallToolRequest, given) (*mcp.CallToolResult, error) {
		return nil, errors.New("this tool fails, as it should")
	})
	t.add("test_tool_with_progress", func(ctx context.Context, req *mcp.CallToolRequest, _ given) (*mcp.CallToolResult, error) {
		for _, done := range []float64{0, 50, 100} {
			if token := req.Params.GetProgressToken(); token != nil {
				progress := &mcp.ProgressNotificationParams{ProgressToken: token, Progress: done, Total: 100}
				if err := req.Session.NotifyProgress(ctx, progress); err != nil {
					return nil, err
				}
			}
			if err := pause(ctx, 50*time.Millisecond); err != nil {
				return nil, err
			}
		}
		return result("Done."), nil
	})
	logs := func(messages ...string) handler {
		return func(ctx context.Context, req *mcp.CallToolRequest, _ given) (*mcp.CallToolResult, error) {
			for _, message := range messages {
				if err := req.Session.Log(ctx, &mcp.LoggingMessageParams{Level: "info", Data: message}); err != nil {
					return nil, err
				}
				if err := pause(ctx, 50*time.Millisecond); err != nil {
					return nil, err
				}
			}
			return result("Logged."), nil
		}
	}
	t.add("test_tool_with_logging", logs("Tool execution started", "Tool processing data", "Tool execution completed"))
	t.add("test_logging_tool", logs("test_logging_tool ran"))
}

// pause waits, for scenarios that need a tool that works for some time.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func addResources(server *mcp.Server, picture []byte) {
	read := func(contents mcp.ResourceContents) mcp.ResourceHandler {
		return func(_ context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
			answer := contents
			answer.URI = req.Params.URI
			return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{&answer}}, nil
		}
	}
	server.AddResource(&mcp.Resource{Name: "static-text", URI: "test://static-text", MIMEType: "text/plain"},
		read(mcp.ResourceContents{MIMEType: "text/plain", Text: "This is the content of the static text resource."}))
	server.AddResource(&mcp.Resource{Name: "static-binary", URI: "test://static-binary", MIMEType: "image/png"},
		read(mcp.ResourceContents{MIMEType: "image/png", Blob: picture}))
	server.AddResource(&mcp.Resource{Name: "watched-resource", URI: "test://watched-resource", MIMEType: "text/plain"},
		read(mcp.ResourceContents{MIMEType: "text/plain", Text: "Watched."}))
	template := &mcp.ResourceTemplate{Name: "template", URITemplate: "test://template/{id}/data", MIMEType: "application/json"}
	server.AddResourceTemplate(template, func(ctx context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		id := strings.TrimSuffix(strings.TrimPrefix(req.Params.URI, "test://template/"), "/data")
		data := fmt.Sprintf(`{"id":%q,"templateTest":true,"data":"Data for ID: %s"}`, id, id)
		return read(mcp.ResourceContents{MIMEType: "application/json", Text: data})(ctx, req)
	})
}

func addPrompts(server *mcp.Server, picture []byte) {
	add := func(name string, arguments []string, messages func(given map[string]string) []mcp.Content) {
		prompt := &mcp.Prompt{Name: name, Description: "For the scenario that gets it."}
		for _, argument := range arguments {
			prompt.Arguments = append(prompt.Arguments, &mcp.PromptArgument{Name: argument, Required: true})
		}
		server.AddPrompt(prompt, func(_ context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			return said(messages(req.Params.Arguments)...), nil
		})
	}
	add("test_simple_prompt", nil, func(map[string]string) []mcp.Content {
		return []mcp.Content{text("This is a simple prompt for testing.")}
	})
	add("test_prompt_with_arguments", []string{"arg1", "arg2"}, func(given map[string]string) []mcp.Content {
		return []mcp.Content{text("Prompt with arguments: arg1='%s', arg2='%s'", given["arg1"], given["arg2"])}
	})
	add("test_prompt_with_embedded_resource", []string{"resourceUri"}, func(given map[string]string) []mcp.Content {
		return []mcp.Content{embedded(given["resourceUri"]), text("Please process the embedded resource above.")}
	})
	add("test_prompt_with_image", nil, func(map[string]string) []mcp.Content {
		return []mcp.Content{&mcp.ImageContent{Data: picture, MIMEType: "image/png"}, text("Please analyze the image above.")}
	})
}

// said returns a prompt with these messages of the user.
func said(contents ...mcp.Content) *mcp.GetPromptResult {
	result := &mcp.GetPromptResult{}
	for _, content := range contents {
		result.Messages = append(result.Messages, &mcp.PromptMessage{Role: "user", Content: content})
	}
	return result
}

// pixel returns a PNG of one pixel.
func pixel() []byte {
	var out bytes.Buffer
	if err := png.Encode(&out, image.NewRGBA(image.Rect(0, 0, 1, 1))); err != nil {
		panic(err) // a bytes.Buffer takes everything
	}
	return out.Bytes()
}

// silence returns a WAV of 8 bits and 8 kHz without samples.
func silence() []byte {
	out := append([]byte("RIFF"), 36, 0, 0, 0)
	out = append(out, "WAVEfmt "...)
	for _, field := range []uint32{16, 1<<16 | 1, 8000, 8000, 8<<16 | 1} {
		out = binary.LittleEndian.AppendUint32(out, field)
	}
	return append(out, 'd', 'a', 't', 'a', 0, 0, 0, 0)
}
