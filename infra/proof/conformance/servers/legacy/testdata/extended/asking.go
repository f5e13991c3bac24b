package main

import (
	"context"
	"sync"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// asks asks the client a question, and returns the answer as text, "" if there was none.
type asks func(ctx context.Context, session *mcp.ServerSession) (answer string, err error)

// elicits asks the user for one field.
func elicits(message, field, kind string) asks {
	return func(ctx context.Context, session *mcp.ServerSession) (string, error) {
		result, err := session.Elicit(ctx, &mcp.ElicitParams{Message: message, RequestedSchema: &jsonschema.Schema{
			Type:       "object",
			Properties: map[string]*jsonschema.Schema{field: {Type: kind}},
			Required:   []string{field},
		}})
		if err != nil || result.Action != "accept" {
			return "", err
		}
		return text("%v", result.Content[field]).Text, nil
	}
}

// optionally asks the user for one field that may be left empty, and accepts any other
// field.
func optionally(message, field string) asks {
	return func(ctx context.Context, session *mcp.ServerSession) (string, error) {
		result, err := session.Elicit(ctx, &mcp.ElicitParams{Message: message, RequestedSchema: &jsonschema.Schema{
			Type: "object", Properties: map[string]*jsonschema.Schema{field: {Type: "string"}},
		}})
		if err != nil || result.Action != "accept" {
			return "", err
		}
		return text("%v", result.Content).Text, nil
	}
}

// samples asks the client's model.
func samples(prompt string) asks {
	return func(ctx context.Context, session *mcp.ServerSession) (string, error) {
		result, err := session.CreateMessage(ctx, &mcp.CreateMessageParams{
			Messages:  []*mcp.SamplingMessage{{Role: "user", Content: text("%s", prompt)}},
			MaxTokens: 100,
		})
		if err != nil {
			return "", err
		}
		if content, ok := result.Content.(*mcp.TextContent); ok {
			return content.Text, nil
		}
		return "something that is not text", nil
	}
}

func roots(ctx context.Context, session *mcp.ServerSession) (string, error) {
	result, err := session.ListRoots(ctx, &mcp.ListRootsParams{})
	if err != nil {
		return "", err
	}
	return text("%d roots", len(result.Roots)).Text, nil
}

// inTurn asks one question after the other, whatever the client answers.
func inTurn(questions ...asks) asks {
	return func(ctx context.Context, session *mcp.ServerSession) (string, error) {
		all := ""
		for _, ask := range questions {
			answer, err := ask(ctx, session)
			if err != nil {
				return "", err
			}
			all += answer + " "
		}
		return all, nil
	}
}

// atOnce asks all questions before it waits for an answer.
func atOnce(questions ...asks) asks {
	return func(ctx context.Context, session *mcp.ServerSession) (string, error) {
		answers, errs := make([]string, len(questions)), make([]error, len(questions))
		var wg sync.WaitGroup
		for i, ask := range questions {
			wg.Go(func() { answers[i], errs[i] = ask(ctx, session) })
		}
		wg.Wait()
		all := ""
		for i, answer := range answers {
			if errs[i] != nil {
				return "", errs[i]
			}
			all += answer + " "
		}
		return all, nil
	}
}

func addAskingTools(server *mcp.Server) {
	// The suite looks for a question about user_name and answers with a field called name.
	userName := optionally("What is your name?", "user_name")
	confirm := elicits("Please confirm", "ok", "boolean")
	for name, ask := range map[string]asks{
		"test_missing_capability":                    samples("Say something."),
		"test_input_required_result_elicitation":     userName,
		"test_input_required_result_sampling":        samples("What is the capital of France?"),
		"test_input_required_result_list_roots":      roots,
		"test_input_required_result_request_state":   confirm,
		"test_input_required_result_tampered_state":  confirm,
		"test_input_required_result_multiple_inputs": atOnce(elicits("What is your name?", "name", "string"), samples("Generate a greeting"), roots),
		"test_input_required_result_multi_round": inTurn(
			elicits("Step 1: What is your name?", "name", "string"), elicits("Step 2: What is your favorite color?", "color", "string")),
		// A legacy server learns what its client can do from initialize, and not from
		// this request.
		"test_input_required_result_capabilities": inTurn(elicits("What is your name?", "name", "string"), samples("Generate a short greeting")),
	} {
		addTool(server, name, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			answer, err := ask(ctx, req.Session)
			if err != nil {
				return &mcp.CallToolResult{Content: []mcp.Content{text("%v", err)}, IsError: true}, nil
			}
			return says(text("state-ok, and the client said: %s", answer))(ctx, req)
		})
	}
	ask := elicits("Please provide context for the prompt", "context", "string")
	prompt := &mcp.Prompt{Name: "test_input_required_result_prompt", Description: "Asks for its context."}
	server.AddPrompt(prompt, func(ctx context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		answer, err := ask(ctx, req.Session)
		if err != nil {
			return nil, err
		}
		return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{{Role: "user", Content: text("Context: %s", answer)}}}, nil
	})
}

// addAnnouncingTools adds tools that change a list, which go-sdk announces to its client.
func addAnnouncingTools(server *mcp.Server) {
	addTool(server, "test_trigger_tool_change", func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		addTool(server, "transient_tool", says())
		return says(text("Tools changed."))(ctx, req)
	})
	addTool(server, "test_trigger_prompt_change", func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		prompt := &mcp.Prompt{Name: "transient_prompt", Description: "Is there to be announced."}
		server.AddPrompt(prompt, func(context.Context, *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{}}, nil
		})
		return says(text("Prompts changed."))(ctx, req)
	})
}
