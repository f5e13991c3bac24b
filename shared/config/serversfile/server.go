package serversfile

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"
)

// The defaults of a server's times.
const (
	DefaultRemoteStartup = 30 * time.Second // startup_timeout_sec of a remote server: its handshake
	DefaultAnswerTimeout = 6 * time.Hour    // limits the time for a client's answer to a question of a call
)

// MaxMarshal is the greatest length of Server.Marshal in bytes. [Parse] refuses a larger
// server, so that the author sees the mistake before a box starts.
const MaxMarshal = 8 << 10

// Server is one configured MCP server, with all variables expanded. Its strings
// are valid UTF-8 without NUL.
//
// Env, and Args where they came from variables, may hold secrets. String,
// GoString, LogValue and encoding/json leave them out; only Marshal writes them.
type Server struct {
	Name string // matches [A-Za-z0-9][A-Za-z0-9._-]{0,63}
	// Native is the name of a server that is part of the functions, x-dormouse.native. It is
	// "" for a server that Command starts in a box, or that Remote reaches. One of the three
	// is set.
	Native  string
	Remote  Remote
	Command string            // a program without arguments
	Args    []string          `json:"-"`
	Env     map[string]string `json:"-"`
	Unset   []string          // names, in order, of variables that are null: the process does not get them from the machine either
	// Commands has the variables whose values are the output of a shell command, with the
	// command. They are not in Env. Only a machine that reads the file by [LoadHere] has some.
	Commands map[string]string `json:"-"`
	Cwd      string            // as written, "" for the workspace of the box

	// Digest is the SHA-256, in lower-case hex, of everything that changes how the server
	// behaves. That is Command, Args, Env, Unset and Cwd, and some settings of the box: the
	// image, the host path, the network, the seal, and whether packages run their install
	// scripts.
	// The order of keys, the name, and timeouts do not change it, so a handshake record
	// under the digest stays valid when those change. It contains the values of Env only
	// as hashes.
	Digest string

	Idle           time.Duration // idle_seconds, 0 if the file says nothing
	StartupTimeout time.Duration // startup_timeout_sec, > 0: installs, process and handshake together
	ToolTimeout    time.Duration // tool_timeout_sec, 0 means no limit
	AnswerTimeout  time.Duration // answer_timeout_sec, > 0; ToolTimeout stands still meanwhile

	Box Box // x-dormouse.box, with the values of its profile put in

	// Record permits keeping a handshake record; x-dormouse.record may switch it off.
	Record bool
	// OwnLists leaves the lists out of the record (x-dormouse.record "initialize").
	OwnLists bool
	// SameLists says that every client gets the same lists (x-dormouse.record "lists").
	SameLists bool
	// Tasks says which calls become tasks (x-dormouse.tasks): "always", "off", or "" for
	// calls that take long.
	Tasks string
	// Disabled says that the server is in the file, but is not served.
	Disabled bool
	// Tools says which tools are offered.
	Tools ToolFilter
	// Audit says what of calls auditors may read.
	Audit Audit
	// Path is the PATH of the machine that has read the file, if the server runs there.
	// Marshal leaves it out.
	Path string
}

// marshaled is the form of a Server in a box's environment.
type marshaled struct {
	Name           string            `json:"name"`
	Native         string            `json:"native,omitempty"`
	Remote         *marshaledRemote  `json:"remote,omitempty"`
	Command        string            `json:"command"`
	Args           []string          `json:"args,omitempty"`
	Env            map[string]string `json:"env,omitempty"`
	Unset          []string          `json:"unset,omitempty"`
	Commands       map[string]string `json:"commands,omitempty"`
	Cwd            string            `json:"cwd,omitempty"`
	Idle           time.Duration     `json:"idle_ns"`
	StartupTimeout time.Duration     `json:"startup_timeout_ns"`
	ToolTimeout    time.Duration     `json:"tool_timeout_ns"`
	AnswerTimeout  time.Duration     `json:"answer_timeout_ns,omitempty"`
	Box            Box               `json:"box,omitzero"`
	Record         bool              `json:"record"`
	OwnLists       bool              `json:"own_lists,omitempty"`
	SameLists      bool              `json:"same_lists,omitempty"`
	Tasks          string            `json:"tasks,omitempty"`
	Disabled       bool              `json:"disabled,omitempty"`
}

// Marshal returns the server as one line of JSON for [UnmarshalServer], to be put into
// an environment variable. It holds the values of Env in the clear. It has at most
// [MaxMarshal] bytes for every server of a [File].
func (s Server) Marshal() string { return string(encode(s.marshaled())) }

func (s Server) marshaled() marshaled {
	return marshaled{
		Name: s.Name, Native: s.Native, Remote: s.Remote.marshaled(), Command: s.Command, Args: s.Args, Env: s.Env, Unset: s.Unset, Commands: s.Commands, Cwd: s.Cwd,
		Idle: s.Idle, StartupTimeout: s.StartupTimeout, ToolTimeout: s.ToolTimeout, AnswerTimeout: s.AnswerTimeout,
		Box:    s.Box,
		Record: s.Record, OwnLists: s.OwnLists, SameLists: s.SameLists, Tasks: s.Tasks, Disabled: s.Disabled,
	}
}

func (m marshaled) server() Server {
	s := Server{
		Name: m.Name, Native: m.Native, Remote: m.Remote.remote(), Command: m.Command, Args: m.Args, Env: m.Env, Unset: m.Unset, Commands: m.Commands, Cwd: m.Cwd,
		Idle: m.Idle, StartupTimeout: m.StartupTimeout, ToolTimeout: m.ToolTimeout, AnswerTimeout: m.AnswerTimeout,
		Box:    m.Box,
		Record: m.Record, OwnLists: m.OwnLists, SameLists: m.SameLists, Tasks: m.Tasks, Disabled: m.Disabled,
	}
	if s.AnswerTimeout == 0 {
		s.AnswerTimeout = DefaultAnswerTimeout // an older writer has no such field
	}
	s.Digest = s.digest()
	return s
}

// UnmarshalServer reads the output of Server.Marshal and computes the digest anew. It
// ignores unknown fields, so an older reader understands a newer writer. The error never
// repeats the text, which holds secrets.
func UnmarshalServer(text string) (Server, error) {
	if len(text) > MaxMarshal {
		return Server{}, fmt.Errorf("server definition of %d bytes is over the limit of %d", len(text), MaxMarshal)
	}
	var m marshaled
	// The decoder's error is left out: it quotes numbers of the text.
	if json.Unmarshal([]byte(text), &m) != nil {
		return Server{}, errors.New("server definition is not JSON as Marshal writes it")
	}
	if !validName(m.Name) || m.Command == "" && m.Remote == nil || m.Idle < 0 || m.StartupTimeout <= 0 || m.ToolTimeout < 0 || m.AnswerTimeout < 0 {
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
	return fmt.Sprintf("server %q: command %q, %d args, env [%s]",
		s.Name, s.Command, len(s.Args), strings.Join(s.envNames(), " "))
}

// GoString is String, so that %#v does not print secrets either.
func (s Server) GoString() string { return s.String() }

// LogValue returns a group of name, command, number of args, names of env and the
// beginning of the digest.
func (s Server) LogValue() slog.Value {
	return slog.GroupValue(
		slog.String("name", s.Name),
		slog.String("command", s.Command),
		slog.String("native", s.Native),
		slog.String("remote", s.Remote.Address()),
		slog.Int("args", len(s.Args)),
		slog.Any("env", s.envNames()),
		slog.String("digest", s.Digest[:min(12, len(s.Digest))]),
	)
}

func (s Server) envNames() []string {
	return slices.Sorted(slices.Values(slices.Concat(slices.Collect(maps.Keys(s.Env)), slices.Collect(maps.Keys(s.Commands)))))
}

// digest hashes a JSON list in which every part has a fixed position, so different
// servers never give the same bytes.
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

// Definition returns a digest of everything that a running process and its box were
// started with: Digest, and all settings of the box. Timeouts and records do not change
// it, so a process goes on when only those change.
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
