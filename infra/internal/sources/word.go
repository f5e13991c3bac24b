package sources

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/infra/internal/serversedit"
	"github.com/dormouse-mcp/dormouse/shared/box/provision"
)

// Kind is the kind of source that a word stands for.
type Kind int

// Kinds of sources.
const (
	None       Kind = iota // no source; perhaps a name in the MCP registry
	Command                // a program, a script, a package or an image
	Remote                 // the URL of a remote server
	Repository             // a git repository
	File                   // a file with a bundle
	Published              // a server.json
	Folder                 // a folder with a project
)

// Source is where a server comes from. On a command line it is one word.
type Source struct {
	Kind    Kind
	Name    string   // guessed, and valid as the name of a server; "" if the source itself has one
	Command []string // for Command: program and arguments
	Image   bool     // the last word of Command is a container image
	At      string   // URL or absolute path; "" for Command
	Ref     string   // for Repository: branch, tag or commit; "" for the newest
	Below   string   // for Repository: folder in it; "" for the root
}

// IsURL reports whether At is a URL and not a path.
func (s Source) IsURL() bool { return strings.Contains(s.At, "://") }

// Of finds out what a word stands for. It returns an error for an unknown scheme, and for a path
// that does not exist.
func Of(word string) (Source, error) {
	scheme, rest, ok := strings.Cut(word, "://")
	if !ok {
		return local(word)
	}
	switch scheme {
	case "npx", "npm":
		return command("npx", "-y", rest), nil
	case "uvx", "pypi":
		return command("uvx", rest), nil
	case "docker", "oci":
		return image(rest), nil
	case "go":
		if strings.HasPrefix(rest, ".") || strings.HasPrefix(rest, "/") {
			return local(rest)
		}
		if !strings.Contains(rest, "@") {
			rest += "@latest"
		}
		return command("go", "run", rest), nil
	case "file":
		return local(rest)
	case "ssh", "git", "git+https", "git+http", "git+ssh", "git+file":
		return repository(word), nil
	case "https", "http":
		return web(word), nil
	}
	return Source{}, fmt.Errorf("%s:// is none of npx, uvx, docker, go, git, file, https", scheme)
}

func command(words ...string) Source {
	return Source{Kind: Command, Name: NameOf(words), Command: words}
}

func image(name string) Source {
	s := command("docker", "run", "-i", "--rm", name)
	s.Image = true
	return s
}

// local finds out what a word without a scheme stands for: a file or folder on this machine, a git
// address, an npm package with a scope, or a container image.
func local(word string) (Source, error) {
	if regexp.MustCompile(`^[\w.-]+@[\w.-]+:\S`).MatchString(word) { // such as git@host:path
		return repository(word), nil
	}
	at := word
	if home, err := os.UserHomeDir(); err == nil && (word == "~" || strings.HasPrefix(word, "~/")) {
		at = home + word[1:]
	}
	at, err := filepath.Abs(at)
	if err != nil {
		return Source{}, err
	}
	isPath := strings.HasPrefix(word, ".") || strings.HasPrefix(word, "/") || strings.HasPrefix(word, "~")
	info, err := os.Stat(at)
	ext := strings.ToLower(filepath.Ext(word))
	folder := strings.TrimSuffix(word, filepath.Base(word)) // with @ or a dot, perhaps a package or a name of the registry
	switch {
	case err == nil && info.IsDir():
		if isPath || strings.Contains(word, "/") || isProject(at) {
			return Source{Kind: Folder, At: at}, nil
		}
	case isBundle(ext) && err == nil:
		return Source{Kind: File, At: at}, nil
	case ext == ".json" && err == nil:
		return Source{Kind: Published, At: at}, nil
	case err == nil && interpreter(ext) != "":
		return command(interpreter(ext), word), nil
	case err == nil && strings.Contains(word, "/"):
		return command(word), nil
	case isPath || isBundle(ext) || (ext == ".json" || interpreter(ext) != "") && !strings.ContainsAny(folder, "@."):
		return Source{}, fmt.Errorf("there is no %s", at)
	}
	if strings.HasPrefix(word, "@") && provisionable(word) {
		return command("npx", "-y", word), nil
	}
	if isImage(word) {
		return image(word), nil
	}
	return Source{}, nil
}

func isBundle(ext string) bool { return ext == ".mcpb" || ext == ".dxt" }

// interpreter returns the program that runs scripts with this file extension, or "".
func interpreter(ext string) string {
	switch ext {
	case ".py":
		return "python3"
	case ".js", ".mjs", ".cjs", ".ts":
		return "node"
	}
	return ""
}

func provisionable(word string) bool {
	_, ok := provision.PackageOf("npx", []string{word})
	return ok
}

// isImage reports whether a word can only be a container image. It returns false for a name with one
// slash and a dot before it, which may also be that of a server in the MCP registry.
func isImage(word string) bool {
	if !regexp.MustCompile(`^[a-z0-9][a-z0-9._-]*(:[0-9]+)?(/[a-z0-9][a-z0-9._-]*)*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?(@sha256:[0-9a-f]{64})?$`).MatchString(word) {
		return false
	}
	first, rest, parts := strings.Cut(word, "/")
	return strings.Contains(word, ":") || strings.Contains(rest, "/") || parts && !strings.Contains(first, ".")
}

// web finds out what an http or https URL stands for.
func web(word string) Source {
	u, err := url.Parse(word)
	if err != nil {
		return Source{Kind: Remote, At: word}
	}
	parts := strings.Split(strings.Trim(u.Path, "/"), "/")
	forge := slices.Contains([]string{"github.com", "gitlab.com", "codeberg.org", "bitbucket.org"}, u.Hostname())
	switch {
	case isBundle(strings.ToLower(path.Ext(u.Path))):
		return Source{Kind: File, At: word}
	case path.Base(u.Path) == "server.json":
		return Source{Kind: Published, At: word}
	case strings.HasSuffix(u.Path, ".git") || forge && len(parts) >= 2:
		return repository(word)
	}
	return Source{Kind: Remote, At: word, Name: nameOfHost(u.Hostname())}
}

// repository parses the address of a git repository. It may end with #REF, or be the URL of a
// folder on a forge: /OWNER/NAME/tree/REF/FOLDER.
func repository(word string) Source {
	s := Source{Kind: Repository}
	s.At, s.Ref, _ = strings.Cut(strings.TrimPrefix(word, "git+"), "#")
	if m := regexp.MustCompile(`^(https?://[^/]+/[^/]+/[^/]+)/(?:-/)?tree/([^/]+)(?:/(.*))?$`).FindStringSubmatch(s.At); m != nil {
		s.At, s.Ref, s.Below = m[1], m[2], strings.Trim(m[3], "/")
	}
	last := s.At
	if s.Below != "" {
		last = s.Below
	}
	s.Name = short(strings.TrimSuffix(path.Base(strings.ReplaceAll(last, ":", "/")), ".git"))
	return s
}

// nameOfHost returns the part of a host name that best names the service.
func nameOfHost(host string) string {
	if net.ParseIP(host) != nil {
		return "remote"
	}
	labels := strings.Split(host, ".")
	if len(labels) > 1 {
		labels = labels[:len(labels)-1]
	}
	for len(labels) > 1 && slices.Contains([]string{"www", "api", "mcp"}, labels[0]) {
		labels = labels[1:]
	}
	return serversedit.ValidName(labels[0])
}

// programs are typical first words of commands. None of them is a likely name of a server.
var programs = []string{"npx", "uvx", "uv", "pipx", "node", "bun", "bunx", "deno", "python", "python3", "docker", "podman", "go", "java"}

// IsProgram reports whether a word is a typical first word of a command.
func IsProgram(word string) bool { return slices.Contains(programs, word) }

// NameOf guesses the name of a server from its command.
func NameOf(words []string) string {
	if p, ok := provision.PackageOf(words[0], words[1:]); ok {
		return short(p.Name)
	}
	at := words[0]
	for rest := words[1:]; len(rest) > 0; rest = rest[1:] {
		word := rest[0]
		if strings.HasPrefix(word, "-") {
			if takesValue(word) && len(rest) > 1 {
				rest = rest[1:]
			}
			continue
		}
		if !slices.Contains([]string{"run", "tool", "exec"}, word) {
			at = word
			break
		}
	}
	at, _, _ = strings.Cut(at, "@")
	base := path.Base(at)
	base, _, _ = strings.Cut(base, ":")
	if ext := path.Ext(base); interpreter(ext) != "" {
		base = strings.TrimSuffix(base, ext)
	}
	for slices.Contains([]string{"index", "main", "server", "app", "dist", "build", "src", "bin", "."}, base) && path.Dir(at) != at {
		at = path.Dir(at)
		if at == "." || at == "/" {
			break
		}
		base = path.Base(at)
	}
	return short(base)
}

// takesValue reports whether the argument after an option is probably its value.
func takesValue(option string) bool {
	if len(option) == 2 {
		return slices.Contains([]string{"-e", "-v", "-p", "-r", "-C"}, option)
	}
	return strings.HasPrefix(option, "--") && !strings.Contains(option, "=") &&
		!slices.Contains([]string{"--rm", "--init", "--interactive", "--tty", "--privileged", "--yes", "--quiet", "--no-project"}, option)
}

// short returns a valid name for a server, without common parts such as "mcp-".
func short(name string) string {
	name = name[strings.LastIndexByte(name, '/')+1:]
	for _, part := range []string{"mcp-server-", "server-", "mcp-"} {
		if rest, ok := strings.CutPrefix(name, part); ok && rest != "" {
			name = rest
			break
		}
	}
	for _, part := range []string{"-mcp-server", "-mcp", "-server", ".mcp", "_mcp"} {
		if rest, ok := strings.CutSuffix(name, part); ok && rest != "" {
			name = rest
			break
		}
	}
	return serversedit.ValidName(name)
}
