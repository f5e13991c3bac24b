// Package shared_test asserts the rules between packages that the compiler does not know:
// the arrows (which package may import which), the owners of outside modules, and what no
// package may do. It reads every Go file of the module, whatever its build tags.
package shared_test

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

const module = "github.com/dormouse-mcp/dormouse/"

// arrow says which of our packages the packages of a pattern may import, apart
// from their tests. A pattern is a folder; "…/..." is a folder and all below it.
type arrow struct {
	from string
	to   []string
}

// wings are the folders of shared/, each with the wings that its packages may import.
// Inside a wing Go forbids circles, and that is enough.
func wings() map[string][]string {
	return map[string][]string{
		"core":     nil,
		"config":   {"core"},
		"store":    {"core"},
		"mcp":      {"core", "config"},
		"access":   {"core", "config", "store"},
		"backend":  {"core", "mcp"},
		"box":      {"core", "mcp"},
		"endpoint": {"core", "config", "mcp"},
		"operate":  {"core", "config", "store", "access"},
	}
}

// arrows has a line for every package; the first line that fits counts.
func arrows() []arrow {
	var all []arrow
	for _, wing := range slices.Sorted(maps.Keys(wings())) {
		to := []string{"shared/" + wing + "/..."}
		for _, other := range wings()[wing] {
			to = append(to, "shared/"+other+"/...")
		}
		all = append(all, arrow{to[0], to})
	}
	return append(all, []arrow{
		{"functions/wiring", []string{"shared/..."}},
		{"functions/wiring/kept", []string{"functions/wiring", "shared/box/memory", "shared/box/snapshot", "shared/core/storage"}},
		{"functions/wiring/authorization", []string{"shared/...", "functions/wiring"}},
		{"functions/wiring/endpoints", []string{"shared/...", "functions/wiring"}},
		{"functions/wiring/webconsole", []string{"shared/...", "functions/wiring", "functions/wiring/endpoints"}},
		{"functions/dormouse", []string{"functions/internal/serve", "infra/dormouse", "shared/backend/native"}},
		{"functions/natives", []string{"functions/dormouse", "shared/backend/native"}},
		{"functions/...", []string{"shared/...", "functions/internal/...", "functions/wiring", "functions/wiring/authorization", "functions/wiring/endpoints", "functions/wiring/webconsole", "functions/wiring/kept"}},
		{"infra/runner", []string{"shared/box", "shared/box/guard", "shared/box/memory", "shared/box/proc", "shared/box/provision", "shared/box/sandbox", "shared/box/snapshot", "shared/mcp/bridge", "shared/backend/fleet", "shared/core/frame", "shared/box/runner", "shared/core/storage", "shared/core/wire", "shared/config/serversfile", "shared/operate/pprofsock", "shared/store/meter"}},
		{"infra/runner/cmd", []string{"infra/runner", "shared/box/sandbox"}},
		{"infra/local/...", []string{"infra/local/...", "infra/runner", "functions/wiring/...", "shared/..."}},
		{"infra/dormouse/...", []string{"infra/dormouse/pipe", "infra/systemd", "infra/local/...", "infra/runner", "infra/internal/serversedit", "infra/internal/sources", "functions/wiring", "shared/..."}},
		{"infra/systemd", nil},
		{"infra/cmd/dormouse", []string{"infra/dormouse"}},
		{"infra/keeper/...", []string{"infra/keeper/..."}},
		{"infra/internal/...", []string{"infra/internal/...", "infra/dormouse", "infra/local/...", "functions/wiring/...", "shared/..."}},
		{"infra/image", []string{"infra/internal/cranetest"}},
		{"infra/stack/deploy", []string{"infra/internal/restored", "shared/..."}},
		{"infra/proof/...", []string{"infra/proof/...", "infra/local", "functions/dormouse", "shared/..."}},
	}...)
}

// owner says which packages may import the path and all paths below it. "*test" stands for
// every package whose name ends in test. Tests may import any module.
type owner struct {
	path   string
	owners []string
}

// owners has a line for every module outside the standard library. The longest
// path that fits counts.
func owners() []owner {
	tests := []string{"*test"}
	return []owner{
		{"github.com/aws/aws-sdk-go-v2", []string{"shared/backend/awscall", "shared/store/dynamostore", "shared/backend/fleet/ecs", "shared/backend/fleet/lambda", "shared/backend/relayserver", "shared/backend/bucket/...", "functions/...", "infra/local/localtest"}},
		{"github.com/aws/smithy-go", []string{"shared/store/dynamostore"}},
		{"github.com/aws/aws-lambda-go", []string{"functions/...", "shared/endpoint/apigateway", "infra/internal/emulator/...", "infra/local/localtest"}},
		{"github.com/awslabs/aws-lambda-go-api-proxy", []string{"functions/...", "shared/endpoint/apigateway"}},
		{"github.com/modelcontextprotocol/go-sdk", []string{"shared/backend/native", "shared/backend/native/nativetest", "functions/natives", "infra/proof/clients/...", "infra/proof/bench/echo", "infra/proof/conformance/servers/native", "infra/dormouse", "infra/dormouse/pipe", "infra/dormouse/testdata/native"}},
		{"github.com/segmentio/encoding", []string{"shared/core/frame", "shared/backend/relayserver"}},
		{"github.com/google/jsonschema-go", []string{"infra/dormouse", "shared/backend/native", "infra/proof/clients/..."}},
		{"github.com/coder/websocket", []string{"shared/box/runner", "infra/local/sockets", "infra/local/localtest", "infra/proof/clients/...", "infra/proof/bench"}},
		{"github.com/coreos/go-systemd", []string{"infra/dormouse"}},
		{"github.com/coreos/go-oidc", []string{"shared/access/authserver"}},
		{"golang.org/x/net/html", []string{"infra/proof/internal/webuser"}},
		{"golang.org/x/oauth2", []string{"shared/access/authserver", "infra/dormouse/pipe", "infra/proof/clients/..."}},
		{"github.com/golang-jwt/jwt", []string{"shared/access/resourceserver"}},
		{"modernc.org", []string{"shared/store/sqlitestore", "infra/local/history"}},
		{"github.com/klauspost/compress", []string{"shared/box/snapshot", "shared/box/memory", "shared/operate/console", "infra/keeper/image"}},
		{"gvisor.dev/gvisor", []string{"infra/keeper/box", "infra/keeper/gate"}},
		{"github.com/opencontainers/runtime-spec", []string{"infra/keeper/box"}},
		{"github.com/erofs/go-erofs", []string{"infra/keeper/image", "infra/keeper/box"}},
		{"github.com/google/go-containerregistry", []string{"infra/keeper/image"}},
		{"golang.org/x/net/dns/dnsmessage", []string{"infra/keeper/gate"}},
		{"golang.org/x/net/idna", []string{"infra/keeper/gate"}},
		{"github.com/tailscale/hujson", []string{"shared/config/serversfile", "shared/config/jsonedit"}},
		{"github.com/pelletier/go-toml", []string{"infra/internal/serversedit", "infra/internal/sources", "shared/config/clientfile", "infra/stack/deploy"}},
		{"github.com/alecthomas/kong", []string{"infra/dormouse"}},
		{"gopkg.in/natefinch/lumberjack.v2", []string{"infra/local"}},
		{"golang.org/x/crypto", []string{"infra/local/certs"}},
		{"golang.org/x/time", []string{"infra/local"}},
		{"golang.org/x/term", []string{"infra/dormouse", "infra/stack/deploy"}},
		{"github.com/creack/pty", append([]string{"infra/proof/picture"}, tests...)},
		{"github.com/charmbracelet", []string{"infra/proof/picture"}},
		{"github.com/google/uuid", []string{"..."}},
		{"golang.org/x/sys", []string{"..."}},
		{"golang.org/x/sync", []string{"..."}},
		{"github.com/google/go-cmp", tests},
		{"golang.org/x/tools", tests},
		{"testing", tests},
		{module + "shared/store/storagetest", nil},
	}
}

// pure lists the names that a package must not use, with the reason.
func pure() map[string]map[string]string {
	io := map[string]string{
		"net": "no connections", "net/http": "no HTTP", "os": "no I/O of its own", "os/exec": "no processes",
		"syscall": "no I/O of its own", "database/sql": "no I/O of its own",
	}
	return map[string]map[string]string{
		"shared/core/wire":    io,
		"shared/core/storage": io,
		"shared/mcp/sessions": io,
		"shared/mcp/bridge":   io,
		"shared/box":          {"net/http": "no HTTP"},
	}
}

func TestPackagesImportAlongTheArrowsOnly(t *testing.T) {
	report(t, checkArrows(load(t, "..")))
}

func TestOutsideWorldHasOneOwner(t *testing.T) {
	report(t, checkOwners(load(t, "..")))
}

func TestPurePackagesDoNoInputOrOutput(t *testing.T) {
	report(t, checkPure(load(t, "..")))
}

func TestNoInitAndNoEnvironmentOutsideMain(t *testing.T) {
	report(t, checkCode(load(t, "..")))
}

func report(t *testing.T, problems []string) {
	t.Helper()
	for _, p := range problems {
		t.Error(p)
	}
}

// file is one parsed Go file.
type file struct {
	path   string // from the root of the module, with slashes
	dir    string
	test   bool
	syntax *ast.File
	set    *token.FileSet
}

func (f file) place(n ast.Node) string {
	return fmt.Sprintf("%s:%d", f.path, f.set.Position(n.Pos()).Line)
}

// imports calls use for each import, with its path.
func (f file) imports(use func(path string, spec *ast.ImportSpec)) {
	for _, spec := range f.syntax.Imports {
		if p, err := strconv.Unquote(spec.Path.Value); err == nil {
			use(p, spec)
		}
	}
}

// repository is parsed once for all rules.
var repository = sync.OnceValues(func() ([]file, error) { return parse("..") })

// load returns all files below root, except those that the go command ignores.
func load(t *testing.T, root string) []file {
	t.Helper()
	files, err := repository()
	if root != ".." {
		files, err = parse(root)
	}
	commontest.OK(t, err)
	if len(files) == 0 {
		t.Fatal("no Go files")
	}
	return files
}

func parse(root string) (files []file, err error) {
	set := token.NewFileSet()
	err = filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := entry.Name()
		if entry.IsDir() {
			hidden := strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_")
			if name != root && (hidden || base == "testdata" || base == "node_modules") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(base, ".go") {
			return nil
		}
		syntax, err := parser.ParseFile(set, name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		files = append(files, file{
			path: rel, dir: path.Dir(rel), test: strings.HasSuffix(base, "_test.go"),
			syntax: syntax, set: set,
		})
		return nil
	})
	return files, err
}

// fits reports whether one of the patterns covers the folder.
func fits(dir string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		above, all := strings.CutSuffix(p, "...")
		switch {
		case p == "*test":
			return strings.HasSuffix(dir, "test")
		case all:
			return strings.HasPrefix(dir+"/", above)
		default:
			return dir == p
		}
	})
}

func checkArrows(files []file) (problems []string) {
	for _, f := range files {
		line := slices.IndexFunc(arrows(), func(a arrow) bool { return fits(f.dir, []string{a.from}) })
		if line < 0 && !f.test {
			problems = append(problems, f.path+": its package has no line in arrows: add one")
			continue
		}
		allowed := []string{"..."}
		switch {
		case !f.test:
			allowed = arrows()[line].to
		case strings.HasPrefix(f.dir, "shared"):
			allowed = []string{"shared/..."}
		}
		f.imports(func(p string, spec *ast.ImportSpec) {
			to, ours := strings.CutPrefix(p, module)
			if ours && to != f.dir && !fits(to, allowed) {
				problems = append(problems, fmt.Sprintf("%s: %s must not import %s", f.place(spec), f.dir, to))
			}
		})
	}
	return problems
}

func checkOwners(files []file) (problems []string) {
	table := owners()
	slices.SortFunc(table, func(a, b owner) int { return cmp.Compare(len(b.path), len(a.path)) })
	for _, f := range files {
		if f.test {
			continue
		}
		f.imports(func(p string, spec *ast.ImportSpec) {
			line := slices.IndexFunc(table, func(o owner) bool { return p == o.path || strings.HasPrefix(p, o.path+"/") })
			first, _, _ := strings.Cut(p, "/")
			switch {
			case line >= 0 && !fits(f.dir, table[line].owners):
				problems = append(problems, fmt.Sprintf("%s: %s must not import %s: %s",
					f.place(spec), f.dir, p, whose(table[line].owners)))
			case line < 0 && strings.Contains(first, ".") && !strings.HasPrefix(p, module):
				problems = append(problems, fmt.Sprintf("%s: %s has no line in owners: add one", f.place(spec), p))
			}
		})
	}
	return problems
}

func whose(owners []string) string {
	if len(owners) == 0 {
		return "it is for tests only"
	}
	return "it belongs to " + strings.Join(owners, ", ")
}

func checkPure(files []file) (problems []string) {
	for _, f := range files {
		f.imports(func(p string, spec *ast.ImportSpec) {
			if why, bad := pure()[f.dir][p]; bad && !f.test {
				problems = append(problems, fmt.Sprintf("%s: %s must not import %s: %s", f.place(spec), f.dir, p, why))
			}
		})
	}
	return problems
}

// checkCode finds init functions everywhere. It finds reads of the environment in all but
// the packages that may read it.
func checkCode(files []file) (problems []string) {
	for _, f := range files {
		wires := f.test || f.syntax.Name.Name == "main" || f.dir == "functions/internal/boot" || f.dir == "functions/internal/alarms" || f.dir == "functions/dormouse" || f.dir == "infra/runner" || f.dir == "infra/dormouse"
		system := map[string]bool{} // the names under which this file imports os and syscall
		f.imports(func(p string, spec *ast.ImportSpec) {
			if p != "os" && p != "syscall" {
				return
			}
			name := p
			if spec.Name != nil {
				name = spec.Name.Name
			}
			system[name] = true
		})
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if n.Recv == nil && n.Name.Name == "init" {
					problems = append(problems, f.place(n)+": no init: let main wire it")
				}
			case *ast.SelectorExpr:
				x, ok := n.X.(*ast.Ident)
				if ok && !wires && system[x.Name] && readsEnvironment(n.Sel.Name) {
					problems = append(problems, fmt.Sprintf("%s: %s.%s: let main read the environment and pass the value",
						f.place(n), x.Name, n.Sel.Name))
				}
			}
			return true
		})
	}
	return problems
}

func readsEnvironment(function string) bool {
	switch function {
	case "Getenv", "LookupEnv", "Environ", "ExpandEnv":
		return true
	}
	return false
}

// This test shows that the rules look at the code: its tree breaks each rule, and each
// must report that.
func TestRulesFindWhatTheyForbid(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"shared/core/wire/a.go":               "// Package wire is right.\npackage wire\n\nimport (\n\t\"net/http\"\n\t\"" + module + "shared/mcp/sessions\"\n)\n",
		"shared/endpoint/transport/a.go":      "package front\n\nimport (\n\t\"modernc.org/sqlite\"\n\t\"testing\"\n\t\"" + module + "shared/backend/relay\"\n)\n\nfunc init() {}\n",
		"shared/endpoint/transport/a_test.go": "package front\n\nimport (\n\t_ \"modernc.org/sqlite\"\n\t\"testing\"\n\t\"" + module + "infra/local\"\n\t\"" + module + "shared/backend/relay\"\n)\n",
		"shared/access/apikey/a.go":           "// Package auth is right.\npackage auth\n\nimport system \"os\"\n\nvar key = system.Getenv\n\ntype T struct{}\n\nfunc (T) init() {}\n",
		"shared/new/a.go":                     "// Package new is not in the table.\npackage new\n\nimport \"example.com/new\"\n",
		"shared/store/storagetest/a.go":       "// Package sessiontest is right.\npackage sessiontest\n\nimport \"testing\"\n",
		"functions/http/main.go":              "// Command http is right.\npackage main\n\nimport (\n\t\"os\"\n\t\"" + module + "shared/store/storagetest\"\n)\n\nvar e = os.Getenv\n",
		"functions/internal/boot/a.go":        "// Package boot is right.\npackage boot\n\nimport (\n\t\"os\"\n\t\"" + module + "shared/endpoint/transport\"\n)\n\nvar e = os.Environ\n",
		"infra/testdata/a.go":                 "not Go",
		".tools/a.go":                         "not Go",
	} {
		p := filepath.Join(root, filepath.FromSlash(name))
		commontest.OK(t, os.MkdirAll(filepath.Dir(p), 0o700))
		commontest.OK(t, os.WriteFile(p, []byte(text), 0o600))
	}
	files := load(t, root)
	got := slices.Concat(checkArrows(files), checkOwners(files), checkPure(files), checkCode(files))
	want := []string{
		"shared/core/wire/a.go:6: shared/core/wire must not import shared/mcp/sessions",
		"shared/endpoint/transport/a.go:6: shared/endpoint/transport must not import shared/backend/relay",
		"shared/endpoint/transport/a_test.go:6: shared/endpoint/transport must not import infra/local",
		"shared/new/a.go: its package has no line in arrows: add one",
		"functions/http/main.go:6: functions/http must not import " + module + "shared/store/storagetest: it is for tests only",
		"shared/endpoint/transport/a.go:4: shared/endpoint/transport must not import modernc.org/sqlite: it belongs to shared/store/sqlitestore, infra/local/history",
		"shared/endpoint/transport/a.go:5: shared/endpoint/transport must not import testing: it belongs to *test",
		"shared/new/a.go:4: example.com/new has no line in owners: add one",
		"shared/core/wire/a.go:5: shared/core/wire must not import net/http: no HTTP",
		"shared/access/apikey/a.go:6: system.Getenv: let main read the environment and pass the value",
		"shared/endpoint/transport/a.go:9: no init: let main wire it",
	}
	commontest.Same(t, want, got)
}
