package serversedit

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
)

// published is an object in a server.json, the format of the official MCP registry.
type published map[string]any

func (p published) word(key string) string {
	switch v := p[key].(type) {
	case string:
		return v
	case json.Number:
		return v.String()
	}
	return ""
}

func (p published) yes(key string) bool { return p[key] == true }

func (p published) list(key string) (all []published) {
	items, _ := p[key].([]any)
	for _, item := range items {
		o, _ := item.(map[string]any)
		all = append(all, o)
	}
	return all
}

func (p published) variables() map[string]published {
	all := map[string]published{}
	inside, _ := p["variables"].(map[string]any)
	for name, v := range inside {
		all[name], _ = v.(map[string]any)
	}
	return all
}

// readPublished parses a server.json, which may be inside a response of the registry. It returns
// nil for anything else.
func readPublished(text []byte) (p published) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	_ = d.Decode(&p)
	if inside, ok := p["server"].(map[string]any); ok {
		p = inside
	}
	_, packages := p["packages"]
	_, remotes := p["remotes"]
	if _, named := p["name"].(string); !named || !packages && !remotes {
		return nil
	}
	return p
}

func isPublished(text []byte) bool { return readPublished(text) != nil }

// BundleError is the error for a server that is a bundle (.mcpb), which must be downloaded first.
type BundleError struct {
	URL  string
	Hash string // SHA-256 in hexadecimal; "" if unknown
}

// Error implements error.
func (e BundleError) Error() string { return "it is a bundle: dormouse add " + e.URL }

// Published returns the entry for the server that a server.json describes: for its first package
// that can be hosted or, if it has none, for its first remote server. The result name is the
// last part of the server's name. If a bundle is the only package that can be hosted, the error is a
// [BundleError]. Values that users must set become variables. An optional value without a default is
// left out unless getenv has it.
func Published(text []byte, getenv serversfile.Getenv) (name string, e Entry, err error) {
	server := readPublished(text)
	if server == nil {
		return "", e, errors.New("it is no server.json")
	}
	name = ValidName(server.word("name")[strings.LastIndexByte(server.word("name"), '/')+1:])
	var others []string
	var bundle *BundleError
	for _, p := range server.list("packages") {
		kind, identifier := p.word("registryType"), p.word("identifier")
		transport, _ := p["transport"].(map[string]any)
		switch way := published(transport).word("type"); {
		case way != "" && way != "stdio":
			others = append(others, fmt.Sprintf("%s over %s", kind, way))
		case identifier == "":
			others = append(others, kind+" without an identifier")
		case kind == "mcpb" && bundle == nil:
			bundle = &BundleError{identifier, p.word("fileSha256")}
		case kind != "npm" && kind != "pypi" && kind != "oci":
			others = append(others, kind)
		case p.foreign(kind):
			others = append(others, kind+" of a registry of its own")
		default:
			return name, p.start(kind, identifier, getenv), nil
		}
	}
	if bundle != nil {
		return name, e, *bundle
	}
	for _, r := range server.list("remotes") {
		if e.URL = r.word("url"); e.URL == "" {
			continue
		}
		e.Type = r.word("type")
		for _, h := range r.list("headers") {
			header := h.word("name")
			if value, ok := h.given(strings.ReplaceAll(header, "-", "_"), getenv); ok && header != "" {
				e.Headers = append(e.Headers, Variable{Name: header, Value: value})
			}
		}
		return name, e, nil
	}
	if len(others) > 0 {
		return name, e, fmt.Errorf("its packages cannot be hosted (%s): npm, pypi and oci can, over stdio, from the usual registries", strings.Join(others, ", "))
	}
	return name, e, errors.New("it has neither a package nor a remote server")
}

// foreign reports whether a package is in another registry than the one that npx or uvx use. They
// might find a different package of the same name.
func (p published) foreign(kind string) bool {
	usual := map[string]string{"npm": "https://registry.npmjs.org", "pypi": "https://pypi.org"}[kind]
	base := strings.TrimSuffix(p.word("registryBaseUrl"), "/")
	return usual != "" && base != "" && base != usual
}

// start returns the entry that starts a package.
func (p published) start(kind, spec string, getenv serversfile.Getenv) (e Entry) {
	for _, v := range p.list("environmentVariables") {
		name := v.word("name")
		value, ok := v.given(name, getenv)
		if name == "" || !ok {
			continue
		}
		e.Env = append(e.Env, Variable{Name: name, Value: value})
		secret := v.yes("isSecret")
		for _, part := range v.variables() {
			secret = secret || part.yes("isSecret")
		}
		if secret {
			e.Hide(name)
		}
	}
	runtime := words(p.list("runtimeArguments"), getenv)
	version := p.word("version")
	if version == "latest" {
		version = ""
	}
	switch kind {
	case "npm", "pypi":
		e.Command = map[string]string{"npm": "npx", "pypi": "uvx"}[kind]
		if hint := p.word("runtimeHint"); hint != "" {
			e.Command = hint
		}
		if e.Command == "npx" && !slices.Contains(runtime, "-y") && !slices.Contains(runtime, "--yes") {
			e.Args = append(e.Args, "-y")
		}
		e.Args = append(e.Args, runtime...)
		if version != "" {
			spec += "@" + version
		}
	case "oci":
		e.Command, e.Args = "docker", []string{"run", "-i", "--rm"}
		for _, v := range e.Env {
			e.Args = append(e.Args, "-e", v.Name)
		}
		e.Args = append(e.Args, runtime...)
		if version != "" && !strings.ContainsAny(spec[strings.LastIndexByte(spec, '/')+1:], ":@") {
			spec += ":" + version
		}
	}
	e.Args = append(append(e.Args, spec), words(p.list("packageArguments"), getenv)...)
	return e
}

// words returns arguments in a server.json as words of a command line. It leaves out optional
// arguments that have no value.
func words(all []published, getenv serversfile.Getenv) (args []string) {
	for _, a := range all {
		name := a.word("name")
		if a.word("type") != "named" {
			name = ""
		}
		_, has := a["value"]
		_, hint := a["default"]
		if name != "" && !has && !hint && !a.yes("isRequired") { // a flag that takes no value
			args = append(args, name)
			continue
		}
		value, ok := a.given(serversfile.InputVariable(cmp.Or(a.word("valueHint"), a.word("name"))), getenv)
		if !ok {
			continue
		}
		if name != "" {
			args = append(args, name)
		}
		args = append(args, value)
	}
	return args
}

// given returns the value of an input in a server.json: the value in the file, with its {variables}
// replaced; or a reference to the environment variable; or the default. The result ok is false if
// the input has no value and needs none.
func (p published) given(variable string, getenv serversfile.Getenv) (value string, ok bool) {
	if value, ok := p["value"].(string); ok {
		inside := p.variables()
		for _, name := range slices.Sorted(maps.Keys(inside)) {
			if part, ok := inside[name].given(serversfile.InputVariable(name), getenv); ok {
				value = strings.ReplaceAll(value, "{"+name+"}", part)
			}
		}
		return value, true
	}
	_, optional := p["default"]
	_, set := getenv(variable)
	switch {
	case set && serversfile.IsVariable(variable), p.yes("isRequired") && !optional:
		return "${" + variable + "}", true
	case optional:
		return p.word("default"), true
	}
	return "", false
}
