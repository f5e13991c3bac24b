package dormouse

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/dormouse-mcp/dormouse/shared/config/clientfile"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
)

type completionCommand struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// scripts make the shell call dormouse complete with the words of the command line up to the
// cursor. The last word is to be completed, and may be empty.
var scripts = map[string]string{
	"bash": `# dormouse completes its commands, flags and servers: source <(dormouse completion bash)
_dormouse() {
	local word
	COMPREPLY=()
	while IFS= read -r word; do
		COMPREPLY+=("$word")
	done < <("${COMP_WORDS[0]}" complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -F _dormouse dormouse
`,
	"zsh": `#compdef dormouse
# dormouse completes its commands, flags and servers: source <(dormouse completion zsh)
_dormouse() {
	local -a found
	found=("${(@f)$("${words[1]}" complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
	compadd -- $found || _files
}
compdef _dormouse dormouse
`,
	"fish": `# dormouse completes its commands, flags and servers: dormouse completion fish | source
complete -c dormouse -a '(dormouse complete -- (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)'
`,
}

// Run prints the script for a shell.
func (c *completionCommand) Run(t *terminal) error {
	_, err := io.WriteString(t.out, scripts[c.Shell])
	return err
}

type completeCommand struct {
	Words []string `arg:"" optional:"" passthrough:""`
}

// Run prints the possible completions of the last word, one a line.
func (c *completeCommand) Run(t *terminal, parser *kong.Kong) error {
	words := c.Words
	if len(words) > 0 && words[0] == "--" {
		words = words[1:]
	}
	if len(words) == 0 {
		words = []string{""}
	}
	last := strings.TrimPrefix(words[len(words)-1], "=") // bash splits --flag=value into three words
	node, args, flag := follow(parser.Model.Node, words[:len(words)-1])
	for _, choice := range choices(node, args, flag, last, serversIn(words)) {
		if strings.HasPrefix(choice, last) {
			if _, err := fmt.Fprintln(t.out, choice); err != nil {
				return err
			}
		}
	}
	return nil
}

// follow finds the command that the words of a command line lead to. The result args is how many
// arguments it has so far. The result flag is the one whose value comes next, or nil.
func follow(node *kong.Node, words []string) (last *kong.Node, args int, flag *kong.Flag) {
	for _, word := range words {
		switch {
		case word == "=":
		case flag != nil:
			flag = nil
		case strings.HasPrefix(word, "-"):
			if f := flagOf(node, word); f != nil && !f.IsBool() && !strings.Contains(word, "=") {
				flag = f
			}
		default:
			i := slices.IndexFunc(node.Children, func(n *kong.Node) bool { return n.Name == word })
			if i < 0 {
				args++
				continue
			}
			node, args = node.Children[i], 0
		}
	}
	return node, args, flag
}

func flagOf(node *kong.Node, word string) *kong.Flag {
	name, _, _ := strings.Cut(word, "=")
	for _, group := range node.AllFlags(false) {
		for _, f := range group {
			if name == "--"+f.Name || f.Short != 0 && name == "-"+string(f.Short) {
				return f
			}
		}
	}
	return nil
}

// choices returns the possible next words of a command line, in the order in which to show them. If
// there are none, the shell proposes files.
func choices(node *kong.Node, args int, flag *kong.Flag, last string, servers []string) (all []string) {
	switch {
	case flag != nil:
		return valuesFor(flag.Value, servers)
	case strings.HasPrefix(last, "-"):
		for _, group := range node.AllFlags(true) {
			for _, f := range group {
				all = append(all, "--"+f.Name)
			}
		}
	case len(node.Children) > 0:
		for _, n := range node.Children {
			if !n.Hidden {
				all = append(all, n.Name)
			}
		}
	case len(node.Positional) > 0:
		p := node.Positional[min(args, len(node.Positional)-1)]
		if args < len(node.Positional) || p.IsCumulative() {
			return valuesFor(p, servers)
		}
	}
	slices.Sort(all)
	return all
}

// valuesFor returns the possible values of an argument or flag, or nil if they are unknown.
func valuesFor(v *kong.Value, servers []string) []string {
	switch v.Name {
	case "server", "server|session":
		return servers
	case "name": // a list of names means existing servers, as in remove; a single one is a new name, as in add
		if v.IsCumulative() {
			return servers
		}
	case "client", "from":
		var names []string
		for _, c := range clientfile.Clients() {
			if v.Name == "client" || len(c.Imports) > 0 {
				names = append(names, c.Name)
			}
		}
		return names
	}
	if v.Enum == "" {
		return nil
	}
	return slices.DeleteFunc(strings.Split(v.Enum, ","), func(s string) bool { return s == "" })
}

// plainName matches a name that needs no quotes in a shell.
var plainName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// serversIn returns the names of all servers in the servers file that a command line refers to.
func serversIn(words []string) []string {
	file := ""
	for i, word := range words {
		if value, ok := strings.CutPrefix(word, "--servers="); ok {
			file = value
		} else if word == "--servers" && i+1 < len(words) {
			file = words[i+1]
		}
	}
	c, _, err := serversfile.LoadHere(filepath.Clean(cmp.Or(file, "servers.json")), os.LookupEnv)
	if err != nil {
		return nil
	}
	names := namesIn(c)
	slices.Sort(names)
	return slices.DeleteFunc(names, func(name string) bool { return !plainName.MatchString(name) })
}
