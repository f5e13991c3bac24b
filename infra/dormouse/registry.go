package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/dormouse-mcp/dormouse/infra/internal/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/catalog"
)

// putPublished puts a server of the MCP registry into the file, under the last part of its
// name. Values of -e are those for which its server.json asks.
func (c *addCommand) putPublished(ctx context.Context, _ *terminal, f *edited) (version string, err error) {
	text, err := fetchServer(ctx, c.Registry, c.Name)
	if err != nil {
		return "", err
	}
	full := c.Name
	c.Name = serversfile.ValidName(full[strings.LastIndexByte(full, '/')+1:])
	if err := c.isNew(f); err != nil {
		return "", err
	}
	for _, kv := range c.Env {
		name, value, _ := strings.Cut(kv, "=")
		variable, err := f.env.Keep(c.Name, name, value)
		if err != nil {
			return "", err
		}
		if variable != name {
			return "", fmt.Errorf("-e %s: the variable has another value already, in .env or in the environment", name)
		}
	}
	raw, err := catalog.ReadRaw(text, "server.json", f.env.Lookup)
	if err != nil {
		return "", err
	}
	if len(raw.Servers) != 1 || raw.Editable {
		return "", errors.New("the registry did not answer with a server.json")
	}
	entry, _, err := serversfile.ParseEntry(raw.Servers[0].JSON)
	if err != nil {
		return "", err
	}
	entry.Cwd = c.Cwd
	if err := entry.KeepSecrets(c.Name, f.env.Env); err != nil {
		return "", err
	}
	return "", f.Set(c.Name, entry)
}

// fetchServer asks the registry for the newest version of a server.
func fetchServer(ctx context.Context, registry, name string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	at := strings.TrimSuffix(registry, "/") + "/v0.1/servers/" + url.PathEscape(name) + "/versions/latest"
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, fmt.Errorf("the MCP registry does not answer: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	switch res.StatusCode {
	case http.StatusOK:
		return io.ReadAll(io.LimitReader(res.Body, catalog.MaxFile+1))
	case http.StatusNotFound:
		return nil, fmt.Errorf("the MCP registry has no server %s", name)
	}
	return nil, fmt.Errorf("the MCP registry answers %s to %s", res.Status, at)
}
