package serversfile

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Defaults of a server's time limits.
const (
	DefaultRemoteStartup = 30 * time.Second // limits the handshake with a remote server (startup_timeout_sec)
	DefaultAnswerTimeout = 6 * time.Hour    // how long a client may take to answer a question of the server (answer_timeout_sec)
)

// MaxMarshal is the greatest length of Server.Marshal in bytes. [Parse] refuses a larger
// server, so that the author sees the mistake before a box starts.
const MaxMarshal = 8 << 10

// Server is one configured MCP server, with all variables expanded. Its strings are valid UTF-8
// without NUL.
//
// Env and Remote may hold secrets, and so may those Args that came from variables. String, GoString
// and MarshalJSON leave them out; only Marshal writes them.
type Server struct {
	Name string `json:"name"` // matches [A-Za-z0-9][A-Za-z0-9._-]{0,63}
	// Native is the name of a server that is part of this program (x-dormouse.native). It is "" for
	// a server that Command starts in a box, or that Remote reaches. One of the three is set.
	Native  string            `json:"native,omitempty"`
	Remote  Remote            `json:"remote,omitzero"`
	Command string            `json:"command"` // a program without arguments
	Args    []string          `json:"args,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	// Unset has the names, in order, of variables that are null in the file: the process does
	// not get them from the machine either.
	Unset []string `json:"unset,omitempty"`
	// Commands maps variables to the shell commands whose output is their value. None of these
	// variables is in Env. Commands is empty on AWS, where the file must have none.
	Commands map[string]string `json:"commands,omitempty"`
	Cwd      string            `json:"cwd,omitempty"` // the working folder; "" for the workspace, or for the runner's folder if there is none

	// Digest is the SHA-256, in lower-case hex, of everything that changes how the server behaves.
	// It covers Native, Remote, Command, Args, Env, Commands, Unset and Cwd, and some settings of
	// the box: Image, HostPath, the network, Sealed, and InstallScripts. The order of keys, the
	// name, and timeouts do not change Digest. It contains the values of Env only as hashes.
	Digest string `json:"-"`

	Idle           time.Duration `json:"idle_ns"`                     // idle_seconds, 0 if the file says nothing
	StartupTimeout time.Duration `json:"startup_timeout_ns"`          // startup_timeout_sec, > 0: installs, process and handshake together
	ToolTimeout    time.Duration `json:"tool_timeout_ns"`             // tool_timeout_sec, 0 means no limit
	AnswerTimeout  time.Duration `json:"answer_timeout_ns,omitempty"` // answer_timeout_sec, > 0; this time does not count for ToolTimeout

	Box Box `json:"box,omitzero"` // x-dormouse.box, with the values of its profile put in

	// Record permits storing the server's answers to initialize and to lists; x-dormouse.record may
	// forbid it.
	Record bool `json:"record"`
	// OwnLists permits storing only the answer to initialize, and no lists (x-dormouse.record
	// "initialize").
	OwnLists bool `json:"own_lists,omitempty"`
	// SameLists says that every client gets the same lists (x-dormouse.record "lists").
	SameLists bool `json:"same_lists,omitempty"`
	// Tasks says which calls become tasks (x-dormouse.tasks): "always", "off", or "" for
	// calls that take long.
	Tasks string `json:"tasks,omitempty"`
	// Disabled says that the server is in the file, but is not served.
	Disabled bool `json:"disabled,omitempty"`
	// Tools says which tools are offered.
	Tools ToolFilter `json:"-"`
	// Audit says which parts of calls auditors may read.
	Audit Audit `json:"-"`
	// Path is the PATH of the machine that has read the file, if the server runs there.
	Path string `json:"-"`
}

// marshaled is a Server whose JSON has all fields that have a name, including secrets.
type marshaled Server

// Marshal returns the server as one line of JSON for [UnmarshalServer], to be put into an
// environment variable. The line holds the values of Env in the clear. It has at most
// [MaxMarshal] bytes for every server of a [File].
func (s Server) Marshal() string { return string(encode(marshaled(s))) }

func (m marshaled) server() Server {
	s := Server(m)
	if s.AnswerTimeout == 0 {
		s.AnswerTimeout = DefaultAnswerTimeout // an older release wrote no such field
	}
	s.Digest = s.digest()
	return s
}

// UnmarshalServer reads the output of Server.Marshal and computes the digest anew.
// UnmarshalServer ignores unknown fields, so that an older reader understands a newer writer. The
// error never repeats the text, which holds secrets.
func UnmarshalServer(text string) (Server, error) {
	if len(text) > MaxMarshal {
		return Server{}, fmt.Errorf("server definition of %d bytes is over the limit of %d", len(text), MaxMarshal)
	}
	var m marshaled
	// The decoder's error is left out: it quotes numbers of the text.
	if json.Unmarshal([]byte(text), &m) != nil {
		return Server{}, errors.New("server definition is not JSON as Marshal writes it")
	}
	if !validName(m.Name) || m.Command == "" && m.Remote.URL == "" || m.Idle < 0 || m.StartupTimeout <= 0 || m.ToolTimeout < 0 || m.AnswerTimeout < 0 {
		return Server{}, errors.New("server definition has a missing or wrong name, command or timeout")
	}
	return m.server(), nil
}

// String describes the server without arguments and without values of Env.
func (s Server) String() string {
	if s.Native != "" {
		return fmt.Sprintf("server %q: native %q", s.Name, s.Native)
	}
	if s.Remote.URL != "" {
		return fmt.Sprintf("server %q: remote at %s", s.Name, s.Remote.Address())
	}
	names := slices.Sorted(maps.Keys(s.Env))
	names = append(names, slices.Sorted(maps.Keys(s.Commands))...)
	return fmt.Sprintf("server %q: command %q, %d args, env [%s]", s.Name, s.Command, len(s.Args), strings.Join(names, " "))
}

// GoString is String, so that %#v does not print secrets either.
func (s Server) GoString() string { return s.String() }

// MarshalJSON returns String as JSON, so that no log prints secrets.
func (s Server) MarshalJSON() ([]byte, error) { return json.Marshal(s.String()) }

// digest hashes a JSON list, which differs for servers that behave differently.
func (s Server) digest() string {
	env := hashed(s.Env)
	// The leading number is the version of this list: raise it when the list changes.
	list := []any{1, s.Command, append([]string{}, s.Args...), env, s.Cwd}
	if s.Native != "" {
		list = append(list, "native", s.Native)
	}
	if r := s.Remote; r.URL != "" {
		list = append(list, "remote", r.URL, hashed(r.Headers), r.Transport)
		if len(r.Commands) > 0 {
			list = append(list, "exec", hashed(r.Commands))
		}
	}
	if b := s.Box; b.Image != "" || b.HostPath != "" || b.Offline {
		// The list has these settings only if one is set, so that the digests of all
		// other servers stay the same.
		list = append(list, b.Image, b.HostPath, b.Offline)
	}
	if s.Box.Hosts != nil {
		list = append(list, "hosts", s.Box.Hosts)
	}
	if s.Box.InstallScripts {
		list = append(list, "install_scripts")
	}
	if s.Box.Sealed {
		list = append(list, "sealed")
	}
	if len(s.Unset) > 0 {
		list = append(list, "unset", s.Unset)
	}
	if len(s.Commands) > 0 {
		list = append(list, "exec", hashed(s.Commands))
	}
	sum := sha256.Sum256(encode(list))
	return hex.EncodeToString(sum[:])
}

// hashed returns names and the hashes of their values, in order of the names.
func hashed(values map[string]string) [][2]string {
	list := [][2]string{}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		value := sha256.Sum256([]byte(values[name]))
		list = append(list, [2]string{name, hex.EncodeToString(value[:])})
	}
	return list
}

// Definition returns a digest of everything that a running process and its box were started with:
// Digest, and all settings of the box. Timeouts and the setting record are not in it, so a process
// goes on when only these change.
func (s Server) Definition() string {
	sum := sha256.Sum256(encode([]any{s.Digest, s.Box}))
	return hex.EncodeToString(sum[:8])
}

// encode is json.Marshal without the escapes for HTML, which would waste space. Strings,
// numbers and lists always encode.
func encode(v any) []byte {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	_ = e.Encode(v)
	return bytes.TrimSuffix(out.Bytes(), []byte("\n"))
}
