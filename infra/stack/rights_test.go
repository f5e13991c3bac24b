package stack_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const sdk = "github.com/aws/aws-sdk-go-v2/service/"

// services are those of the SDK that the functions call, and how IAM calls them.
func services() map[string]struct {
	dir     string // the package that owns it
	actions func(operation string) []string
} {
	named := func(service string) func(string) []string {
		return func(operation string) []string { return []string{service + ":" + operation} }
	}
	return map[string]struct {
		dir     string
		actions func(operation string) []string
	}{
		"dynamodb": {"shared/dynamostore", func(operation string) []string {
			switch operation {
			case "CreateTable", "DescribeTable", "UpdateTimeToLive":
				return nil // of EnsureTable, which no function calls: see below
			}
			return []string{"dynamodb:" + operation}
		}},
		"ecs": {"shared/fleet/ecs", func(operation string) []string {
			if operation == "RunTask" || operation == "RegisterTaskDefinition" {
				return []string{"ecs:" + operation, "iam:PassRole"} // of the execution role
			}
			return named("ecs")(operation)
		}},
		"apigatewaymanagementapi": {"shared/relay", func(string) []string { return []string{"execute-api:ManageConnections"} }},
	}
}

// sources are the Go files, without tests, of what is deployed as functions.
func sources(t *testing.T) map[string]*ast.File {
	t.Helper()
	files := map[string]*ast.File{}
	for _, top := range []string{"shared", "functions"} {
		err := filepath.WalkDir(root(top), func(name string, entry os.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") || strings.Contains(name, "testdata") {
				return err
			}
			f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(root(), name)
			files[filepath.ToSlash(rel)] = f
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// called lists the IAM actions that the code needs: by the inputs it makes of the
// SDK's operations, and the one call that is made without the SDK.
func called(t *testing.T) []string {
	t.Helper()
	var actions []string
	for name, f := range sources(t) {
		local := map[string]string{} // the SDK's packages by their names in this file
		for _, spec := range f.Imports {
			service, ours := strings.CutPrefix(strings.Trim(spec.Path.Value, `"`), sdk)
			if !ours || strings.Contains(service, "/") {
				continue
			}
			known, ok := services()[service]
			if !ok || known.dir != filepath.ToSlash(filepath.Dir(name)) && !strings.HasPrefix(name, "functions/") {
				t.Errorf("%s calls %s: give it a line in services, and the rights in the template", name, service)
			}
			local[service] = service
			if spec.Name != nil {
				delete(local, service)
				local[spec.Name.Name] = service
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CompositeLit:
				x, ok := n.Type.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				from, ok := x.X.(*ast.Ident)
				operation, input := strings.CutSuffix(x.Sel.Name, "Input")
				if service, known := local[identName(from, ok)]; known && input {
					actions = append(actions, services()[service].actions(operation)...)
				}
			case *ast.SelectorExpr:
				if n.Sel.Name == "EnsureTable" && strings.HasPrefix(name, "functions/") {
					t.Errorf("%s calls EnsureTable: a function has no right to", name)
				}
			case *ast.BasicLit:
				if strings.Contains(n.Value, "/2015-03-31/functions/") {
					actions = append(actions, "lambda:InvokeFunction")
				}
			}
			return true
		})
	}
	slices.Sort(actions)
	return slices.Compact(actions)
}

func identName(i *ast.Ident, ok bool) string {
	if !ok {
		return ""
	}
	return i.Name
}

// statement is one of a policy.
type statement struct {
	actions, resources []string
}

func (s stack) statements(policy any) []statement {
	var all []statement
	for _, v := range dig(policy, "Statement").([]any) {
		st := v.(object)
		all = append(all, statement{s.list(many(st["Action"])), s.list(many(st["Resource"]))})
	}
	return all
}

func many(v any) any {
	if list, ok := v.([]any); ok {
		return list
	}
	return []any{v}
}

// granted are the statements of each function's role.
func granted(t *testing.T, s stack) map[string][]statement {
	t.Helper()
	all := map[string][]statement{}
	core := s.get(t, "CorePolicy", "AWS::IAM::ManagedPolicy")
	for _, f := range []string{"Http", "Socket", "Relay", "Sweep"} {
		if got := s.value(s.get(t, f+"Function", "AWS::Lambda::Function")["Role"]); got != f+"Role.Arn" {
			t.Errorf("%s has the role %s", f, got)
		}
		if !slices.Contains(s.list(core["Roles"]), f+"Role") {
			t.Errorf("%s does not have CorePolicy", f)
		}
		role := s.get(t, f+"Role", "AWS::IAM::Role")
		if managed := role["ManagedPolicyArns"]; managed != nil {
			t.Errorf("%s has policies that are not in the template: %v", f, managed)
		}
		all[f] = s.statements(core["PolicyDocument"])
		for _, p := range role["Policies"].([]any) {
			all[f] = append(all[f], s.statements(dig(p, "PolicyDocument"))...)
		}
	}
	return all
}

func TestFunctionsMayDoWhatTheyCallAndNothingElse(t *testing.T) {
	var got []string
	for _, statements := range granted(t, expand(t)) {
		for _, s := range statements {
			got = append(got, s.actions...)
		}
	}
	slices.Sort(got)
	// What Lambda itself does in a function's name.
	want := append(called(t), "logs:CreateLogStream", "logs:PutLogEvents")
	slices.Sort(want)
	if d := cmp.Diff(want, slices.Compact(got)); d != "" {
		t.Errorf("needed (-) and granted (+):\n%s", d)
	}
}

func TestOnlyWhoNeedsARightHasIt(t *testing.T) {
	only := map[string][]string{
		"lambda:InvokeFunction": {"Socket"},
		"ecs:ListTasks":         {"Sweep"},
		"ecs:DescribeTasks":     {"Sweep"},
		"ecs:StopTask":          {"Sweep"},
	}
	for f, statements := range granted(t, expand(t)) {
		for _, s := range statements {
			for _, action := range s.actions {
				if who, limited := only[action]; limited && !slices.Contains(who, f) {
					t.Errorf("%s may %s", f, action)
				}
			}
		}
	}
}

func TestEveryRightNamesItsResource(t *testing.T) {
	s := expand(t)
	whole := []string{"ecr:GetAuthorizationToken", "ecs:ListTasks"} // have no resource that could be named
	all := granted(t, s)
	for _, p := range s.get(t, "BoxExecutionRole", "AWS::IAM::Role")["Policies"].([]any) {
		all["boxes"] = append(all["boxes"], s.statements(dig(p, "PolicyDocument"))...)
	}
	for who, statements := range all {
		for _, st := range statements {
			for _, resource := range st.resources {
				for _, action := range st.actions {
					if strings.Contains(action, "*") || resource == "*" && !slices.Contains(whole, action) {
						t.Errorf("%s may %s on %s", who, action, resource)
					}
				}
			}
		}
	}
}

func TestABoxHasNoRole(t *testing.T) {
	s := expand(t)
	for name, r := range s.resources {
		if r["Type"] != "AWS::IAM::Role" {
			continue
		}
		trust := fmt.Sprint(dig(r, "Properties", "AssumeRolePolicyDocument"))
		if strings.Contains(trust, "ecs-tasks") && name != "BoxExecutionRole" {
			t.Errorf("%s is for tasks", name)
		}
	}
}
