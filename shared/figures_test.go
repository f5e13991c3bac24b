package shared_test

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// figures are sentences of the documents with a figure that the code decides. The figure is
// in brackets. Behind it is the name of what decides it: a constant, a field that is set, or
// a default, in a package or in a function of the package.
var figures = []struct{ page, phrase, name string }{
	{"README.md", "processes end after [120 s] without work", "shared/box.DefaultIdle"},
	{"docs/promises.md", "Boxes end after [120 s] without work", "shared/box.DefaultIdle"},
	{"docs/promises.md", "at most [500] URIs", "shared/mcp/sessions.maxSubscribed"},
	{"docs/promises.md", "URIs in [128 KiB];", "shared/mcp/sessions.maxURIs"},
	{"docs/promises.md", "when its stream ends, on AWS after [14 minutes]", "shared/endpoint/transport.withDefaults.Limit"},
	{"docs/servers-file.md", "at most 86400 | [120] |", "shared/box.DefaultIdle"},
	{"docs/servers-file.md", "| `startup_timeout_sec` | seconds, at most 86400 | `[300]` |", "shared/box.DefaultStartupTimeout"},
	{"docs/servers-file.md", "together. [30] for a remote server", "shared/config/serversfile.DefaultRemoteStartup"},
	{"docs/servers-file.md", "| `answer_timeout_sec` | seconds, at most 86400 | `[21600]` |", "shared/config/serversfile.DefaultAnswerTimeout"},
	{"docs/servers-file.md", "in flight, at most [256]. One more", "shared/access/quota.maxSlots"},
	{"docs/sandbox.md", "may reserve [512 MiB] of address space", "shared/box/sandbox.Reserved"},
	{"docs/promises.md", "| body of a POST | [4 MiB];", "shared/endpoint/transport.withDefaults.MaxBody"},
	{"docs/promises.md", "messages with [16 KiB] of request ids", "shared/mcp/sessions.maxIDs"},
	{"docs/promises.md", "| parameters of `initialize` | [64 KiB] |", "shared/mcp/sessions.maxInit"},
	{"docs/promises.md", "| message of a server | [16 MiB] |", "shared/core/frame.MaxMessage"},
	{"docs/promises.md", "open questions of a server to its client | [1,024] |", "shared/backend/remote.maxQuestions"},
	{"docs/promises.md", "1,000 and 8 MiB, for [24 hours];", "shared/core/storage.EventAge"},
	{"docs/promises.md", "to questions of its server | [64 MiB] a day", "shared/mcp/sessions.maxAnswers"},
	{"docs/promises.md", "| session | 3.5 to [7 days] after its last message", "shared/mcp/sessions.withDefaults.Life"},
	{"docs/promises.md", "after its last message; [60 s] until", "shared/mcp/sessions.withDefaults.InitTimeout"},
	{"docs/promises.md", "| tool call | [300 s] ", "shared/box.DefaultToolTimeout"},
	{"docs/promises.md", "| a response is held | [30 days] |", "infra/local/sockets.Home.Life"},
	{"docs/promises.md", "for a GET that listens [25 s] |", "shared/mcp/sessions.withDefaults.Hold"},
	{"docs/promises.md", "in any case | [24 hours]; 30 days |", "infra/local/sockets.Home.Idle"},
	{"docs/promises.md", "| 10 minutes; [2 hours] |", "infra/internal/emulator/apigw.Limits.Life"},
	{"docs/promises.md", "more are refused as busy | [1,024]", "infra/local.maxInWork"},
	{"docs/promises.md", "time to send it | 4 MiB; [64 MiB]; 256 MiB; 1 minute |", "infra/local.maxCallerBodies"},
	{"docs/promises.md", "time to send it | 4 MiB; 64 MiB; [256 MiB]; 1 minute |", "infra/local.maxBodies"},
	{"docs/clients.md", "and the result for [24 hours].", "shared/core/storage.EventAge"},
	{"docs/clients.md", "A message may have [131,072] bytes", "shared/core/storage.MaxPost"},
	{"docs/operations.md", "has the last [100,000] calls", "infra/local.keptCalls"},
	{"docs/operations.md", "calls for [7 days] at most", "infra/local/history.keptCallAge"},
	{"docs/operations.md", "Calls get up to [30 s],", "infra/local.drainWithin"},
	{"docs/operations.md", "the stop takes [20 s] at most", "infra/local.stopTime"},
	{"docs/operations.md", "A revoked key is refused within [30 seconds].", "shared/access/apikey.Remembered"},
}

// units are those of figures. Times are in seconds.
var units = map[string]float64{
	"": 1, "KiB": 1 << 10, "MiB": 1 << 20,
	"ms": 0.001, "s": 1, "seconds": 1, "minutes": 60, "hours": 3600, "days": 24 * 3600,
}

var figure = regexp.MustCompile(`\[([\d,]+) ?(\w*)\]`)

// inSeconds replaces the units of durations in an expression, which then is in seconds.
var inSeconds = strings.NewReplacer("time.Millisecond", "0.001", "time.Second", "1", "time.Minute", "60", "time.Hour", "3600")

// valuesOf returns the values that the files give to what is called name, in text.
func valuesOf(files []file, name string) (all []string) {
	dir, last := path.Split(name)
	parts := strings.Split(last, ".")
	dir += parts[0]
	of := parts[len(parts)-1]
	for _, f := range files {
		if f.dir != dir || f.test {
			continue
		}
		var nodes []ast.Node
		for _, d := range f.syntax.Decls {
			if decl, ok := d.(*ast.FuncDecl); len(parts) == 2 || ok && decl.Name.Name == parts[1] {
				nodes = append(nodes, d)
			}
		}
		for _, n := range nodes {
			ast.Inspect(n, func(n ast.Node) bool {
				if value := given(n, of); value != nil {
					all = append(all, types.ExprString(value))
				}
				return true
			})
		}
	}
	return all
}

// given returns the value that n gives to what is called name: in a declaration, in a
// literal, in an assignment, or as a default, x.name = cmp.Or(x.name, value).
func given(n ast.Node, name string) ast.Expr {
	called := func(e ast.Expr) bool {
		if field, ok := e.(*ast.SelectorExpr); ok {
			e = field.Sel
		}
		id, ok := e.(*ast.Ident)
		return ok && id.Name == name
	}
	switch n := n.(type) {
	case *ast.ValueSpec:
		for i, id := range n.Names {
			if id.Name == name && i < len(n.Values) {
				return n.Values[i]
			}
		}
	case *ast.KeyValueExpr:
		if called(n.Key) {
			return n.Value
		}
	case *ast.AssignStmt:
		if len(n.Lhs) != 1 || len(n.Rhs) != 1 || !called(n.Lhs[0]) {
			return nil
		}
		if call, ok := n.Rhs[0].(*ast.CallExpr); ok && types.ExprString(call.Fun) == "cmp.Or" {
			return call.Args[len(call.Args)-1]
		}
		return n.Rhs[0]
	}
	return nil
}

// checkFigure compares the figure of a phrase with the code, and looks for the phrase on
// its page.
func checkFigure(files []file, text, phrase, name string) error {
	m := figure.FindStringSubmatch(phrase)
	if m == nil {
		return fmt.Errorf("%q has no figure in brackets", phrase)
	}
	if said := strings.Replace(phrase, m[0], m[0][1:len(m[0])-1], 1); !strings.Contains(text, said) {
		return fmt.Errorf("the page lacks %q", said)
	}
	unit, ok := units[m[2]]
	if !ok {
		return fmt.Errorf("%q is no unit", m[2])
	}
	n, err := strconv.ParseFloat(strings.ReplaceAll(m[1], ",", ""), 64)
	if err != nil {
		return err
	}
	values := valuesOf(files, name)
	if len(values) != 1 {
		return fmt.Errorf("%s has %d values: %q", name, len(values), values)
	}
	v, err := types.Eval(token.NewFileSet(), nil, token.NoPos, inSeconds.Replace(values[0]))
	if err != nil {
		return fmt.Errorf("%s = %s: %w", name, values[0], err)
	}
	if is, _ := constant.Float64Val(constant.ToFloat(v.Value)); is != n*unit {
		return fmt.Errorf("%q, but %s = %s", phrase, name, values[0])
	}
	return nil
}

func TestFiguresOfTheDocumentsAreThoseOfTheCode(t *testing.T) {
	files := load(t, "..")
	for _, f := range figures {
		text, err := os.ReadFile(filepath.Join("..", filepath.FromSlash(f.page)))
		commontest.OK(t, err)
		commontest.CheckIn(t, f.page, checkFigure(files, string(text), f.phrase, f.name))
	}
}
