package dormouse

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/infra/internal/serversedit"
	"github.com/dormouse-mcp/dormouse/infra/internal/sources"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
)

// ofRegistry returns the entry for a server from its server.json, which is in the registry, in a file
// or at a URL. -e sets the variables that the server.json asks for.
func (c *addCommand) ofRegistry(ctx context.Context, t *terminal, f *edited) (entry serversedit.Entry, version string, err error) {
	text, err := c.serverJSON(ctx, t)
	if err != nil {
		return entry, "", err
	}
	named, entry, err := serversedit.Published(text, f.env.Lookup)
	if c.source.Kind == sources.None {
		named = serversedit.ValidName(c.word[strings.LastIndexByte(c.word, '/')+1:])
	}
	c.Name = cmp.Or(c.Name, named)
	if bundle, ok := errors.AsType[serversedit.BundleError](err); ok {
		c.source.At, c.hash = bundle.URL, bundle.Hash
		return c.ofBundle(ctx, t, f)
	}
	if err != nil {
		return entry, "", fmt.Errorf("%s: %w", cmp.Or(c.source.At, c.word), err)
	}
	if err := c.isNew(f); err != nil {
		return entry, "", err
	}
	for _, kv := range c.Env {
		name, value, _ := strings.Cut(kv, "=")
		variable, err := f.env.Keep(c.Name, name, value)
		if err != nil {
			return entry, "", err
		}
		if variable != name {
			return entry, "", fmt.Errorf("-e %s: the variable has another value already, in .env or in the environment", name)
		}
	}
	if _, entry, err = serversedit.Published(text, f.env.Lookup); err != nil { // again, because .env has the values of -e now
		return entry, "", err
	}
	if entry.URL == "" {
		return entry, "", nil
	}
	c.remote = entry.URL // errors from here on are about a remote server
	if c.Private {
		entry.SetOurs("remote", map[string]bool{"private": true})
	}
	if err := c.guardVariables(entry, f); err != nil {
		return entry, "", err
	}
	return entry, "", c.shareKey(entry, f)
}

// serverJSON returns the text of the server.json that the user has named.
func (c *addCommand) serverJSON(ctx context.Context, t *terminal) ([]byte, error) {
	switch {
	case c.source.Kind == sources.None:
		w := t.waits("asking the registry", c.word)
		defer w.end(false)
		return c.fetch(ctx)
	case !c.source.IsURL():
		return serversfile.ReadFile(c.source.At, serversfile.MaxFile)
	}
	text := &bytes.Buffer{}
	_, err := c.download(ctx, t, text, serversfile.MaxFile)
	return text.Bytes(), err
}

// guardVariables refuses the entry of a remote server that uses a variable of .env or of the
// environment, unless -e sets it. Without this check, the author of the entry could name any secret,
// and the first request would send it to the server.
func (c *addCommand) guardVariables(e serversedit.Entry, f *edited) error {
	texts := []string{e.URL}
	for _, h := range e.Headers {
		texts = append(texts, h.Value)
	}
	for _, name := range variablesIn(texts) {
		value, set := f.env.Lookup(name)
		given := slices.ContainsFunc(c.Env, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
		if set && value != "" && !given && (value != c.Key || origin(e.URL) != origin(c.Registry)) {
			return fmt.Errorf("the registry's entry would send %s, which is set here, to %s: if you mean that, give the value with -e", name, e.URL)
		}
	}
	return nil
}

// variablesIn returns the NAMEs in ${NAME}, ${env:NAME} and ${NAME:-default}, and the variables
// of ${input:ID}. It may return one more than once.
func variablesIn(texts []string) (names []string) {
	for _, text := range texts {
		for _, rest := range strings.Split(text, "${")[1:] {
			name, _, _ := strings.Cut(rest, "}")
			name, _, _ = strings.Cut(strings.TrimPrefix(name, "env:"), ":-")
			if id, input := strings.CutPrefix(name, "input:"); input {
				name = serversfile.InputVariable(id)
			}
			names = append(names, name)
		}
	}
	return names
}

// shareKey saves --registry-key as the key of the server too, if the server has the registry's origin
// and its server.json asks for a bearer key that is not set.
func (c *addCommand) shareKey(e serversedit.Entry, f *edited) error {
	i := slices.IndexFunc(e.Headers, func(h serversedit.Variable) bool { return strings.EqualFold(h.Name, "Authorization") })
	if c.Key == "" || i < 0 || origin(e.URL) != origin(c.Registry) {
		return nil
	}
	m := regexp.MustCompile(`^Bearer \$\{([A-Za-z0-9_]+)\}$`).FindStringSubmatch(e.Headers[i].Value)
	if m == nil {
		return nil
	}
	if _, set := f.env.Lookup(m[1]); set {
		return nil
	}
	_, err := f.env.Keep(c.Name, m[1], c.Key)
	return err
}

// origin returns the scheme, host and port of a URL.
func origin(of string) string {
	u, err := url.Parse(of)
	if err != nil {
		return ""
	}
	return strings.ToLower(u.Scheme + "://" + u.Host)
}

// fetch gets the server.json of the newest version from the registry.
func (c *addCommand) fetch(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	at := strings.TrimSuffix(c.Registry, "/") + "/v0.1/servers/" + url.PathEscape(c.word) + "/versions/latest"
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, errors.New("--registry is no URL")
	}
	if c.Key != "" {
		r.Header.Set("Authorization", "Bearer "+c.Key)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, fmt.Errorf("the MCP registry does not answer: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	switch res.StatusCode {
	case http.StatusOK:
		return io.ReadAll(io.LimitReader(res.Body, serversfile.MaxFile+1))
	case http.StatusNotFound:
		return nil, fmt.Errorf("the MCP registry %s has no server %s", c.Registry, c.word)
	case http.StatusUnauthorized, http.StatusForbidden:
		return nil, fmt.Errorf("the MCP registry %s answers %s: give a valid key with --registry-key", c.Registry, res.Status)
	}
	return nil, fmt.Errorf("the MCP registry answers %s to %s", res.Status, at)
}
