package dormouse

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// cliPage is the reference of the command line.
const cliPage = "../../docs/cli.md"

// reference is the page while it is written.
type reference struct {
	strings.Builder
	seen map[string]int // how many commands have a flag with these words
}

// sharedBy is how many commands must have a flag for the page to explain it only once.
const sharedBy = 3

// leaves returns the commands that can be executed, by name.
func leaves(n *kong.Node) (all []*kong.Node) {
	if n.Hidden {
		return nil
	}
	if len(n.Children) == 0 {
		return []*kong.Node{n}
	}
	for _, child := range n.Children {
		all = append(all, leaves(child)...)
	}
	slices.SortFunc(all, func(x, y *kong.Node) int { return cmp.Compare(x.FullPath(), y.FullPath()) })
	return all
}

// flags returns the flags of a command that people may use.
func flags(n *kong.Node) (all []*kong.Flag) {
	for _, f := range n.Flags {
		if !f.Hidden && f.Name != "help" {
			all = append(all, f)
		}
	}
	return all
}

// flagRow explains a flag in an item of a list.
func flagRow(f *kong.Flag) string {
	name := "`--" + f.Name + "`"
	if f.Short != 0 {
		name = fmt.Sprintf("`-%c`, %s", f.Short, name)
	}
	if !f.IsBool() {
		name = strings.TrimSuffix(name, "`") + " " + cmp.Or(f.PlaceHolder, strings.ToUpper(f.Name)) + "`"
	}
	standard := ""
	if f.HasDefault && f.Default != "" && f.Default != "false" {
		standard = fmt.Sprintf(" Default: `%s`.", f.Default)
	}
	return fmt.Sprintf("- %s: %s%s\n", name, f.Help, standard)
}

func (r *reference) command(n *kong.Node) {
	_, _ = fmt.Fprintf(r, "\n## %s\n\n", n.FullPath())
	r.WriteString(cmp.Or(n.Help, n.Parent.Help) + "\n")
	rows, also := "", []string{}
	for _, a := range n.Positional {
		rows += fmt.Sprintf("- `%s`: %s\n", a.Summary(), a.Help)
	}
	for _, f := range flags(n) {
		if row := flagRow(f); r.seen[row] >= sharedBy {
			also = append(also, "`--"+f.Name+"`")
		} else {
			rows += row
		}
	}
	if rows != "" {
		r.WriteString("\n" + rows)
	}
	if len(also) > 0 {
		r.WriteString("\nAlso: " + strings.Join(also, ", ") + ".\n")
	}
}

// The page has what --help prints: both come from the same model.
func TestTheCLIPageHasEveryCommandAndFlag(t *testing.T) {
	var c commands
	parser, err := kong.New(&c, kong.Name("dormouse"), kong.Vars{"version": "", "platform": "of this machine"})
	commontest.OK(t, err)
	b := reference{seen: map[string]int{}}
	all := leaves(parser.Model.Node)
	var common []string
	explained := map[string]bool{}
	for _, n := range all {
		for _, f := range flags(n) {
			row := flagRow(f)
			if b.seen[row] == sharedBy-1 {
				if !explained[f.Name] { // --data has two forms, which say the same
					common = append(common, row)
				}
				explained[f.Name] = true
			}
			b.seen[row]++
		}
	}
	b.WriteString("# Commands\n\nEach command with its flags, as `--help` prints them. [Operations](operations.md) shows the commands in use, and has the exit codes.\n")
	b.WriteString("\n<!-- go test ./infra/dormouse -run TestTheCLIPage -update writes this page -->\n")
	b.WriteString("\n## Flags of many commands\n\n" + strings.Join(common, ""))
	for _, n := range all {
		b.command(n)
	}
	compare(t, cliPage, b.String())
}
