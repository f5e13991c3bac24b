package shared_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
)

// errorPages are the pages that explain errors by the text that people see.
const errorPages = "docs/errors"

// fewestLetters is how many letters a text must have outside of its verbs. A text with
// fewer only wraps another text.
const fewestLetters = 6

// speakers are the packages whose errors people see: clients, users in a browser, and whoever
// types a command or reads the terminal. Errors of the other packages go to a log, or pass
// through one of these. The value names the codes, functions and files whose errors are not
// for people either.
func speakers() map[string][]string {
	return map[string][]string{
		"functions/wiring":               nil,
		"functions/wiring/authorization": nil,
		"functions/wiring/endpoints":     nil,
		"infra/dormouse":                 {"bad"}, // dormouse doctor, which has the fix beside each
		"infra/internal/clientfile":      nil,
		"infra/internal/jsonedit":        nil,
		"infra/internal/serversedit":     nil,
		"infra/local":                    nil,
		"infra/local/backup":             nil,
		"infra/local/certs":              nil,
		"infra/local/datafolder":         nil,
		"shared/mcp/aggregate":           nil,
		"shared/operate/api":             nil,
		"shared/access/apikey":           nil,
		"shared/box":                     {"keep.go"},            // of workspaces, whose errors go to the log
		"shared/box/provision":           {"bake.go", "kept.go"}, // dormouse image, whose line goes on without
		"shared/box/sandbox":             {"Errorf", "New"},      // of the program that confines itself
		"shared/mcp/bridge":              nil,
		"shared/access/authserver":       nil,
		"shared/config/serversfile":      {"accepted.go", "server.go"}, // of copies that our own programs wrote
		"shared/operate/console":         nil,
		"shared/endpoint/transport":      nil,
		"shared/mcp/sessions":            {"redelivery.go"}, // one function to the next
		"shared/backend/native":          nil,
		"shared/access/resourceserver":   nil,
		"shared/config/override":         nil,
		"shared/access/quota":            nil,
		"shared/backend/relayserver":     {"Invalid", "Unauthenticated", "Closed", "bad", "poster.go"}, // of runners and gateways
		"shared/backend/remote":          nil,
		"shared/store/sqlitestore":       {"NotFound", "Conflict", "TooLarge", "wait.go", "look.go"}, // for the host
		"shared/access/credentials":      nil,
	}
}

// makers are the functions that make an error for people out of a text.
var makers = []string{
	"Errorf", "New", "bad", "badToken", "fail", "failure", "fault", "invalid", "lacks", "need", "notAllowed", "notSignedIn",
	"refusal", "refuse", "refused", "startCause", "unable", "unavailable", "wrong",
}

var (
	verbInText    = regexp.MustCompile(`%[-+# 0]*[\d.*]*[a-zA-Z]`)
	severalDots   = regexp.MustCompile(`……+`)
	contextOfText = regexp.MustCompile(`^[^,;:]+: …$`)
	denialInText  = regexp.MustCompile(`\b(no|not|cannot|none|over|without|must)\b`)
	adviceInText  = regexp.MustCompile(`^[…\pL].*; `)
	letterInText  = regexp.MustCompile(`\pL`)
)

// literal returns the text of an expression, with … for each part that is not known before
// it runs.
func literal(e ast.Expr) string {
	switch x := e.(type) {
	case *ast.BasicLit:
		if s, err := strconv.Unquote(x.Value); err == nil && x.Kind == token.STRING {
			return s
		}
	case *ast.BinaryExpr:
		return literal(x.X) + literal(x.Y)
	case *ast.CallExpr:
		if name(x.Fun) == "Sprintf" && len(x.Args) > 0 {
			return literal(x.Args[0])
		}
	}
	return "…"
}

func name(e ast.Expr) string {
	switch x := e.(type) {
	case *ast.SelectorExpr:
		return x.Sel.Name
	case *ast.Ident:
		return x.Name
	}
	return ""
}

// filled replaces the formatting verbs in a format by ….
func filled(format string) string {
	text := verbInText.ReplaceAllString(strings.ReplaceAll(format, "%q", `"…"`), "…")
	return severalDots.ReplaceAllString(strings.ReplaceAll(text, "%%", "%"), "…")
}

// said returns the texts of errors in a source, with … for what is filled in. said leaves
// out a text that only says where another error happened.
func said(file *ast.File, without []string) (texts []string) {
	add := func(e ast.Expr) bool {
		text := filled(literal(e))
		if strings.Count(text, " ") < 2 || len(letterInText.FindAllString(text, -1)) < fewestLetters || contextOfText.MatchString(text) && !denialInText.MatchString(text) {
			return false
		}
		texts = append(texts, text)
		return true
	}
	var visit func(ast.Node) bool
	visit = func(n ast.Node) bool {
		switch x := n.(type) {
		case *ast.ValueSpec: // a text with a type of its own, which is an error
			if name(x.Type) == "missing" {
				for _, v := range x.Values {
					add(v)
				}
			}
		case *ast.ReturnStmt:
			if len(x.Results) == 1 && adviceInText.MatchString(literal(x.Results[0])) {
				add(x.Results[0])
			}
		case *ast.CompositeLit:
			if name(x.Type) == "refusal" {
				for _, element := range x.Elts {
					add(element)
				}
			}
		case *ast.KeyValueExpr:
			if key := name(x.Key); key == "Message" || key == "Detail" || key == "Reason" || key == "text" {
				add(x.Value)
			}
		case *ast.CallExpr:
			if name(x.Fun) == "Because" { // for operators
				ast.Inspect(x.Fun, visit)
				return false
			}
			maker := name(x.Fun)
			if !slices.Contains(makers, maker) || slices.Contains(without, maker) || len(x.Args) > 0 && slices.Contains(without, name(x.Args[0])) {
				return true
			}
			for _, arg := range x.Args {
				if add(arg) && maker == "lacks" { // the next one says what to do
					break
				}
			}
		}
		return true
	}
	ast.Inspect(file, visit)
	return texts
}

// heard is what spoken returns. It is found once for all tests.
var heard struct {
	errors  map[string]string
	sources []string
}

// spoken returns the texts of all speakers with the file of each, and all texts in their
// sources, which a row may quote in part.
func spoken(t *testing.T) (errors map[string]string, sources []string) {
	t.Helper()
	if heard.errors != nil {
		return heard.errors, heard.sources
	}
	const root = ".."
	errors = map[string]string{}
	for dir, without := range speakers() {
		files, err := fs.Glob(os.DirFS(root), path.Join(dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("there is no package %s (%v)", dir, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") || slices.Contains(without, path.Base(file)) {
				continue
			}
			parsed := parsedFile(t, root, file)
			for _, text := range said(parsed, without) {
				errors[text] = file
			}
			ast.Inspect(parsed, func(n ast.Node) bool {
				if e, is := n.(ast.Expr); is {
					if text := filled(literal(e)); text != "…" {
						sources = append(sources, text)
					}
				}
				return true
			})
		}
	}
	heard.errors, heard.sources = errors, sources
	return errors, sources
}

func parsedFile(t *testing.T, root, file string) *ast.File {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, filepath.FromSlash(file)), nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

// errorRow is a row of a page of errors: the texts that it explains.
type errorRow struct {
	page  string
	texts []string
}

// errorTables is the first line of each table of errors.
const errorTables = "| it says | because | do |"

// errorRows returns the rows of the tables of errors, and the rows that lack something.
func errorRows(all map[string]string) (rows []errorRow, problems []string) {
	for page, text := range all {
		if !strings.HasPrefix(page, errorPages) {
			continue
		}
		inside := false
		for line := range strings.Lines(text) {
			line = strings.TrimSpace(line)
			switch {
			case line == errorTables:
				inside = true
				continue
			case !strings.HasPrefix(line, "|"):
				inside = false
			}
			if !inside || strings.HasPrefix(line, "|---") {
				continue
			}
			row := errorRow{page: page}
			cells := strings.Split(strings.Trim(line, "|"), " | ")
			for _, span := range codeSpan.FindAllStringSubmatch(cells[0], -1) {
				row.texts = append(row.texts, span[1])
			}
			if len(cells) != 3 || len(row.texts) == 0 || strings.TrimSpace(cells[1]) == "" || strings.TrimSpace(cells[2]) == "" {
				problems = append(problems, fmt.Sprintf("%s: want a text, its cause and what to do: %s", page, line))
			}
			rows = append(rows, row)
		}
	}
	return rows, problems
}

// pattern returns an expression for the errors that a text of a row explains; … in the
// text stands for anything. The text lacks the position or the server with which an error
// may begin.
func pattern(text string) *regexp.Regexp {
	return regexp.MustCompile(`^(?s:(….*: |…)?` + strings.ReplaceAll(regexp.QuoteMeta(text), "…", ".*") + `)$`)
}

// checkErrors compares the rows with the errors of the code, in both directions.
func checkErrors(rows []errorRow, errors map[string]string, sources []string) (problems []string) {
	var fits []*regexp.Regexp
	for _, row := range rows {
		for _, text := range row.texts {
			one := pattern(text)
			fits = append(fits, one)
			part := strings.Trim(text, "…")
			there := slices.ContainsFunc(sources, func(s string) bool { return strings.Contains(s, part) })
			for said := range errors {
				there = there || one.MatchString(said)
			}
			if !there {
				problems = append(problems, fmt.Sprintf("%s: no error says %q any more", row.page, text))
			}
			if letters := len(letterInText.FindAllString(text, -1)); letters < fewestLetters {
				problems = append(problems, fmt.Sprintf("%s: %q fits too much: write more of the text", row.page, text))
			}
		}
	}
	for said, file := range errors {
		if !slices.ContainsFunc(fits, func(r *regexp.Regexp) bool { return r.MatchString(said) }) {
			problems = append(problems, fmt.Sprintf("%s: no row of %s*.md explains %q", file, errorPages, said))
		}
	}
	slices.Sort(problems)
	return problems
}

func TestEveryErrorHasItsRow(t *testing.T) {
	rows, problems := errorRows(pages(t, ".."))
	errors, sources := spoken(t)
	if len(errors) < 500 {
		t.Errorf("only %d errors were found in the code", len(errors))
	}
	report(t, append(problems, checkErrors(rows, errors, sources)...))
}

var quotedInRow = regexp.MustCompile(`(?m)^\| "([^"|]+)" \|`)

// Other pages quote errors too, as the first cell of a row.
func TestErrorsThatOtherPagesQuoteAreSaid(t *testing.T) {
	errors, sources := spoken(t)
	quotes := 0
	for page, text := range pages(t, "..") {
		for _, quote := range quotedInRow.FindAllStringSubmatch(text, -1) {
			quotes++
			if _, whole := errors[quote[1]]; !whole && !slices.ContainsFunc(sources, func(s string) bool { return strings.Contains(s, quote[1]) }) {
				t.Errorf("%s: no error says %q any more", page, quote[1])
			}
		}
	}
	if quotes == 0 {
		t.Error("no page quotes an error")
	}
}

func TestAnErrorWithoutARowIsFoundAndARowWithoutAnError(t *testing.T) {
	source := `package p
func f() {
	_ = session.Errorf(session.Busy, "the %s is full: try %q", what, "x")
	_ = fmt.Errorf("read the file: %w", err) // a place
	_ = session.Errorf(session.Conflict, "somebody else was first")
	r.fail(at, "%s: the key "+key+" is wrong: mend it")
	return
}`
	parsed, err := parser.ParseFile(token.NewFileSet(), "p.go", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	errors := map[string]string{}
	for _, text := range said(parsed, []string{"Conflict"}) {
		errors[text] = "p.go"
	}
	rows, problems := errorRows(map[string]string{errorPages + ".md": errorTables + "\n|---|---|---|\n| `the key … is wrong: mend it` | a | b |\n| `it was full once` | a | b |\n| no text | a | b |\n"})
	want := []string{
		errorPages + ".md: want a text, its cause and what to do: | no text | a | b |",
		errorPages + `.md: no error says "it was full once" any more`,
		`p.go: no row of ` + errorPages + `*.md explains "the … is full: try \"…\""`,
	}
	if diff := gocmp.Diff(want, append(problems, checkErrors(rows, errors, nil)...)); diff != "" {
		t.Error(diff)
	}
}

// codes returns the values of the constants in a file whose type is of, or whose names
// begin with of.
func codes(file *ast.File, of string) (values []string) {
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, is := n.(*ast.ValueSpec); is && len(spec.Values) == 1 && (name(spec.Type) == of || strings.HasPrefix(spec.Names[0].Name, of)) {
			switch v := spec.Values[0].(type) {
			case *ast.BasicLit:
				values = append(values, strings.Trim(v.Value, `"`))
			case *ast.UnaryExpr:
				if lit, is := v.X.(*ast.BasicLit); is {
					values = append(values, v.Op.String()+lit.Value)
				}
			}
		}
		return true
	})
	return values
}

func TestEveryCodeHasItsAnchor(t *testing.T) {
	want := map[string]bool{}
	for _, of := range []struct{ file, kind string }{
		{"shared/core/storage/errors.go", "Code"},
		{"shared/operate/api/api.go", "codeNotHere"},
		{"shared/core/wire/errors.go", "Code"},
		{"shared/box/errors.go", "Phase"},
		{"shared/backend/relayserver/failure.go", "phase"},
	} {
		all := codes(parsedFile(t, "..", of.file), of.kind)
		if len(all) == 0 {
			t.Errorf("%s has no constants %s", of.file, of.kind)
		}
		for _, code := range all {
			want[code] = true
		}
	}
	got := map[string]bool{}
	for line := range strings.Lines(pages(t, "..")[errorPages+".md"]) {
		if code, is := strings.CutPrefix(strings.TrimSpace(line), "### "); is {
			got[code] = true
		}
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("the codes of the program, and those with a heading in %s.md (-code, +page):\n%s", errorPages, diff)
	}
}
