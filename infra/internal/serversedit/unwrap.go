package serversedit

import (
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/box/provision"
)

// Unwrap removes a program that only starts the server: the Windows shell (cmd /c), or mcp-remote,
// which connects to a remote server. The result direct is true if mcp-remote was removed, because
// Dormouse itself connects to remote servers. Options of mcp-remote without an equivalent are added
// to e.Ignored.
func (e *Entry) Unwrap() (direct bool) {
	if name := strings.ToLower(e.Command); name == "cmd" || name == "cmd.exe" {
		args := e.Args
		for len(args) > 0 && strings.HasPrefix(args[0], "/") {
			args = args[1:]
		}
		if len(args) == 1 {
			args = strings.Fields(args[0])
		}
		if len(args) > 0 {
			e.Command, e.Args = args[0], args[1:]
		}
	}
	args := e.Args
	if p, ok := provision.PackageOf(e.Command, e.Args); ok && p.Name == "mcp-remote" {
		args = p.Args
	} else if filepath.Base(e.Command) != "mcp-remote" {
		return false
	}
	if len(args) == 0 || !strings.HasPrefix(args[0], "https://") && !strings.HasPrefix(args[0], "http://") {
		return false
	}
	remote := Entry{URL: args[0], Disabled: e.Disabled, Enabled: e.Enabled, Ours: e.Ours, Ignored: e.Ignored}
	var denied []string
	for args = args[1:]; len(args) > 0; {
		option, value, joined := strings.Cut(args[0], "=")
		args = args[1:]
		alone := slices.Contains([]string{"--allow-http", "--debug", "--silent", "--enable-proxy"}, option) || !strings.HasPrefix(option, "-") // a word without a dash is the port for mcp-remote's own sign-in
		if alone {
			continue
		}
		if !joined && len(args) > 0 {
			value, args = args[0], args[1:]
		}
		switch option {
		case "--header":
			name, text, _ := strings.Cut(value, ":")
			remote.Headers = append(remote.Headers, Variable{Name: strings.TrimSpace(name), Value: e.filled(strings.TrimSpace(text))})
		case "--transport":
			if value == "sse-only" {
				remote.Type = "sse"
			}
		case "--ignore-tool":
			denied = append(denied, value)
		case "--host", "--auth-timeout": // these have no effect without mcp-remote's own sign-in
		default:
			remote.Ignored = append(remote.Ignored, option)
		}
	}
	if denied != nil {
		remote.SetOurs("tools", map[string]any{"deny": denied})
	}
	if private(remote.URL) {
		remote.SetOurs("remote", map[string]any{"private": true})
	}
	*e = remote
	return true
}

// filled replaces variables in a text by their values in e.Env.
func (e *Entry) filled(text string) string {
	for _, v := range e.Env {
		text = strings.ReplaceAll(text, "${"+v.Name+"}", v.Value)
	}
	return text
}

// private reports whether the host of a URL is this machine, or an address in a private network.
func private(of string) bool {
	u, err := url.Parse(of)
	if err != nil {
		return false
	}
	if at, err := netip.ParseAddr(u.Hostname()); err == nil {
		return at.IsLoopback() || at.IsPrivate()
	}
	return u.Hostname() == "localhost"
}
