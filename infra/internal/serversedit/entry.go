package serversedit

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/config/jsonedit"
)

// Entry is one server, in the form of mcpServers. Its strings may contain `${VAR}`.
type Entry struct {
	URL      string          `json:"url,omitempty"`  // URL of a remote server; then Command is ""
	Type     string          `json:"type,omitempty"` // transport of a remote server: "http" or "sse"; "" lets Dormouse find out
	Headers  Variables       `json:"headers,omitempty"`
	Command  string          `json:"command,omitempty"`
	Args     []string        `json:"args,omitempty"`
	Env      Variables       `json:"env,omitempty"`
	Cwd      string          `json:"cwd,omitempty"`
	EnvFile  string          `json:"envFile,omitempty"`
	EnvVars  json.RawMessage `json:"env_vars,omitempty"` // only in files of Codex
	Disabled *bool           `json:"disabled,omitempty"`
	Enabled  *bool           `json:"enabled,omitempty"`
	Ours     map[string]any  `json:"x-dormouse,omitempty"`
	Ignored  []string        `json:"-"` // keys of other clients that Dormouse does not use
}

// Variables are environment variables or headers, in the order of the file.
type Variables []Variable

// Variable is an environment variable or a header. Null means that the value in the file is null:
// the process must not inherit the variable.
type Variable struct {
	Name, Value string
	Null        bool
}

// MarshalJSON implements json.Marshaler.
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

// JSON returns the entry as it is written to a file.
func (e Entry) JSON() []byte { return jsonedit.Encode(e) }

// ParseEntry parses the entry of one server in any client's mcpServers, or the argument of
// `code --add-mcp`. The result name is "" if the entry has none. In arguments, variables and headers,
// ParseEntry also accepts numbers and booleans. It leaves out headers that are null. An error quotes
// no value.
func ParseEntry(text []byte) (e Entry, name string, err error) {
	plain := map[string]struct {
		to   any
		what string
	}{
		"name": {&name, "a string"}, "command": {&e.Command, "a string"}, "cwd": {&e.Cwd, "a string"}, "envFile": {&e.EnvFile, "a string"},
		"url": {&e.URL, "a string"}, "serverUrl": {&e.URL, "a string"}, "httpUrl": {&e.URL, "a string"}, "type": {&e.Type, "a string"},
		"disabled": {&e.Disabled, "true or false"}, "enabled": {&e.Enabled, "true or false"}, "env_vars": {&e.EnvVars, ""},
	}
	err = jsonedit.Members(text, func(key string, value json.RawMessage) error {
		if f, ok := plain[key]; ok {
			return decode(key, value, f.what, f.to)
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
			err := decode(key, value, "a string", &name)
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
			err := decode(key, value, "an object", &ours)
			for k, v := range ours {
				e.set(k, v)
			}
			return err
		case "source": // says nothing that is needed to start the server
		default:
			e.Ignored = append(e.Ignored, key)
		}
		return nil
	})
	if e.URL == "" {
		e.Type, e.Headers = "", nil // some clients keep these keys beside a command, where they have no effect
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

// SetOurs sets a member of the entry's x-dormouse to a value, encoded as JSON.
func (e *Entry) SetOurs(key string, value any) { e.set(key, jsonedit.Encode(value)) }

// SetBox sets a member of x-dormouse.box, and keeps the others.
func (e *Entry) SetBox(key string, value any) {
	if box, ok := e.box(); ok {
		box[key] = value
		e.SetOurs("box", box)
	}
}

// box returns a copy of x-dormouse.box. ok is false if it is no object; the reader of the servers
// file reports that.
func (e *Entry) box() (box map[string]any, ok bool) {
	box = map[string]any{}
	before, has := e.Ours["box"].(json.RawMessage)
	return box, !has || json.Unmarshal(before, &box) == nil
}

// Hide adds a variable to x-dormouse.box.secrets, so that its value is hidden in the output of the
// server.
func (e *Entry) Hide(name string) {
	box, _ := e.box()
	secrets, _ := box["secrets"].([]any)
	if !slices.Contains(secrets, any(name)) {
		e.SetBox("secrets", append(secrets, name))
	}
}

// variables parses an object of strings. The argument what names the object in errors.
func variables(to *Variables, what string, value json.RawMessage) error {
	if string(value) == "null" {
		return nil
	}
	return jsonedit.Members(value, func(name string, value json.RawMessage) error {
		v := Variable{Name: name, Null: string(value) == "null"}
		if v.Null && what == "header" {
			return nil
		}
		if err := decode(what+" "+name, scalar(value), "a string", &v.Value); err != nil {
			return err
		}
		*to = append(*to, v)
		return nil
	})
}

func texts(to *[]string, value json.RawMessage) error {
	var all []json.RawMessage
	if err := decode("args", value, "a list of strings", &all); err != nil {
		return err
	}
	for i, word := range all {
		var text string
		if err := decode(fmt.Sprintf("args[%d]", i), scalar(word), "a string", &text); err != nil || string(word) == "null" {
			return fmt.Errorf("args[%d] must be a string", i)
		}
		*to = append(*to, text)
	}
	return nil
}

// scalar returns a number or boolean as a JSON string with the same characters.
func scalar(value json.RawMessage) json.RawMessage {
	if strings.ContainsRune("-0123456789tf", rune(value[0])) {
		return jsonedit.Encode(string(value))
	}
	return value
}

// decode decodes the value of a key into v. The error says of which kind the value must be, for
// example "a string", and does not quote it.
func decode(key string, value json.RawMessage, kind string, v any) error {
	if json.Unmarshal(value, v) != nil {
		return fmt.Errorf("%s must be %s", key, kind)
	}
	return nil
}
