// Package clientfile connects MCP clients to hosted servers. For each client it knows the text to
// paste or the deep link to open, and the path of the client's file. It puts servers into the
// text of that file without other changes. Callers read and write the files.
package clientfile

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/config/jsonedit"
)

// Client is one MCP client, such as Cursor.
type Client struct {
	Name  string // as in `dormouse connect NAME`
	Title string
	// File is the path of the file that [Client.Merge] changes. Imports are the paths of all files in
	// which the client may have servers; see [Machine.Path].
	File    string
	Imports []string

	format format
	keys   []string             // the path of the servers in File
	entry  func(Server) members // of a server in File; nil unless format is jsonFile
	paste  func(Server) []Paste // the ways to connect besides File; nil for none
}

// Server is a hosted server as a client sees it.
type Server struct {
	Name, URL string
	Key       string // API key, "" for none
}

// Paste is one way to connect a client.
type Paste struct {
	How  string `json:"how"` // "click", "run", or "file" for a text that belongs in a file
	Text string `json:"text"`
	File string `json:"file,omitempty"`
}

// Machine says where a user's files are.
type Machine struct {
	Home    string
	Config  string // folder of programs' settings: ~/.config, or ~/Library/Application Support on macOS
	Project string // the working folder
}

// Path returns the path of a file. "~/" stands for the home folder, and "CONFIG/" for the
// folder of programs' settings. Any other path is in the project.
func (m Machine) Path(file string) string {
	switch first, rest, _ := strings.Cut(file, "/"); first {
	case "~":
		return filepath.Join(m.Home, rest)
	case "CONFIG":
		return filepath.Join(m.Config, rest)
	}
	return filepath.Join(m.Project, file)
}

// Short returns the path of a file as a person writes it. "~" stands for the home folder,
// and a path in the project is relative to the project.
func (m Machine) Short(file string) string {
	path := m.Path(file)
	if rest, ok := strings.CutPrefix(path, m.Project+"/"); ok && m.Project != "" && !strings.HasPrefix(file, "~/") && !strings.HasPrefix(file, "CONFIG/") {
		return rest
	}
	if rest, ok := strings.CutPrefix(path, m.Home+"/"); ok && m.Home != "" {
		return "~/" + rest
	}
	return path
}

// format is the syntax of a client's file.
type format int

const (
	jsonFile format = iota
	tomlFile
	yamlFile
)

// members is an object that keeps the order of its members.
type members []struct {
	name  string
	value any
}

// MarshalJSON writes the members in order.
func (m members) MarshalJSON() ([]byte, error) {
	out := []byte{'{'}
	for i, one := range m {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(append(append(out, jsonedit.Encode(one.name)...), ':'), jsonedit.Encode(one.value)...)
	}
	return append(out, '}'), nil
}

// with adds a member of the given name: an object of HTTP headers with the server's API key.
// Without a key it adds nothing.
func (m members) with(name string, s Server) members {
	if s.Key == "" {
		return m
	}
	return append(m, members{{name, members{{"Authorization", bearer(s)}}}}...)
}

func bearer(s Server) string { return "Bearer " + s.Key }

// Clients returns all clients in the order in which lists show them.
func Clients() []Client {
	link := func(s Server) members { return members{{"url", s.URL}}.with("headers", s) }
	typed := func(s Server) members { return members{{"type", "http"}, {"url", s.URL}}.with("headers", s) }
	under := func(key string) func(Server) members {
		return func(s Server) members { return members{{key, s.URL}}.with("headers", s) }
	}
	return []Client{
		{
			Name: "claude-code", Title: "Claude Code", File: ".mcp.json", Imports: []string{".mcp.json", "~/.claude.json"},
			keys: []string{"mcpServers"}, entry: typed, paste: claudeCode,
		},
		{
			Name: "claude-desktop", Title: "Claude Desktop", File: "CONFIG/Claude/claude_desktop_config.json",
			Imports: []string{"CONFIG/Claude/claude_desktop_config.json"}, keys: []string{"mcpServers"}, entry: throughRemote, paste: connector,
		},
		{
			Name: "cursor", Title: "Cursor", File: ".cursor/mcp.json", Imports: []string{".cursor/mcp.json", "~/.cursor/mcp.json"},
			keys: []string{"mcpServers"}, entry: link, paste: func(s Server) []Paste {
				return []Paste{{How: "click", Text: withConfig("cursor://anysphere.cursor-deeplink/mcp/install", s.Name, link(s))}}
			},
		},
		{
			Name: "vscode", Title: "VS Code", File: ".vscode/mcp.json", Imports: []string{".vscode/mcp.json", "CONFIG/Code/User/mcp.json", "CONFIG/Code/User/settings.json"},
			keys: []string{"servers"}, entry: typed, paste: vscode,
		},
		{Name: "codex", Title: "Codex", File: "~/.codex/config.toml", Imports: []string{"~/.codex/config.toml"}, keys: []string{"mcp_servers"}, format: tomlFile},
		{
			Name: "gemini", Title: "Gemini CLI", File: "~/.gemini/settings.json", Imports: []string{".gemini/settings.json", "~/.gemini/settings.json"},
			keys: []string{"mcpServers"}, entry: under("httpUrl"),
		},
		{
			Name: "windsurf", Title: "Windsurf", File: "~/.codeium/windsurf/mcp_config.json", Imports: []string{"~/.codeium/windsurf/mcp_config.json"},
			keys: []string{"mcpServers"}, entry: under("serverUrl"),
		},
		{
			Name: "zed", Title: "Zed", File: "~/.config/zed/settings.json", Imports: []string{".zed/settings.json", "~/.config/zed/settings.json"},
			keys: []string{"context_servers"}, entry: link,
		},
		{Name: "goose", Title: "goose", File: "~/.config/goose/config.yaml", keys: []string{"extensions"}, format: yamlFile},
		{
			Name: "lmstudio", Title: "LM Studio", File: "~/.lmstudio/mcp.json", keys: []string{"mcpServers"}, entry: link,
			paste: func(s Server) []Paste {
				return []Paste{{How: "click", Text: withConfig("lmstudio://add_mcp", s.Name, link(s))}}
			},
		},
		{Name: "opencode", Title: "opencode", File: "~/.config/opencode/opencode.json", keys: []string{"mcp"}, entry: func(s Server) members {
			return members{{"type", "remote"}, {"url", s.URL}, {"enabled", true}}.with("headers", s)
		}},
		{Name: "amp", Title: "Amp", File: "~/.config/amp/settings.json", keys: []string{"amp.mcpServers"}, entry: link},
		{Name: "kiro", Title: "Kiro", File: "~/.kiro/settings/mcp.json", keys: []string{"mcpServers"}, entry: link},
	}
}

// Find returns the client with this name, or false if there is none.
func Find(name string) (Client, bool) {
	all := Clients()
	i := slices.IndexFunc(all, func(c Client) bool { return c.Name == name })
	if i < 0 {
		return Client{}, false
	}
	return all[i], true
}

// Pastes returns the ways to connect the client to a server, the shortest first. They
// contain the server's key.
func (c Client) Pastes(s Server) (all []Paste) {
	if c.paste != nil {
		all = c.paste(s)
	}
	text := ""
	switch c.format {
	case tomlFile:
		text = tomlTable(s)
	case yamlFile:
		text = "extensions:\n" + yamlBlock("  ", "  ", s)
	default:
		whole := any(members{{s.Name, c.entry(s)}})
		for _, key := range slices.Backward(c.keys) {
			whole = members{{key, whole}}
		}
		text = string(jsonedit.Encode(whole))
	}
	return append(all, Paste{How: "file", File: c.File, Text: strings.TrimSuffix(text, "\n")})
}

func claudeCode(s Server) []Paste {
	line := fmt.Sprintf("claude mcp add --transport http %s %s", s.Name, s.URL)
	if s.Key != "" {
		line += fmt.Sprintf(" --header %q", "Authorization: "+bearer(s))
	}
	return []Paste{{How: "run", Text: line}}
}

// vscode returns two ways to connect VS Code: a link, and a command.
func vscode(s Server) []Paste {
	whole := jsonedit.Encode(members{{"name", s.Name}, {"type", "http"}, {"url", s.URL}}.with("headers", s))
	return []Paste{
		{How: "click", Text: "vscode:mcp/install?" + component(string(whole))},
		{How: "run", Text: "code --add-mcp '" + string(whole) + "'"},
	}
}

// withConfig returns a link with the name of the server, and its entry in base64.
func withConfig(to, name string, entry members) string {
	return to + "?name=" + component(name) + "&config=" + component(base64.StdEncoding.EncodeToString(jsonedit.Encode(entry)))
}

// component escapes a part of a URL like JavaScript's encodeURIComponent.
func component(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }

// throughRemote returns an entry for a client that can only start programs: mcp-remote passes the
// messages on. The header is in a variable, because some clients split arguments at spaces.
func throughRemote(s Server) members {
	args := []string{"-y", "mcp-remote", s.URL}
	if u, err := url.Parse(s.URL); err == nil && u.Scheme == "http" && !loopback(u.Hostname()) {
		args = append(args, "--allow-http")
	}
	if s.Key == "" {
		return members{{"command", "npx"}, {"args", args}}
	}
	args = append(args, "--header", "Authorization:${AUTHORIZATION}")
	return members{{"command", "npx"}, {"args", args}, {"env", members{{"AUTHORIZATION", bearer(s)}}}}
}

func loopback(host string) bool {
	return host == "localhost" || host == "::1" || strings.HasPrefix(host, "127.")
}

// connector says where to enter a public URL in Claude Desktop.
func connector(s Server) []Paste {
	u, err := url.Parse(s.URL)
	if err != nil || u.Scheme != "https" || loopback(u.Hostname()) {
		return nil
	}
	return []Paste{{How: "click", Text: "Settings, Connectors, Add custom connector: " + s.URL}}
}
