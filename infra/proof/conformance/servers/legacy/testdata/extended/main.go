// Command extended is a stdio server of the legacy era. It has all that the suite's scenarios for
// 2026-07-28 call, as far as a legacy server can have it. Where a modern server answers with input
// requests, this one asks its client while the call runs. It does not know 2026-07-28, nor its
// host.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"os"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func main() {
	server := mcp.NewServer(&mcp.Implementation{Name: "extended", Version: "1.0.0"}, &mcp.ServerOptions{
		CompletionHandler: func(context.Context, *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
			return &mcp.CompleteResult{Completion: mcp.CompletionResultDetails{Values: []string{}}}, nil
		},
		SubscribeHandler:   func(context.Context, *mcp.SubscribeRequest) error { return nil },
		UnsubscribeHandler: func(context.Context, *mcp.UnsubscribeRequest) error { return nil },
	})
	picture := pixel()
	addPlainTools(server, picture)
	addTextTools(server)
	addResources(server, picture)
	addPrompts(server, picture)
	addAskingTools(server)
	addAnnouncingTools(server)
	if err := server.Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// addTool adds a tool that takes any arguments.
func addTool(server *mcp.Server, name string, handler mcp.ToolHandler) {
	addToolWithSchema(server, name, `{"type":"object"}`, handler)
}

func addToolWithSchema(server *mcp.Server, name, schema string, handler mcp.ToolHandler) {
	server.AddTool(&mcp.Tool{Name: name, Description: "For the scenarios that call it.", InputSchema: json.RawMessage(schema)}, handler)
}

func says(content ...mcp.Content) mcp.ToolHandler {
	return func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{Content: content}, nil
	}
}

func text(format string, values ...any) *mcp.TextContent {
	return &mcp.TextContent{Text: fmt.Sprintf(format, values...)}
}

func embedded(uri string) *mcp.EmbeddedResource {
	return &mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: uri, MIMEType: "text/plain", Text: "An embedded resource."}}
}

// addPlainTools adds tools that show a kind of content.
func addPlainTools(server *mcp.Server, picture []byte) {
	pictureContent := &mcp.ImageContent{Data: picture, MIMEType: "image/png"}
	addTool(server, "test_simple_text", says(text("This is a simple text response for testing.")))
	addTool(server, "test_image_content", says(pictureContent))
	addTool(server, "test_audio_content", says(&mcp.AudioContent{Data: silence(), MIMEType: "audio/wav"}))
	addTool(server, "test_embedded_resource", says(embedded("test://embedded-resource")))
	addTool(server, "test_multiple_content_types", says(text("Multiple content types:"), pictureContent, embedded("test://mixed-content-resource")))
	addTool(server, "test_streaming_elicitation", says(text("Nothing was asked.")))
}

// addTextTools adds tools that do something and then say so.
func addTextTools(server *mcp.Server) {
	addTool(server, "test_error_handling", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{text("This tool fails, as it should.")}, IsError: true}, nil
	})
	addTool(server, "test_tool_with_progress", func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		for _, done := range []float64{0, 50, 100} {
			if token := req.Params.GetProgressToken(); token != nil {
				progress := &mcp.ProgressNotificationParams{ProgressToken: token, Progress: done, Total: 100}
				if err := req.Session.NotifyProgress(ctx, progress); err != nil {
					return nil, err
				}
			}
			// The scenario wants progress while the tool works.
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(50 * time.Millisecond):
			}
		}
		return says(text("Done."))(ctx, req)
	})
	addTool(server, "test_logging_tool", func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		if err := req.Session.Log(ctx, &mcp.LoggingMessageParams{Level: "info", Data: "test_logging_tool ran"}); err != nil {
			return nil, err
		}
		return says(text("Logged."))(ctx, req)
	})
	echo := func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return says(text("Called with %s", req.Params.Arguments))(ctx, req)
	}
	addToolWithSchema(server, "test_x_mcp_header", headerSchema, echo)
	addToolWithSchema(server, "json_schema_2020_12_tool", vocabularySchema, echo)
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
		contents := mcp.ResourceContents{MIMEType: "application/json", Text: fmt.Sprintf(`{"id":%q,"templateTest":true,"data":"Data for ID: %s"}`, id, id)}
		return read(contents)(ctx, req)
	})
}

func addPrompts(server *mcp.Server, picture []byte) {
	add := func(name string, arguments []string, messages func(given map[string]string) []mcp.Content) {
		prompt := &mcp.Prompt{Name: name, Description: "For the scenario that gets it."}
		for _, argument := range arguments {
			prompt.Arguments = append(prompt.Arguments, &mcp.PromptArgument{Name: argument, Required: true})
		}
		server.AddPrompt(prompt, func(_ context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			result := &mcp.GetPromptResult{}
			for _, content := range messages(req.Params.Arguments) {
				result.Messages = append(result.Messages, &mcp.PromptMessage{Role: "user", Content: content})
			}
			return result, nil
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

// pixel is a PNG.
func pixel() []byte {
	var out bytes.Buffer
	if err := png.Encode(&out, image.NewRGBA(image.Rect(0, 0, 1, 1))); err != nil {
		panic(err) // a bytes.Buffer takes everything
	}
	return out.Bytes()
}

// silence is a WAV of 8 bits and 8 kHz that holds no sample.
func silence() []byte {
	out := append([]byte("RIFF"), 36, 0, 0, 0)
	out = append(out, "WAVEfmt "...)
	for _, field := range []uint32{16, 1<<16 | 1, 8000, 8000, 8<<16 | 1} {
		out = binary.LittleEndian.AppendUint32(out, field)
	}
	return append(out, 'd', 'a', 't', 'a', 0, 0, 0, 0)
}
