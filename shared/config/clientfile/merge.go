package clientfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/dormouse-mcp/dormouse/shared/config/jsonedit"
)

// Merge puts servers into the text of the client's file, which may be empty. If an entry already
// reaches its server by URL, Merge changes only the address and the key. It replaces any other
// entry with the same name. All other bytes stay. The error quotes no value.
func (c Client) Merge(text []byte, servers []Server) ([]byte, error) {
	put := map[format]func([]byte, Server) ([]byte, error){jsonFile: c.putJSON, tomlFile: putTOML, yamlFile: putYAML}[c.format]
	for _, s := range servers {
		var err error
		if text, err = put(text, s); err != nil {
			return nil, fmt.Errorf("server %q: %w; paste it by hand", s.Name, err)
		}
	}
	return text, nil
}

func (c Client) putJSON(text []byte, s Server) ([]byte, error) {
	path := slices.Concat(c.keys, []string{s.Name})
	entry := c.entry(s)
	old, ok, err := jsonedit.Get(text, path...)
	if err != nil {
		return nil, err
	}
	var was map[string]json.RawMessage
	if !ok || json.Unmarshal(old, &was) != nil || was["command"] != nil || was[entry[0].name] == nil {
		return jsonedit.Set(text, jsonedit.Encode(entry), path...)
	}
	for _, m := range entry {
		value := jsonedit.Encode(m.value)
		if bytes.Equal(was[m.name], value) {
			continue
		}
		if text, err = jsonedit.Set(text, value, slices.Concat(path, []string{m.name})...); err != nil {
			return nil, err
		}
	}
	return text, nil
}

// tomlTable returns a server as a table for Codex's file.
func tomlTable(s Server) string {
	name := s.Name
	if !regexp.MustCompile(`^[A-Za-z0-9_-]+$`).MatchString(name) {
		name = `"` + name + `"`
	}
	table := fmt.Sprintf("[mcp_servers.%s]\nurl = %s\n", name, jsonedit.Encode(s.URL))
	if s.Key != "" {
		table += fmt.Sprintf("http_headers = { Authorization = %s }\n", jsonedit.Encode(bearer(s)))
	}
	return table
}

// putTOML replaces the table of a server, or adds one at the end. In an existing table it
// keeps the keys that do not belong to the connection.
func putTOML(text []byte, s Server) ([]byte, error) {
	before, was, err := readTOML(text, s.Name)
	if err != nil {
		return nil, err
	}
	var out []byte
	switch {
	case was != nil:
		out = replaceTOML(text, s, was["command"] != nil)
	case len(bytes.TrimSpace(text)) == 0:
		out = []byte(tomlTable(s))
	default:
		out = slices.Concat(bytes.TrimRight(text, "\n"), []byte("\n\n"+tomlTable(s)))
	}
	after, is, err := readTOML(out, s.Name)
	if err != nil || is["url"] != s.URL || is["command"] != nil || !reflect.DeepEqual(before, after) {
		return nil, errors.New("dormouse cannot change the form in which the file has it")
	}
	return out, nil
}

// readTOML decodes a file of Codex, and separates one server from the others.
func readTOML(text []byte, name string) (others, server map[string]any, err error) {
	if toml.Unmarshal(text, &others) != nil {
		return nil, nil, errors.New("the file is not TOML")
	}
	if servers, ok := others["mcp_servers"].(map[string]any); ok {
		server, _ = servers[name].(map[string]any)
		if delete(servers, name); len(servers) == 0 {
			delete(others, "mcp_servers")
		}
	}
	if len(others) == 0 {
		others = nil
	}
	return others, server, nil
}

// replaceTOML replaces those lines in the table of s that say how to connect. If started is
// true, the old entry starts a program, and replaceTOML also removes the content of the tables
// below that of s. The caller must check that nothing else has changed: replaceTOML does not
// recognize values that span several lines.
func replaceTOML(text []byte, s Server, started bool) []byte {
	own := tableOf(s.Name)
	reached := regexp.MustCompile(`^\s*(url|http_headers|command|args|env|cwd|env_vars|bearer_token_env_var)\s*=`)
	var out []byte
	inside, below := false, false
	for line := range bytes.Lines(text) {
		if m := own.FindSubmatch(line); m != nil {
			inside, below = len(m[2]) == 0, len(m[2]) > 0
			if inside {
				_, reach, _ := strings.Cut(tomlTable(s), "\n")
				out = append(append(out, line...), reach...)
				continue
			}
		} else if anyTable.Match(line) {
			inside, below = false, false
		}
		plain := bytes.TrimSpace(line)
		if inside && reached.Match(line) || below && started && len(plain) > 0 && plain[0] != '#' {
			continue
		}
		out = append(out, line...)
	}
	return out
}

// anyTable matches the header of a table of TOML.
var anyTable = regexp.MustCompile(`^\s*\[`)

// tableOf returns an expression that matches the header of the table of a server, and the headers
// of tables below it. The second group of the expression is what follows the name of the server.
func tableOf(name string) *regexp.Regexp {
	name = regexp.QuoteMeta(name)
	return regexp.MustCompile(`^\s*\[\s*mcp_servers\s*\.\s*("` + name + `"|'` + name + `'|` + name + `)\s*(\.[^\]]*)?\]`)
}

// yamlBlock returns a server as an extension for goose's file. The argument step is one
// indentation.
func yamlBlock(indent, step string, s Server) string {
	lines := []string{
		string(jsonedit.Encode(s.Name)) + ":", step + "enabled: true", step + "type: streamable_http", step + "name: " + string(jsonedit.Encode(s.Name)),
		step + "uri: " + string(jsonedit.Encode(s.URL)), step + "timeout: 300",
	}
	if s.Key != "" {
		lines = append(lines, step+"headers:", step+step+"Authorization: "+string(jsonedit.Encode(bearer(s))))
	}
	return indent + strings.Join(lines, "\n"+indent) + "\n"
}

// putYAML replaces an extension in goose's file, or adds one as the first.
func putYAML(text []byte, s Server) ([]byte, error) {
	lines := strings.SplitAfter(string(text), "\n")
	begin, all, err := extensions(lines)
	if err != nil {
		return nil, err
	}
	if begin < 0 {
		whole := string(text)
		if whole != "" && !strings.HasSuffix(whole, "\n") {
			whole += "\n"
		}
		return []byte(whole + "extensions:\n" + yamlBlock("  ", "  ", s)), nil
	}
	rest, _, _ := strings.Cut(strings.TrimPrefix(lines[begin], "extensions:"), "#")
	switch strings.TrimSpace(rest) {
	case "":
	case "{}":
		lines[begin] = "extensions:\n"
	default:
		return nil, errors.New("its extensions are not one to a line")
	}
	if !strings.HasSuffix(lines[begin], "\n") {
		lines[begin] += "\n"
	}
	place := extension{indent: "  ", from: begin + 1, to: begin + 1}
	if len(all) > 0 {
		place.indent = all[0].indent
	}
	if i := slices.IndexFunc(all, func(e extension) bool { return e.name == s.Name }); i >= 0 {
		place = all[i]
	}
	return []byte(strings.Join(slices.Replace(lines, place.from, place.to, yamlBlock(place.indent, "  ", s)), "")), nil
}

// extension is an extension in a file of goose: lines[from:to], which begin with indent.
type extension struct {
	name, indent string
	from, to     int
}

// extensions returns the extensions in the lines of a file, and the index of the line above
// them, -1 if there is none. It reads only as much YAML as goose writes itself: a block of
// extensions whose line "extensions:" begins in the first column.
func extensions(lines []string) (begin int, all []extension, err error) {
	begin = slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "extensions:") })
	if begin < 0 {
		return begin, nil, nil
	}
	for i := begin + 1; i < len(lines); {
		text := strings.TrimLeft(lines[i], " ")
		indent := lines[i][:len(lines[i])-len(text)]
		switch {
		case strings.TrimSpace(text) == "" || text[0] == '#':
			i++
			continue
		case text[0] == '\t':
			return begin, nil, errors.New("it has tabs")
		case indent == "":
			return begin, all, nil
		}
		key, _, _ := strings.Cut(text, ":")
		all = append(all, extension{strings.Trim(strings.TrimSpace(key), `"'`), indent, i, yamlEnd(lines, i, len(indent))})
		i = all[len(all)-1].to
	}
	return begin, all, nil
}

// yamlEnd returns the index of the line after the block that begins at lines[at], with an indentation of
// depth.
func yamlEnd(lines []string, at, depth int) int {
	end := at + 1
	for i := at + 1; i < len(lines); i++ {
		text := strings.TrimLeft(lines[i], " ")
		if strings.TrimSpace(text) == "" {
			continue
		}
		if len(lines[i])-len(text) <= depth {
			break
		}
		end = i + 1
	}
	return end
}
