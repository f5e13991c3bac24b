// Command shape prints measurements of the repository below its argument: lines, methods of a type,
// references between files of a package, imports between packages, long functions, and knobs
// (settings). No value makes it fail. With -v it lists each knob. make shape runs it.
package main

import (
	"flag"
	"fmt"
	"go/ast"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	every := flag.Bool("v", false, "list each knob")
	flag.Parse()
	if err := measure(os.Stdout, flag.Arg(0), *every); err != nil {
		fmt.Fprintln(os.Stderr, "shape:", err)
		os.Exit(1)
	}
}

const (
	most = 8   // rows of each list, the largest first
	long = 140 // a function with more lines is listed
)

// row is one line of a list.
type row struct {
	size int
	text string
}

func measure(w io.Writer, root string, every bool) error {
	show := func(title string, rows []row) {
		_, _ = fmt.Fprintf(w, "\n%s\n", title)
		slices.SortStableFunc(rows, func(a, b row) int { return b.size - a.size })
		for _, r := range rows[:min(len(rows), most)] {
			_, _ = fmt.Fprintf(w, "  %6d  %s\n", r.size, r.text)
		}
	}
	count, err := linesOf(root)
	if err != nil {
		return err
	}
	show("lines of Go", []row{{count["product"], "product"}, {count["tests"], "tests"}, {count["support"], "test support"}, {count["proof"], "proof"}})

	packages, err := load(root)
	if err != nil {
		return err
	}
	var states, turned, longs, imports []row
	var references, back, arrows int
	for _, p := range packages {
		states, longs = append(states, p.states()...), append(longs, p.longs()...)
		n, against := p.references()
		references, back = references+n, back+against
		turned = append(turned, row{against, fmt.Sprintf("%s: of %d, in %d files", p.path, n, len(p.files))})
		arrows += len(p.imports)
		imports = append(imports, row{len(p.imports), p.path})
	}
	show("methods on one state: of a type, and of those that embed it by a pointer or hold only it", states)
	show(fmt.Sprintf("references back between files of a package: %d of %d", back, references), turned)
	show(fmt.Sprintf("arrows between packages: %d, of %d packages", arrows, len(packages)), imports)
	show(fmt.Sprintf("functions over %d lines: %d", long, len(longs)), longs)
	found, err := knobs(root, packages)
	if err != nil {
		return err
	}
	sum := 0
	var kinds []row
	for kind, names := range found {
		if kind != notCounted {
			sum += len(names)
		}
		kinds = append(kinds, row{len(names), kind})
	}
	slices.SortFunc(kinds, func(a, b row) int { return strings.Compare(a.text, b.text) })
	show(fmt.Sprintf("knobs: %d", sum), kinds)
	for _, kind := range kinds {
		if every {
			_, _ = fmt.Fprintf(w, "\n%s\n  %s\n", kind.text, strings.Join(found[kind.text], "\n  "))
		}
	}
	return nil
}

// linesOf counts the lines of all Go files by their kind.
func linesOf(root string) (map[string]int, error) {
	count := map[string]int{}
	err := filepath.WalkDir(root, func(name string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := entry.Name()
		if entry.IsDir() {
			if name != root && (strings.HasPrefix(base, ".") || base == "node_modules" || base == "bin") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(base, ".go") {
			return nil
		}
		text, err := os.ReadFile(name) //nolint:gosec // a file of the tree that the caller names
		if err != nil {
			return err
		}
		below, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		dir := filepath.ToSlash(filepath.Dir(below))
		kind := "product"
		switch {
		case strings.HasSuffix(base, "_test.go"):
			kind = "tests"
		case strings.HasPrefix(dir+"/", "infra/proof/"):
			kind = "proof"
		case strings.HasSuffix(dir, "test"), strings.Contains("/"+dir+"/", "/testdata/"), strings.HasPrefix(dir+"/", "infra/internal/emulator/"):
			kind = "support"
		}
		count[kind] += strings.Count(string(text), "\n")
		return nil
	})
	return count, err
}

// states returns the named types of a package, each with the number of its methods. A facet of a type
// embeds a pointer to it, or has it as the only field. The methods of facets count for the type.
func (p *pkg) states() (rows []row) {
	facet := map[*types.TypeName]*types.TypeName{} // from a facet to the type that it belongs to
	var named []*types.TypeName
	for _, name := range p.types.Scope().Names() {
		of, ok := p.types.Scope().Lookup(name).(*types.TypeName)
		if !ok || of.IsAlias() {
			continue
		}
		named = append(named, of)
		fields, ok := of.Type().Underlying().(*types.Struct)
		if !ok {
			continue
		}
		for i := range fields.NumFields() {
			f := fields.Field(i)
			held, pointer := f.Type(), false
			if p, ok := held.(*types.Pointer); ok {
				held, pointer = p.Elem(), true
			}
			if n, ok := held.(*types.Named); ok && n.Obj().Pkg() == p.types && !types.IsInterface(n) && (f.Embedded() && pointer || fields.NumFields() == 1) {
				facet[of] = n.Obj()
			}
		}
	}
	methods, facets := map[*types.TypeName]int{}, map[*types.TypeName]int{}
	for _, of := range named {
		n, ok := of.Type().(*types.Named)
		if !ok {
			continue
		}
		state := of
		for hops := 0; facet[state] != nil && hops < len(named); hops++ {
			state = facet[state]
		}
		methods[state] += n.NumMethods()
		if state != of {
			facets[state]++
		}
	}
	for _, of := range named {
		if methods[of] > 0 {
			rows = append(rows, row{methods[of], fmt.Sprintf("%s.%s, in %d types", p.path, of.Name(), 1+facets[of])})
		}
	}
	return rows
}

func (p *pkg) longs() (rows []row) {
	for _, f := range p.files {
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				from, to := p.set.Position(fn.Pos()), p.set.Position(fn.End())
				if n := to.Line - from.Line + 1; n > long {
					rows = append(rows, row{n, fmt.Sprintf("%s %s:%d", fn.Name.Name, filepath.ToSlash(filepath.Join(p.path, filepath.Base(from.Filename))), from.Line)})
				}
			}
		}
	}
	return rows
}

// references counts the pairs of files of which the first uses a name that the second declares,
// fields and methods among them. The result back is how many of these pairs refer to an earlier
// file, if the files are put into a good order; see pointBack.
func (p *pkg) references() (all, back int) {
	number := map[string]int{}
	for i, f := range p.files {
		number[p.set.Position(f.Pos()).Filename] = i
	}
	uses := make([][]bool, len(p.files))
	for i := range uses {
		uses[i] = make([]bool, len(p.files))
	}
	note := func(at token.Pos, used types.Object) {
		if used == nil || used.Pkg() != p.types {
			return
		}
		from, to := number[p.set.Position(at).Filename], number[p.set.Position(used.Pos()).Filename]
		if from != to && !uses[from][to] {
			uses[from][to] = true
			all++
		}
	}
	for id, used := range p.info.Uses {
		note(id.Pos(), used)
	}
	return all, pointBack(uses)
}

// pointBack returns how many references to earlier files are left in the best order of files that
// it finds. If uses[i][j] is true, file i uses file j.
func pointBack(uses [][]bool) int {
	order := make([]int, len(uses))
	for i := range order {
		order[i] = i
	}
	cost := func() (n int) {
		for i, from := range order {
			for _, to := range order[:i] {
				if uses[from][to] {
					n++
				}
			}
		}
		return n
	}
	least := cost()
	for better := true; better; {
		better = false
		for i := range order {
			for j := range order {
				before := slices.Clone(order)
				moved := order[i]
				order = slices.Insert(slices.Delete(order, i, i+1), j, moved)
				if c := cost(); c < least {
					least, better = c, true
				} else {
					order = before
				}
			}
		}
	}
	return least
}

// check type-checks the files of a package against the export data of what it imports.
func (p *pkg) check(exports func(path string) (io.ReadCloser, error)) (err error) {
	p.info = &types.Info{Uses: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: importer.ForCompiler(p.set, "gc", exports)}
	p.types, err = config.Check(p.path, p.set, p.files, p.info)
	return err
}
