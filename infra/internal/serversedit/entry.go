package serversedit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/config/jsonedit"
)

// Entry is one server, in the form of mcpServers. Strings may hold `${VAR}`.
type Entry struct {
	URL      string          `json:"url,omitempty"`  // of a remote server, which has no Command
	Type     string          `json:"type,omitempty"` // transport of a remote server: "http" or "sse"; "" if Dormouse is to find it out
	Headers  Variables       `json:"headers,omitempty"`
	Command  string          `json:"command,omitempty"`
	Args     []string        `json:"args,omitempty"`
	Env      Variables       `json:"env,omitempty"`
	Cwd      string          `json:"cwd,omitempty"`
	EnvFile  string          `json:"envFile,omitempty"`
	EnvVars  json.RawMessage `json:"env_vars,omitempty"` // of Codex
	Disabled *bool           `json:"disabled,omitempty"`
	Enabled  *bool           `json:"enabled,omitempty"`
	Ours     map[string]any  `json:"x-dormouse,omitempty"`
	Ignored  []string        `json:"-"` // keys of other clients that are not imported
}

// Variables are the variables of a process, in the order of the file.
type Variables []Variable

// Variable is one variable of a process. One with Null is null in the file: the process does
// not get it from the machine either.
type Variable struct {
	Name, Value string
	Null        bool
}

// MarshalJSON writes an object.
func (v Variables) MarshalJSON() ([]byte, error) {
	all := make([]member, len(v))
	for i, one := range v {
		all[i] = member{one.Name, json.RawMessage("null")}
		if !one.Null {
			all[i].value = jsonedit.Encode(one.Value)
		}
	}
	return encode(all), nil
}

// JSON returns the entry in the form in which it stands in a file.
func (e Entry) JSON() []byte { return jsonedit.Encode(e) }

// ParseEntry reads an entry in the form of mcpServers, with the keys of all clients, or in
// that of `code --add-mcp`. name is "" if the entry has none. In the place of a text, numbers,
// true and false become texts. A header that is null is left out. The error quotes no value.
func ParseEntry(text []byte) (e Entry, name string, err error) {
	plain := map[string]struct {
		to   any
		what string
	}{
		"name": {&name, "a string"}, "command": {&e.Command, "a string"}, "cwd": {&e.Cwd, "a string"}, "envFile": {&e.EnvFile, "a string"},
		"url": {&e.URL, "a string"}, "serverUrl": {&e.URL, "a string"}, "httpUrl": {&e.URL, "a string"}, "type": {&e.Type, "a string"},
		"disabled": {&e.Disabled, "true or false"}, "enabled": {&e.Enabled, "true or false"}, "env_vars": {&e.EnvVars, ""},
	}
	err = members(json.NewDecoder(bytes.NewReader(text)), func(key string, value json.RawMessage) error {
		if f, ok := plain[key]; ok {
			return as(key, value, f.what, f.to)
		}
		switch key {
		case "args":
			return texts(&e.Args, value)
		case "env":
			return variables(&e.Env, "env", value)
		case "headers", "http_headers":
			return variables(&e.Headers, "header", value)
		case "bearer_token_env_var":
			var name string
			err := as(key, value, "a string", &name)
			e.Headers = append(e.Headers, Variable{Name: "Authorization", Value: "Bearer ${" + name + "}"})
			return err
		case "env_http_headers":
			var of Variables
			err := variables(&of, "header", value)
			for _, h := range of {
				e.Headers = append(e.Headers, Variable{Name: h.Name, Value: "${" + h.Value + "}"})
			}
			return err
		case "x-dormouse":
			var ours map[string]json.RawMessage
			err := as(key, value, "an object", &ours)
			for k, v := range ours {
				e.set(k, v)
			}
			return err
		case "source": // for a server over stdio this key adds nothing
		default:
			e.Ignored = append(e.Ignored, key)
		}
		return nil
	})
	if e.URL == "" {
		e.Type, e.Headers = "", nil // clients keep these beside a command, where they add nothing
	}
	return e, name, err
}

// set sets a member of x-dormouse.
func (e *Entry) set(key string, value json.RawMessage) {
	if e.Ours == nil {
		e.Ours = map[string]any{}
	}
	e.Ours[key] = value
}

// SetOurs sets a member of the entry's x-dormouse to a value, which is encoded as JSON.
func (e *Entry) SetOurs(key string, value any) { e.set(key, jsonedit.Encode(value)) }

// SetBox sets a member of x-dormouse.box, and leaves the others.
func (e *Entry) SetBox(key string, value any) {
	if box, ok := e.box(); ok {
		box[key] = value
		e.SetOurs("box", box)
	}
}

// box returns x-dormouse.box. ok is false if that is no object, which an error reports later,
// when the servers file is read.
func (e *Entry) box() (box map[string]any, ok bool) {
	box = map[string]any{}
	before, has := e.Ours["box"].(json.RawMessage)
	return box, !has || json.Unmarshal(before, &box) == nil
}

// Hide adds a variable to x-dormouse.box.secrets, so that its value is hidden in output.
func (e *Entry) Hide(name string) {
	box, _ := e.box()
	secrets, _ := box["secrets"].([]any)
	if !slices.Contains(secrets, any(name)) {
		e.SetBox("secrets", append(secrets, name))
	}
}

// variables reads an object of strings. what names it in errors.
func variables(to *Variables, what string, value json.RawMessage) error {
	if string(value) == "null" {
		return nil
	}
	return members(json.NewDecoder(bytes.NewReader(value)), func(name string, value json.RawMessage) error {
		v := Variable{Name: name, Null: string(value) == "null"}
		if v.Null && what == "header" {
			return nil
		}
		if err := as(what+" "+name, scalar(value), "a string", &v.Value); err != nil {
			return err
		}
		*to = append(*to, v)
		return nil
	})
}

func texts(to *[]string, value json.RawMessage) error {
	var all []json.RawMessage
	if err := as("args", value, "a list of strings", &all); err != nil {
		return err
	}
	for i, word := range all {
		var text string
		if err := as(fmt.Sprintf("args[%d]", i), scalar(word), "a string", &text); err != nil || string(word) == "null" {
			return fmt.Errorf("args[%d] must be a string", i)
		}
		*to = append(*to, text)
	}
	return nil
}

// scalar returns a number, true or false as a JSON text with the same characters. Any other
// value stays.
func scalar(value json.RawMessage) json.RawMessage {
	if strings.ContainsRune("-0123456789tf", rune(value[0])) {
		return jsonedit.Encode(string(value))
	}
	return value
}

// as decodes a member into to. The error says that key must be what, and does not quote the
// value, as that of encoding/json would.
func as(key string, value json.RawMessage, what string, to any) error {
	if json.Unmarshal(value, to) != nil {
		return fmt.Errorf("%s must be %s", key, what)
	}
	return nil
}

// members calls use for each member of an object, in order. A repeated name counts once,
// with its last value.
func members(dec *json.Decoder, use func(key string, value json.RawMessage) error) error {
	var keys []string
	values := map[string]json.RawMessage{}
	begin, err := dec.Token()
	if err != nil || begin != json.Delim('{') {
		return fmt.Errorf("write a JSON object: {\"command\": \"…\", \"args\": […]}")
	}
	for dec.More() {
		key, err := dec.Token()
		var value json.RawMessage
		if err == nil {
			err = dec.Decode(&value)
		}
		name, ok := key.(string)
		if err != nil || !ok {
			return fmt.Errorf("the JSON object is not complete")
		}
		if !slices.Contains(keys, name) {
			keys = append(keys, name)
		}
		values[name] = value
	}
	if _, err := dec.Token(); err != nil {
		return fmt.Errorf("the JSON object is not complete")
	}
	for _, key := range keys {
		if err := use(key, values[key]); err != nil {
			return err
		}
	}
	return nil
}
