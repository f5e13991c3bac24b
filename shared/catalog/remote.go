package catalog

import (
	"net/url"
	"slices"
	"strings"
)

// Remote is a server that another party hosts. URL and Headers may hold secrets; String,
// LogValue and encoding/json of a Server leave them out.
type Remote struct {
	URL     string            `json:"-"` // "" for a server that is not remote
	Headers map[string]string `json:"-"` // on each request; may hold ${principal:NAME}
	// Transport is "http" for Streamable HTTP, "sse" for HTTP+SSE, and "" if Dormouse is to
	// find it out.
	Transport string
	// Private permits addresses that are not public (x-dormouse.remote.private).
	Private bool
}

// marshaledRemote is a Remote with its secrets.
type marshaledRemote struct {
	URL       string            `json:"url"`
	Headers   map[string]string `json:"headers,omitempty"`
	Transport string            `json:"transport,omitempty"`
	Private   bool              `json:"private,omitempty"`
}

func (r Remote) marshaled() *marshaledRemote {
	if r.URL == "" {
		return nil
	}
	return &marshaledRemote{r.URL, r.Headers, r.Transport, r.Private}
}

func (m *marshaledRemote) remote() Remote {
	if m == nil {
		return Remote{}
	}
	return Remote{m.URL, m.Headers, m.Transport, m.Private}
}

// InPlace reports whether the function that gets a message executes it, so that there is no
// box: the server is native or remote.
func (s Server) InPlace() bool { return s.Native != "" || s.Remote.URL != "" }

// Address returns the URL without its query, user and password, which may be secret. It is
// "" for a server that is not remote.
func (r Remote) Address() string {
	u, err := url.Parse(r.URL)
	if err != nil || r.URL == "" {
		return ""
	}
	return u.Scheme + "://" + u.Host + u.EscapedPath()
}

// urlKeys are the keys in which clients write the URL of a server.
func urlKeys() []string { return []string{"url", "serverUrl", "httpUrl"} }

// isRemote reports whether the file says that the server is reached by URL.
func (r *serverReader) isRemote() bool {
	return slices.ContainsFunc(urlKeys(), func(key string) bool {
		m, ok := r.key.value.get(key)
		return ok && m.value.shape != null
	})
}

// url reads the URL of a remote server.
func (r *serverReader) url(m member) {
	to := r.text(m.value, m.name)
	if r.server.Remote.URL != "" {
		r.fail(m.at, "%s: %s is a second URL: leave one of them", r.what, m.name)
		return
	}
	u, err := url.Parse(to)
	if (m.value.text == "" || to != "") && m.value.shape == text && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "") {
		r.fail(m.value.at, "%s: %s must be a URL that begins with https:// or http://", r.what, m.name)
		return
	}
	r.server.Remote.URL = to
}

// headers reads the headers for a remote server. Other servers ignore them.
func (r *serverReader) headers(m member) {
	if !r.isRemote() || !r.want(m.value, object, r.what+": "+m.name) {
		return
	}
	r.each(m.value, func(h member) {
		if h.name == "" || strings.ContainsFunc(h.name, func(c rune) bool { return c <= ' ' || c > '~' || strings.ContainsRune(`()<>@,;:\"/[]?={}`, c) }) {
			r.fail(h.at, "%s: headers: %q cannot be the name of a header", r.what, h.name)
			return
		}
		if r.server.Remote.Headers == nil {
			r.server.Remote.Headers = map[string]string{}
		}
		if h.value.shape == null {
			return // as if it was not there
		}
		r.inEnv = true
		value := r.text(scalar(h.value), "header "+h.name)
		r.inEnv = false
		switch {
		case strings.ContainsAny(value, "\r\n\x00"):
			r.fail(h.value.at, "%s: header %s: a line break cannot be in the value of a header", r.what, h.name)
		case strings.Contains(value, "${"+principalFileKind+":"):
			r.fail(h.value.at, "%s: header %s: a remote server reads no file: write ${%s:…}", r.what, h.name, principalKind)
		default:
			r.server.Remote.Headers[h.name] = value
		}
	})
}

// bearer reads the name of the variable that Codex sends as a bearer token.
func (r *serverReader) bearer(m member) {
	if r.isRemote() && r.want(m.value, text, r.what+": "+m.name) {
		r.header(m, "Authorization", "Bearer ", m.value.text)
	}
}

// envHeaders reads the headers that Codex takes from variables.
func (r *serverReader) envHeaders(m member) {
	if r.isRemote() && r.want(m.value, object, r.what+": "+m.name) {
		r.each(m.value, func(h member) {
			if r.want(h.value, text, r.what+": "+m.name) {
				r.header(h, h.name, "", h.value.text)
			}
		})
	}
}

// header sets a header to a prefix and a variable.
func (r *serverReader) header(m member, name, prefix, variable string) {
	value := node{shape: text, at: m.value.at, text: prefix + "${" + variable + "}"}
	r.headers(member{"headers", m.at, node{shape: object, at: m.at, members: []member{{name, m.at, value}}}})
}

// kind reads the type of a server.
func (r *serverReader) kind(m member) {
	if !r.want(m.value, text, r.what+": type") {
		return
	}
	switch strings.ToLower(m.value.text) {
	case "stdio", "local":
		if r.isRemote() {
			r.fail(m.at, "%s: type %q and a URL: leave one of them out", r.what, m.value.text)
		}
		return
	case "http", "streamable-http", "streamablehttp", "streamable_http":
		r.server.Remote.Transport = "http"
	case "sse":
		r.server.Remote.Transport = "sse"
	case "remote":
	default:
		r.fail(m.value.at, "%s: unknown type %q: choose \"stdio\", \"http\" or \"sse\"", r.what, m.value.text)
		return
	}
	if !r.isRemote() {
		r.said = append(r.said, "command")
		r.fail(m.at, "%s: type %q needs a url", r.what, m.value.text)
	}
}

// remoteSettings reads x-dormouse.remote.
func (r *serverReader) remoteSettings(m member) {
	if !r.want(m.value, object, r.what+": remote") {
		return
	}
	r.fields(m.value, r.what+": x-dormouse.remote", map[string]field{
		"private": func(r *serverReader, m member) {
			if m.value.shape != boolean {
				r.fail(m.value.at, "%s: remote.private must be true or false", r.what)
				return
			}
			r.server.Remote.Private = m.value.on
		},
	})
	if !r.isRemote() {
		r.fail(m.at, "%s: remote is for a server with a url", r.what)
	}
}

// remote returns a server that another party hosts. Dormouse starts nothing, so there is
// no box. It asks the server for its lists each time, so there is no handshake record.
func (r *serverReader) remote() Server {
	for _, key := range []string{"command", "args", "env", "cwd"} {
		m, ok := r.key.value.get(key)
		if ok && m.value.shape != null && (key == "command" || len(m.value.members)+len(m.value.items) > 0) {
			r.fail(m.at, "%s: %s is for a server that is started: leave it out beside the url", r.what, key)
		}
	}
	ours, _ := r.key.value.get("x-dormouse") // an empty node if there is none
	for _, key := range []string{"box", "idle_seconds"} {
		if m, ok := ours.value.get(key); ok && m.value.shape != null {
			r.fail(m.at, "%s: %s is for a server in a box: leave it out beside the url", r.what, key)
		}
	}
	if !r.times["startup_timeout_sec"] {
		r.server.StartupTimeout = DefaultRemoteStartup
	}
	r.server.Record, r.server.OwnLists, r.server.SameLists = false, false, false
	r.server.Digest = r.server.digest()
	return r.server
}
