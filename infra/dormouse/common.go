package dormouse

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
)

const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2 // the command line is invalid, and nothing was done
	exitNotUp  = 3 // no dormouse run uses the data folder, or --url does not answer
	exitTool   = 4 // the tool was called and its result has isError
)

// failure is an error with an exit code. A failure whose error is nil prints nothing.
type failure struct {
	code int
	error
}

// Unwrap returns the wrapped error.
func (f failure) Unwrap() error { return f.error }

// notUp returns the error of a command that needs dormouse run to be up. The error lists the
// dormouse runs of this user with other data folders.
func notUp(ctx context.Context, data string) error {
	how := "name its folder with --data, or another machine with --url"
	if all := allUp(ctx); len(all) > 0 {
		how = "name one that is up:" + listed(all)
	}
	return failure{exitNotUp, fmt.Errorf("dormouse run is not up with %s: start it, or %s", data, how)}
}

type (
	fileFlag struct {
		Servers string `default:"servers.json" type:"path" help:"The servers file."`
	}
	dataFlag struct {
		Data string `default:".dormouse" env:"DORMOUSE_DATA" type:"path" help:"The data folder of dormouse run."`
	}
	storeFlag struct {
		Store string `placeholder:"STORE" help:"The store of sessions, by default in the data folder: sqlite:PATH, or dynamodb:TABLE[?endpoint=URL&region=NAME]. One dormouse run at a time uses it. Start none on the table of a stack: it would end the calls of the stack."`
	}
	urlFlag struct {
		URL string `name:"url" env:"DORMOUSE_URL" placeholder:"URL" help:"The endpoint of another machine or of a stack, instead of a data folder."`
	}
	serverFlag struct {
		Server string `placeholder:"NAME" help:"Only those of this server."`
	}
	principalFlag struct {
		Principal string `placeholder:"WHO" help:"Only those of this principal."`
	}
	tenantFlag struct {
		Tenant string `placeholder:"TENANT" help:"Only those of this tenant."`
	}
	sinceFlag struct {
		Since string `placeholder:"TIME" help:"Only this last time, such as 90m or 7d (calls: 24h; bill: whole days)."`
	}
	mostFlag struct {
		Most int `short:"n" help:"No more rows than this (calls: 50, with --bodies at most 1,000; bill: 20)."`
	}
)

// target selects the machine or stack that a command is about. Data has precedence over URL,
// because URL may come from the environment.
type target struct {
	Data string `type:"path" placeholder:"DIR" help:"The data folder of dormouse run, by default .dormouse."`
	urlFlag
	Key  string    `env:"DORMOUSE_KEY" placeholder:"KEY" help:"API key for --url."`
	says io.Writer // gets the name of a machine that the user has not named; nil for nobody
}

// AfterApply is called by kong.
func (t *target) AfterApply(by *terminal) error {
	t.says = by.err
	return nil
}

// defaultData is the data folder of commands without --data and --url. The environment variable
// dataEnv may name another one; a container image sets it.
const (
	defaultData = ".dormouse"
	dataEnv     = "DORMOUSE_DATA"
)

// remote reports whether the target is an endpoint at a URL and not a data folder.
func (t target) remote() bool { return t.Data == "" && t.URL != "" }

// address returns the base URL of an endpoint. It also accepts a URL for clients, such as
// https://HOST/NAME/mcp, because people paste those.
func address(of string) string {
	return strings.TrimSuffix(clientPath.ReplaceAllString(of, "$1"), "/")
}

// clientPath matches the URL of a server, of a group, or of all servers. The base URL of a stack
// without a domain has a path itself: the stage of its API.
var clientPath = regexp.MustCompile(`^(https?://(?:[^/]+\.execute-api\.[^/]+/[^/]+|[^/]+))(?:/g)?(?:/[^/]+)?/(?:mcp|sse)/?$`)

// folder returns the data folder of a target that is not remote.
func (t target) folder() string { return cmp.Or(t.Data, os.Getenv(dataEnv), defaultData) }

// printing has the flag of all commands that print a result.
type printing struct {
	JSON bool `help:"Print JSON."`
}

func (p printing) show(t *terminal, v any, text func() error) error {
	if p.JSON {
		return t.printJSON(v)
	}
	return text()
}

// table prints lines with columns. The function rows must call say once for each line, with tabs
// between columns. A text argument of say never breaks out of its cell. If the table is wider than
// the terminal, each row takes several lines.
func table(out io.Writer, rows func(say func(format string, args ...any))) error {
	var cells, text bytes.Buffer
	rows(func(format string, args ...any) {
		for i := range args {
			args[i] = inCell(args[i])
		}
		_, _ = fmt.Fprintf(&cells, format, args...) // writing to a buffer cannot fail
	})
	w := tabwriter.NewWriter(&text, 0, 4, 2, ' ', 0)
	_, _ = w.Write(cells.Bytes()) // Flush returns the error
	if err := w.Flush(); err != nil {
		return err
	}
	if width := (says{}).display(out, os.Getenv).Width; width != nil && slices.ContainsFunc(strings.Split(text.String(), "\n"), func(line string) bool { return utf8.RuneCountInString(line) > width() }) {
		text.Reset()
		text.WriteString(folded(cells.String(), width()))
	}
	if c, ok := out.(cleaned); ok && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" {
		_, err := colored(c).Write(tinted(text.Bytes()))
		return err
	}
	_, err := out.Write(text.Bytes())
	return err
}

// folded formats tables in lines of at most width characters. Each line in cells is a row whose
// cells are separated by tabs; a line without a tab is text between tables. A column that does not
// fit beside the previous ones begins another line in each row.
func folded(cells string, width int) string {
	var out strings.Builder
	var widths, words []int // widths of the longest cell, and of the longest word, by column
	rows := strings.Split(strings.TrimSuffix(cells, "\n"), "\n")
	for n, row := range rows {
		if n == 0 || !strings.Contains(rows[n-1], "\t") { // this row may be the first one of a table
			widths, words = nil, nil
			for _, row := range rows[n:] {
				all := strings.Split(row, "\t")
				if len(all) == 1 {
					break
				}
				for i, cell := range all {
					widths, words = append(widths, 0)[:max(i+1, len(widths))], append(words, 0)[:max(i+1, len(words))]
					widths[i] = max(widths[i], utf8.RuneCountInString(cell))
					for word := range strings.FieldsSeq(cell) {
						words[i] = max(words[i], utf8.RuneCountInString(word))
					}
				}
			}
		}
		line, at := "", 0 // at is the position of the next column
		fold := func(to int) {
			out.WriteString(strings.TrimRight(line, " ") + "\n")
			line, at = "", to
		}
		for i, cell := range strings.Split(strings.TrimRight(row, "\t"), "\t") {
			breaks := i == len(widths)-1 && width-at >= leastWidth && words[i] <= width-at
			if i > 0 && at+widths[i] > width && !breaks {
				fold(len(indent))
			}
			for _, word := range strings.SplitAfter(cell, " ") {
				if n := utf8.RuneCountInString(line); n > at && n+utf8.RuneCountInString(strings.TrimRight(word, " ")) > width {
					fold(at)
				}
				line += strings.Repeat(" ", max(0, at-utf8.RuneCountInString(line))) + word
			}
			if i < len(widths) {
				at += widths[i] + 2
			}
		}
		fold(0)
	}
	return out.String()
}

// leastWidth is the smallest width at which the texts of the last column are broken into lines.
const leastWidth = 30

// indent begins each further line of a folded row.
const indent = "    "

// tinted colors the cells of a table that are a state, such as "failed", or a mark, such as ✓.
func tinted(table []byte) []byte {
	for _, t := range tints {
		table = t.cell.ReplaceAll(table, []byte("${1}\x1b["+t.color+"m${2}\x1b[0m"))
	}
	return table
}

// tints has the color for each state and mark, as a parameter of SGR (ECMA-48).
var tints = []struct {
	cell  *regexp.Regexp
	color string
}{
	{regexp.MustCompile(`(?m)(^|  )(failed(?: last time)?|not served|program missing|failed: [^\n]*|✗)`), "31"},
	{regexp.MustCompile(`(?m)(^|  )(awake(?: ×\d+)?|✓)`), "32"},
	{regexp.MustCompile(`(?m)(^|  )(never started|starting|not running|refused: [^\n]*)`), "33"},
}

// namesIn returns the names of all servers in a file, including rejected ones.
func namesIn(file *serversfile.File) []string {
	names := file.Names()
	for _, r := range file.Rejected() {
		names = append(names, r.Name)
	}
	return names
}

// choose returns the element of all that has the given name. The argument what is the kind of
// element, for the text of the error.
func choose[T any](what, name string, all []T, nameOf func(T) string) (one T, err error) {
	var names []string
	for _, x := range all {
		if nameOf(x) == name {
			return x, nil
		}
		names = append(names, nameOf(x))
	}
	return one, unknown(what, name, names)
}

// unknown returns the error for a name that does not exist. The argument what is the kind of thing,
// such as "server". The error proposes similar ones of the existing names.
func unknown(what, name string, names []string) error {
	return fmt.Errorf("no %s %s: %s", what, name, serversfile.Instead(name, names))
}
