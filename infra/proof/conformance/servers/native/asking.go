package main

import (
	"context"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/shared/backend/native"
)

// form returns a question that asks the user to fill in fields, which have these schemas.
func form(message string, fields map[string]any) *mcp.ElicitParams {
	return &mcp.ElicitParams{Mode: "form", Message: message, RequestedSchema: map[string]any{"type": "object", "properties": fields}}
}

// field asks the user for one field.
func field(message, name, kind string) *mcp.ElicitParams {
	return form(message, map[string]any{name: map[string]any{"type": kind}})
}

func sample(prompt string) *mcp.CreateMessageParams {
	return &mcp.CreateMessageParams{MaxTokens: 100, Messages: []*mcp.SamplingMessage{{Role: "user", Content: text("%s", prompt)}}}
}

// answer returns the client's answer to a question as text. ok is false if there is no
// answer, or the user does not agree.
func answer(responses mcp.InputResponseMap, key string) (words string, ok bool) {
	switch r := responses[key].(type) {
	case *mcp.ElicitResult:
		var all []string
		for _, value := range r.Content {
			all = append(all, text("%v", value).Text)
		}
		return strings.Join(all, " "), r.Action == "accept" && len(all) > 0
	case *mcp.CreateMessageWithToolsResult:
		for _, content := range r.Content {
			if said, ok := content.(*mcp.TextContent); ok {
				return said.Text, true
			}
		}
		return "something that is not text", true
	case *mcp.ListRootsResult:
		return text("%d roots", len(r.Roots)).Text, true
	default:
		return "", false
	}
}

// asks returns the handler of a tool that asks its questions until all are answered.
func asks(questions mcp.InputRequestMap) handler {
	return func(_ context.Context, req *mcp.CallToolRequest, _ given) (*mcp.CallToolResult, error) {
		all := "state-ok, and the client said:"
		for key := range questions {
			said, ok := answer(req.Params.InputResponses, key)
			if !ok {
				return &mcp.CallToolResult{InputRequests: questions, RequestState: "asked"}, nil
			}
			all += " " + said
		}
		return result("%s", all), nil
	}
}

func (t tools) asking() {
	name, confirm := field("What is your name?", "name", "string"), field("Please confirm", "ok", "boolean")
	capital := sample("What is the capital of France?")
	for tool, questions := range map[string]mcp.InputRequestMap{
		"test_missing_capability":                    {"answer": sample("Say something.")},
		"test_input_required_result_elicitation":     {"user_name": name},
		"test_input_required_result_sampling":        {"capital_question": capital},
		"test_input_required_result_list_roots":      {"client_roots": &mcp.ListRootsParams{}},
		"test_input_required_result_request_state":   {"confirm": confirm},
		"test_input_required_result_tampered_state":  {"confirm": confirm},
		"test_input_required_result_multiple_inputs": {"user_name": name, "greeting": sample("Generate a greeting"), "client_roots": &mcp.ListRootsParams{}},
		"test_elicitation_sep1034_defaults":          {"answer": form("Defaults?", defaults())},
		"test_elicitation_sep1330_enums":             {"answer": form("Which?", enums())},
	} {
		t.add(tool, asks(questions))
	}
	t.add("test_sampling", func(ctx context.Context, req *mcp.CallToolRequest, in given) (*mcp.CallToolResult, error) {
		return asks(mcp.InputRequestMap{"answer": sample(text("%v", in["prompt"]).Text)})(ctx, req, in)
	})
	t.add("test_elicitation", func(ctx context.Context, req *mcp.CallToolRequest, in given) (*mcp.CallToolResult, error) {
		question := form(text("%v", in["message"]).Text, map[string]any{"username": map[string]any{"type": "string"}})
		return asks(mcp.InputRequestMap{"answer": question})(ctx, req, in)
	})
	t.add("test_input_required_result_capabilities", t.able)
	t.add("test_input_required_result_multi_round", inTurn)
}

// able is a tool that asks only what the client has declared that it can answer.
func (t tools) able(ctx context.Context, req *mcp.CallToolRequest, in given) (*mcp.CallToolResult, error) {
	questions := mcp.InputRequestMap{}
	can := t.session.Capabilities()
	if can.Elicitation != nil {
		questions["user_name"] = field("What is your name?", "name", "string")
	}
	if can.Sampling != nil {
		questions["greeting"] = sample("Generate a short greeting")
	}
	return asks(questions)(ctx, req, in)
}

// inTurn is a tool that asks a second question after the first. The state holds the answer
// to the first.
func inTurn(_ context.Context, req *mcp.CallToolRequest, _ given) (*mcp.CallToolResult, error) {
	first, asked := strings.CutPrefix(req.Params.RequestState, "first:")
	if color, ok := answer(req.Params.InputResponses, "color"); asked && ok {
		return result("%s likes %s", first, color), nil
	}
	if name, ok := answer(req.Params.InputResponses, "name"); ok {
		question := field("Step 2: What is your favorite color?", "color", "string")
		return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"color": question}, RequestState: "first:" + name}, nil
	}
	question := field("Step 1: What is your name?", "name", "string")
	return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"name": question}, RequestState: "begun"}, nil
}

func defaults() map[string]any {
	return map[string]any{
		"name":     map[string]any{"type": "string", "default": "John Doe"},
		"age":      map[string]any{"type": "integer", "default": 30},
		"score":    map[string]any{"type": "number", "default": 95.5},
		"status":   map[string]any{"type": "string", "enum": []string{"active", "inactive", "pending"}, "default": "active"},
		"verified": map[string]any{"type": "boolean", "default": true},
	}
}

func enums() map[string]any {
	plain := []string{"option1", "option2", "option3"}
	var titled []map[string]any
	for _, n := range []string{"1", "2", "3"} {
		titled = append(titled, map[string]any{"const": "value" + n, "title": "Option " + n})
	}
	return map[string]any{
		"untitledSingle": map[string]any{"type": "string", "enum": plain},
		"titledSingle":   map[string]any{"type": "string", "oneOf": titled},
		"legacyEnum":     map[string]any{"type": "string", "enum": []string{"opt1", "opt2"}, "enumNames": []string{"One", "Two"}},
		"untitledMulti":  map[string]any{"type": "array", "items": map[string]any{"type": "string", "enum": plain}},
		"titledMulti":    map[string]any{"type": "array", "items": map[string]any{"anyOf": titled}},
	}
}

// announcing adds tools that announce a changed list. They change no list, because each message gets a
// new server.
func (t tools) announcing() {
	for name, list := range map[string]native.List{"test_trigger_tool_change": native.Tools, "test_trigger_prompt_change": native.Prompts} {
		t.add(name, func(ctx context.Context, _ *mcp.CallToolRequest, _ given) (*mcp.CallToolResult, error) {
			if err := t.session.ListChanged(ctx, list); err != nil {
				return nil, err
			}
			return result("Changed."), nil
		})
	}
}

func addAskingPrompt(server *mcp.Server) {
	prompt := &mcp.Prompt{Name: "test_input_required_result_prompt", Description: "Asks for its context."}
	server.AddPrompt(prompt, func(_ context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		if context, ok := answer(req.Params.InputResponses, "user_context"); ok {
			return said(text("Context: %s", context)), nil
		}
		question := field("Please provide context for the prompt", "context", "string")
		return &mcp.GetPromptResult{InputRequests: mcp.InputRequestMap{"user_context": question}}, nil
	})
}
