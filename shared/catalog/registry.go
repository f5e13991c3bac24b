package catalog

import (
	"fmt"
	"slices"
	"strings"
)

// registry finds the one server of a server.json, the form of the official registry. The
// server stands alone, or inside an answer of the registry. The catalog names the server
// by the last part of its name in the registry.
func (r *reader) registry(root node) ([]member, bool) {
	if m, ok := root.get("server"); ok {
		root = m.value
	}
	name, _ := root.get("name")
	_, packages := root.get("packages")
	_, remotes := root.get("remotes")
	if name.value.shape != text || !packages && !remotes {
		return nil, false
	}
	short := strings.Map(func(c rune) rune {
		if validName("a" + string(c)) {
			return c
		}
		return '-'
	}, name.value.text[strings.LastIndexByte(name.value.text, '/')+1:])
	short = strings.TrimLeft(short[:min(len(short), 64)], "-._")
	return []member{{name: short, at: name.value.at, value: root}}, true
}

// published is a package of a server.json. The schema has renamed some keys over time, so
// word and list try several keys.
type published struct {
	node
	kind, identifier, version string
}

// word returns the text under the first of keys that exists.
func (n node) word(keys ...string) string {
	for _, key := range keys {
		if m, ok := n.get(key); ok && m.value.shape == text {
			return m.value.text
		}
	}
	return ""
}

// yes reports whether the value of key is true.
func (n node) yes(key string) bool {
	m, ok := n.get(key)
	return ok && m.value.on
}

// list returns the array under the first of keys that exists.
func (n node) list(keys ...string) []node {
	for _, key := range keys {
		if m, ok := n.get(key); ok && m.value.shape == array {
			return m.value.items
		}
	}
	return nil
}

// fromRegistry turns a server.json into an entry that starts its first package that can
// be hosted. Inputs of the user become variables.
func (r *reader) fromRegistry(m member, what string) (node, bool) {
	var others []string
	for _, n := range m.value.list("packages") {
		p := published{
			node: n, kind: n.word("registryType", "registry_type", "registry_name"),
			identifier: n.word("identifier", "name"), version: n.word("version"),
		}
		if p.version == "latest" {
			p.version = ""
		}
		transport, _ := n.get("transport")
		switch way := transport.value.word("type"); {
		case way != "" && way != "stdio":
			others = append(others, fmt.Sprintf("%s over %s", p.kind, way))
		case p.identifier == "":
			others = append(others, p.kind+" without an identifier")
		case p.kind != "npm" && p.kind != "pypi" && p.kind != "oci":
			others = append(others, p.kind)
		case p.foreign():
			others = append(others, p.kind+" of a registry of its own")
		default:
			return p.entry(r.getenv), true
		}
	}
	if len(others) > 0 {
		r.fail(m.at, "%s: its packages cannot be hosted (%s): npm, pypi and oci can, over stdio, from the usual registries", what, strings.Join(others, ", "))
		return node{}, false
	}
	for _, n := range m.value.list("remotes") {
		if entry, ok := remoteEntry(n, r.getenv); ok {
			return entry, true
		}
	}
	r.fail(m.at, "%s: it has neither a package nor a remote server", what)
	return node{}, false
}

// foreign reports whether the package is in another registry than npx and uvx ask. The
// registry that they ask may have another package of the same name.
func (p published) foreign() bool {
	usual := map[string]string{"npm": "https://registry.npmjs.org", "pypi": "https://pypi.org"}[p.kind]
	base := strings.TrimSuffix(p.word("registryBaseUrl", "registry_base_url"), "/")
	return usual != "" && base != "" && base != usual
}

// entry returns the package as a server of mcpServers.
func (p published) entry(getenv Getenv) node {
	str := func(s string) node { return node{shape: text, at: p.at, text: s} }
	env := node{shape: object, at: p.at}
	var secrets []node
	for _, v := range p.list("environmentVariables", "environment_variables") {
		name := v.word("name")
		value, ok := given(v, name, getenv)
		if name == "" || !ok {
			continue
		}
		env.members = append(env.members, member{name, v.at, value})
		secret := v.yes("isSecret")
		inside, _ := v.get("variables")
		for _, part := range inside.value.members {
			secret = secret || part.value.yes("isSecret")
		}
		if secret {
			secrets = append(secrets, str(name))
		}
	}
	runtime := arguments(p.list("runtimeArguments", "runtime_arguments"), getenv)
	var args []node
	command, spec := "", p.identifier
	switch p.kind {
	case "npm", "pypi":
		command = map[string]string{"npm": "npx", "pypi": "uvx"}[p.kind]
		if hint := p.word("runtimeHint", "runtime_hint"); hint != "" {
			command = hint
		}
		if command == "npx" && !slices.ContainsFunc(runtime, func(n node) bool { return n.text == "-y" || n.text == "--yes" }) {
			args = append(args, str("-y"))
		}
		args = append(args, runtime...)
		if p.version != "" {
			spec += "@" + p.version
		}
	case "oci":
		command, args = "docker", []node{str("run"), str("-i"), str("--rm")}
		for _, m := range env.members {
			args = append(args, str("-e"), str(m.name))
		}
		args = append(args, runtime...)
		if p.version != "" && !strings.ContainsAny(spec[strings.LastIndexByte(spec, '/')+1:], ":@") {
			spec += ":" + p.version
		}
	}
	args = append(append(args, str(spec)), arguments(p.list("packageArguments", "package_arguments"), getenv)...)
	entry := node{shape: object, at: p.at, members: []member{
		{"command", p.at, str(command)}, {"args", p.at, node{shape: array, at: p.at, items: args}}, {"env", p.at, env},
	}}
	if secrets != nil {
		box := node{shape: object, at: p.at, members: []member{{"secrets", p.at, node{shape: array, at: p.at, items: secrets}}}}
		entry.members = append(entry.members, member{"x-dormouse", p.at, node{shape: object, at: p.at, members: []member{{"box", p.at, box}}}})
	}
	return entry
}

// arguments returns the words of a command line. It leaves out optional arguments
// without a value.
func arguments(all []node, getenv Getenv) (words []node) {
	for _, a := range all {
		name := a.word("name")
		if a.word("type") != "named" {
			name = ""
		}
		_, has := a.get("value")
		_, hint := a.get("default")
		if name != "" && !has && !hint && !a.yes("isRequired") { // a flag
			words = append(words, node{shape: text, at: a.at, text: name})
			continue
		}
		value, ok := given(a, InputVariable(a.word("valueHint", "value_hint", "name")), getenv)
		if !ok {
			continue
		}
		if name != "" {
			words = append(words, node{shape: text, at: a.at, text: name})
		}
		words = append(words, value)
	}
	return words
}

// given returns the value of an input of a server.json. It takes the file's value, with
// the variables in braces replaced; else the value of variable; else the default. ok is
// false if there is no value and none is required.
func given(n node, variable string, getenv Getenv) (value node, ok bool) {
	value = node{shape: text, at: n.at}
	if m, ok := n.get("value"); ok && m.value.shape == text {
		value.text = m.value.text
		inside, _ := n.get("variables")
		for _, v := range inside.value.members {
			if part, ok := given(v.value, InputVariable(v.name), getenv); ok {
				value.text = strings.ReplaceAll(value.text, "{"+v.name+"}", part.text)
			}
		}
		return value, true
	}
	fallback, optional := n.get("default")
	_, set := getenv(variable)
	switch {
	case set && isVariable(variable), n.yes("isRequired") && !optional:
		value.text = "${" + variable + "}"
	case optional:
		value.text = fallback.value.text
	default:
		return value, false
	}
	return value, true
}

// remoteEntry returns a remote server of a server.json as a server of mcpServers.
func remoteEntry(n node, getenv Getenv) (node, bool) {
	to := n.word("url")
	if to == "" {
		return node{}, false
	}
	str := func(s string) node { return node{shape: text, at: n.at, text: s} }
	headers := node{shape: object, at: n.at}
	for _, h := range n.list("headers") {
		name := h.word("name")
		if value, ok := given(h, strings.ReplaceAll(name, "-", "_"), getenv); ok && name != "" {
			headers.members = append(headers.members, member{name, h.at, value})
		}
	}
	entry := node{shape: object, at: n.at, members: []member{{"url", n.at, str(to)}}}
	if kind := n.word("type", "transport_type"); kind != "" {
		entry.members = append(entry.members, member{"type", n.at, str(kind)})
	}
	if len(headers.members) > 0 {
		entry.members = append(entry.members, member{"headers", n.at, headers})
	}
	return entry, true
}
