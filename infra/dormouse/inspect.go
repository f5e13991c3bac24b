package dormouse

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// inspector is the npm package of MCP Inspector. The tests with real clients use the same version.
const inspector = "@modelcontextprotocol/inspector@2.12.0"

// inspectFor is how long the API key for MCP Inspector is valid.
const inspectFor = 12 * time.Hour

type inspectCommand struct {
	Server string `arg:"" help:"Name of a server."`
	target
}

// Run runs MCP Inspector until it ends. It passes the server's URL and a key in a file that only
// this user can read.
func (c *inspectCommand) Run(t *terminal) error {
	ctx, stop := interruptible()
	defer stop()
	var url, key string
	err := use(ctx, c, patience, func(ctx context.Context, to *client) (err error) {
		if _, err = to.server(ctx, c.Server); err == nil {
			url, key, err = to.endpoint(ctx, c.Server, inspectFor)
		}
		return err
	})
	if err != nil {
		return err
	}
	npx, err := exec.LookPath("npx")
	if err != nil {
		return fmt.Errorf("MCP Inspector is a package of npm: install Node.js 22.19 or newer: %w", err)
	}
	type entry struct {
		Type    string            `json:"type"`
		URL     string            `json:"url"`
		Headers map[string]string `json:"headers,omitempty"`
	}
	e := entry{Type: "streamable-http", URL: url}
	if key != "" {
		e.Headers = map[string]string{"Authorization": "Bearer " + key}
	}
	text, err := json.Marshal(map[string]any{"mcpServers": map[string]entry{c.Server: e}})
	if err != nil {
		return err
	}
	folder, err := os.MkdirTemp("", "dormouse-inspect")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	file := filepath.Join(folder, "mcp.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return err
	}
	_, _ = fmt.Fprintf(t.err, "MCP Inspector with %s; Ctrl-C ends it.\n", url)
	run := exec.CommandContext(ctx, npx, "-y", inspector, "--config", file) //nolint:gosec // the file is our own
	run.Stdin, run.Stdout, run.Stderr = t.in, raw(t.out), raw(t.err)
	run.Cancel, run.WaitDelay = func() error { return run.Process.Signal(os.Interrupt) }, 5*time.Second
	if err := run.Run(); err != nil && ctx.Err() == nil {
		return fmt.Errorf("MCP Inspector: %w", err)
	}
	return nil
}
