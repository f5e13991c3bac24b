package registry

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

const schema = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"

// unknownVersion stands for the version of a server that has not said it: one that has never
// been started, or whose answers are not kept.
const unknownVersion = "0.0.0"

type response struct {
	Server server          `json:"server"`
	Meta   map[string]meta `json:"_meta"`

	hosted string    // the name of the server at its endpoint
	taken  time.Time // when the server gave its last answer to initialize; zero if none is kept
}

// meta is the member of _meta that clients of the official registry read.
type meta struct {
	Status    string     `json:"status"`
	Published *time.Time `json:"publishedAt,omitempty"`
	Updated   *time.Time `json:"updatedAt,omitempty"`
	IsLatest  bool       `json:"isLatest"`
}

const official = "io.modelcontextprotocol.registry/official"

type server struct {
	Schema      string      `json:"$schema"`
	Name        string      `json:"name"`
	Title       string      `json:"title,omitempty"`
	Description string      `json:"description"`
	Version     string      `json:"version"`
	Website     string      `json:"websiteUrl,omitempty"`
	Remotes     []transport `json:"remotes"`
}

type transport struct {
	Type     string   `json:"type"`
	URL      string   `json:"url"`
	Headers  []input  `json:"headers,omitempty"`
	Versions []string `json:"supportedProtocolVersions,omitempty"` // only in a server card
}

type input struct {
	Name        string           `json:"name,omitempty"`
	Description string           `json:"description,omitempty"`
	Value       string           `json:"value,omitempty"`
	Required    bool             `json:"isRequired"`
	Secret      bool             `json:"isSecret"`
	Variables   map[string]input `json:"variables,omitempty"`
}

// response describes a server of an endpoint. The argument record is zero if no answer of the
// server is kept.
func (g Registry) response(base, name string, record storage.Handshake) response {
	said := func(key string) string {
		word, _ := wire.String(wire.Lookup(record.Result, "serverInfo", key))
		return strings.TrimSpace(word)
	}
	s := server{
		Schema: schema, Name: namespace(base) + "/" + name, Title: short(said("title")), Version: version(said("version")),
		Description: cmp.Or(short(said("description")), short(name+", hosted by Dormouse")),
		Remotes:     []transport{{Type: "streamable-http", URL: base + "/" + name + "/mcp", Headers: g.headers(base)}},
	}
	if at := said("websiteUrl"); strings.HasPrefix(at, "https://") || strings.HasPrefix(at, "http://") {
		s.Website = at
	}
	m := meta{Status: "active", IsLatest: true}
	if !record.Taken.IsZero() {
		at := record.Taken.UTC()
		m.Published, m.Updated = &at, &at
	}
	return response{Server: s, Meta: map[string]meta{official: m}, hosted: name, taken: record.Taken}
}

// headers returns the headers that callers must send. Programs keep the variables of several
// endpoints in one place, so the name of the variable for the key contains the endpoint's host.
func (g Registry) headers(base string) []input {
	if !g.Keys {
		return nil
	}
	_, place, _ := strings.Cut(base, "://")
	key := "key_" + strings.Trim(regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ToLower(place), "_"), "_")
	return []input{{
		Name: "Authorization", Description: "An API key of " + place, Value: fmt.Sprintf("Bearer {%s}", key), Required: true, Secret: true,
		Variables: map[string]input{key: {Description: "API key of " + place + ", from its operator", Required: true, Secret: true}},
	}}
}

// short cuts a text to the length that titles and descriptions may have.
func short(text string) string {
	const most = 100
	runes := []rune(strings.Join(strings.Fields(text), " "))
	if len(runes) <= most {
		return string(runes)
	}
	return string(runes[:most-1]) + "…"
}

// version returns the version that a server reports of itself. It returns unknownVersion for a
// range or "latest", which a registry does not accept.
func version(said string) string {
	const most = 255
	if said == "" || said == latest || len(said) > most || strings.ContainsAny(said, "^~<>=*|/ ") || regexp.MustCompile(`(^|\.)[xX](\.|$)`).MatchString(said) {
		return unknownVersion
	}
	return said
}
