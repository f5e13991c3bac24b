package shared_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
)

// errorPage explains the codes and phases of errors.
const errorPage = "docs/errors.md"

func name(e ast.Expr) string {
	switch x := e.(type) {
	case *ast.SelectorExpr:
		return x.Sel.Name
	case *ast.Ident:
		return x.Name
	}
	return ""
}

func parsedFile(t *testing.T, file string) *ast.File {
	t.Helper()
	for _, f := range load(t, "..") {
		if f.path == file {
			return f.syntax
		}
	}
	t.Fatalf("there is no %s", file)
	return nil
}

// constants returns the values of the constants in a file whose type is of, or whose names
// begin with of, by their names.
func constants(file *ast.File, of string) map[string]string {
	values := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, is := n.(*ast.ValueSpec); is && len(spec.Values) == 1 && (name(spec.Type) == of || strings.HasPrefix(spec.Names[0].Name, of)) {
			switch v := spec.Values[0].(type) {
			case *ast.BasicLit:
				values[spec.Names[0].Name] = strings.Trim(v.Value, `"`)
			case *ast.UnaryExpr:
				if lit, is := v.X.(*ast.BasicLit); is {
					values[spec.Names[0].Name] = v.Op.String() + lit.Value
				}
			}
		}
		return true
	})
	return values
}

// statuses returns the name of the HTTP status of each code, as the transports map them:
// Invalid to BadRequest.
func statuses(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, d := range parsedFile(t, "shared/endpoint/transport/errors.go").Decls {
		fn, is := d.(*ast.FuncDecl)
		if !is || fn.Name.Name != "table" {
			continue
		}
		ast.Inspect(fn, func(n ast.Node) bool {
			if clause, is := n.(*ast.CaseClause); is {
				status := strings.TrimPrefix(name(clause.Body[0].(*ast.ReturnStmt).Results[0]), "Status")
				for _, code := range clause.List {
					all[name(code)] = status
				}
				if clause.List == nil {
					all["Internal"] = status
				}
			}
			return true
		})
	}
	return all
}

var codeInTable = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (\\S+)")

// tables returns the first cells of the tables of codes on the page, with the first word
// of the second cell.
func tables(page string) map[string]string {
	cells := map[string]string{}
	for _, head := range []string{"| code | status |", "| code | who", "| phase |"} {
		_, table, _ := strings.Cut(page, "\n"+head)
		table, _, _ = strings.Cut(table, "\n\n")
		for _, row := range codeInTable.FindAllStringSubmatch(table, -1) {
			cells[row[1]] = row[2]
		}
	}
	return cells
}

func TestEveryCodeHasItsRow(t *testing.T) {
	want := map[string]bool{}
	for _, of := range []struct{ file, kind string }{
		{"shared/core/storage/errors.go", "Code"},
		{"shared/operate/api/api.go", "codeNotHere"},
		{"shared/core/wire/errors.go", "Code"},
		{"shared/endpoint/transport/access.go", "codeForbidden"},
		{"shared/box/errors.go", "Phase"},
		{"shared/backend/relayserver/failure.go", "phase"},
	} {
		all := constants(parsedFile(t, of.file), of.kind)
		if len(all) == 0 {
			t.Errorf("%s has no constants %s", of.file, of.kind)
		}
		for _, code := range all {
			want[code] = true
		}
	}
	got := map[string]bool{}
	rows := tables(pages(t, "..")[errorPage])
	for code := range rows {
		got[code] = true
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("the codes of the program, and those with a row in %s (-code, +page):\n%s", errorPage, diff)
	}
	codes := constants(parsedFile(t, "shared/core/storage/errors.go"), "Code")
	for code, status := range statuses(t) {
		number, _ := strconv.Atoi(rows[codes[code]])
		if said := strings.ReplaceAll(http.StatusText(number), " ", ""); said != status {
			t.Errorf("%s: %s has the status %s; want that of %s", errorPage, codes[code], rows[codes[code]], status)
		}
	}
}

var (
	verbInText  = regexp.MustCompile(`%[-+# 0]*[\d.*]*[a-zA-Z]`)
	severalDots = regexp.MustCompile(`……+`)
	quotedInRow = regexp.MustCompile("(?m)^\\| (?:\"([^\"|]+)\"|`([^`|]+)`) \\|")
)

// filled replaces the formatting verbs in a format by ….
func filled(format string) string {
	text := verbInText.ReplaceAllString(strings.ReplaceAll(format, "%q", `"…"`), "…")
	return severalDots.ReplaceAllString(strings.ReplaceAll(text, "%%", "%"), "…")
}

// texts returns the string literals of the product, with … for what is filled in.
func texts(files []file) (all []string) {
	for _, f := range files {
		if f.test || strings.HasPrefix(f.path, "infra/proof/") {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			if lit, is := n.(*ast.BasicLit); is && lit.Kind == token.STRING {
				if s, err := strconv.Unquote(lit.Value); err == nil {
					all = append(all, filled(s))
				}
			}
			return true
		})
	}
	return all
}

// quotes returns the errors that a page quotes as the first cells of its tables.
func quotes(name, page string) (all []string) {
	for table := range strings.SplitSeq(page, "\n\n") {
		errors := name == errorPage && strings.HasPrefix(table, "| it says |")
		for _, quote := range quotedInRow.FindAllStringSubmatch(table, -1) {
			if quote[1] != "" || errors {
				all = append(all, quote[1]+quote[2])
			}
		}
	}
	return all
}

// checkQuotes finds quoted errors with a part that no text of the product has. The parts
// stand between the … of a quote.
func checkQuotes(all map[string]string, texts []string) (problems []string) {
	for page, text := range all {
		for _, quote := range quotes(page, text) {
			for part := range strings.SplitSeq(quote, "…") {
				if !slices.ContainsFunc(texts, func(s string) bool { return strings.Contains(s, part) }) {
					problems = append(problems, fmt.Sprintf("%s: no error says %q any more", page, part))
				}
			}
		}
	}
	return problems
}

func TestErrorsThatPagesQuoteAreSaid(t *testing.T) {
	all := pages(t, "..")
	if n := len(quotes(errorPage, all[errorPage])); n < 10 {
		t.Errorf("%s quotes %d errors; is its form another?", errorPage, n)
	}
	report(t, checkQuotes(all, texts(load(t, ".."))))
}
