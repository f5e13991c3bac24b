package serversfile

import (
	"net/url"
	"slices"
	"strings"
)

// Remote is a server that another party hosts. URL and Headers may hold secrets.
type Remote struct {
	URL     string            `json:"url"`               // "" for a server that is not remote
	Headers map[string]string `json:"headers,omitempty"` // on each request; may hold ${principal:NAME}
	// Commands has the shell commands whose output is the value of a header, by header. See
	// Server.Commands.
	Commands map[string]string `json:"commands,omitempty"`
	// Transport is "http" for Streamable HTTP, "sse" for HTTP+SSE, and "" if Dormouse is to
	// find it out.
	Transport string `json:"transport,omitempty"`
	// Private permits addresses that are not public (x-dormouse.remote.private).
	Private bool `json:"private,omitempty"`
}

// InPlace reports whether the server is native or remote. It then has no box: the Lambda function,
// or dormouse run, executes its messages itself.
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

func (r *serverReader) url(m member, _ string) {
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

// headers reads the headers for a remote server. Two keys of Codex name variables: env_http_headers
// has one for each header, and bearer_token_env_var the one with the bearer token.
func (r *serverReader) headers(m member, what string) {
	if m.name == "bearer_token_env_var" {
		if r.want(m.value, text, what) {
			r.header(member{"Authorization", m.at, node{shape: text, at: m.value.at, text: "Bearer ${" + m.value.text + "}"}})
		}
		return
	}
	if !r.want(m.value, object, what) {
		return
	}
	r.each(m.value, func(h member) {
		if m.name == "env_http_headers" {
			if !r.want(h.value, text, what) {
				return
			}
			h.value.text = "${" + h.value.text + "}"
		}
		r.header(h)
	})
}

func (r *serverReader) header(h member) {
	if h.name == "" || strings.ContainsFunc(h.name, func(c rune) bool { return c <= ' ' || c > '~' || strings.ContainsRune(`()<>@,;:\"/[]?={}`, c) }) {
		r.fail(h.at, "%s: headers: %q cannot be the name of a header", r.what, h.name)
		return
	}
	if r.server.Remote.Headers == nil {
		r.server.Remote.Headers = map[string]string{}
	}
	if h.value.shape == null {
		return // null counts as no header
	}
	if command, ok := r.command(h.value, "header "+h.name); ok {
		put(&r.server.Remote.Commands, h.name, command)
		return
	}
	value := r.textWith(scalar(h.value), "header "+h.name, variables{getenv: r.getenv, principals: true})
	switch {
	case strings.ContainsAny(value, "\r\n\x00"):
		r.fail(h.value.at, "%s: header %s: a line break cannot be in the value of a header", r.what, h.name)
	case strings.Contains(value, "${"+principalFileKind+":"):
		r.fail(h.value.at, "%s: header %s: a remote server reads no file: write ${%s:…}", r.what, h.name, principalKind)
	case slices.ContainsFunc(strings.Fields(value), func(part string) bool { _, _, named := Reference(part); return named }):
		r.fail(h.value.at, "%s: header %s: only env can name a secret of AWS: write the value, or ${%s:…}", r.what, h.name, principalKind)
	default:
		r.server.Remote.Headers[h.name] = value
	}
}

func (r *serverReader) transport(m member, what string, remote bool) {
	if !r.want(m.value, text, what) {
		return
	}
	switch strings.ToLower(m.value.text) {
	case "stdio", "local":
		if remote {
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
	if !remote {
		r.excused = true
		r.fail(m.at, "%s: type %q needs a url", r.what, m.value.text)
	}
}
