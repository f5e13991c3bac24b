package stack_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// sources returns the Go files, without tests, of the deployed functions.
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
		commontest.OK(t, err)
	}
	return files
}

// written returns the strings in the sources of the deployed functions.
func written(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for _, f := range sources(t) {
		ast.Inspect(f, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				text, _ := strconv.Unquote(lit.Value)
				all[text] = true
			}
			return true
		})
	}
	return all
}

// ofECS returns the rights that each request of package ecs needs. It uses HTTP without the
// SDK.
func ofECS() map[string][]string {
	return map[string][]string{
		// PassRole of the execution role. A task gets the runner by a URL, and a definition has
		// the digest of its image.
		"RunTask":                {"ecs:RunTask", "ecs:TagResource", "iam:PassRole", "s3:GetObject"},
		"RegisterTaskDefinition": {"ecs:RegisterTaskDefinition", "iam:PassRole", "ecr:BatchGetImage", "ecr:GetAuthorizationToken", "ecr:GetDownloadUrlForLayer"},
		"ListTasks":              {"ecs:ListTasks"}, "DescribeTasks": {"ecs:DescribeTasks"}, "StopTask": {"ecs:StopTask"},
	}
}

// named matches a string that names an operation of a service, as requests without the SDK do.
var named = regexp.MustCompile(`^(AmazonSSM|secretsmanager|Logs_20140328)\.(\w+)$`)

// called lists the IAM actions of the operations that the sources name in strings.
func called(t *testing.T) (actions []string) {
	t.Helper()
	for text := range written(t) {
		if m := named.FindStringSubmatch(text); m != nil {
			actions = append(actions, map[string]string{"AmazonSSM": "ssm", "secretsmanager": "secretsmanager", "Logs_20140328": "logs"}[m[1]]+":"+m[2])
		}
	}
	return actions
}

// statement is a statement of an IAM policy.
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

// many returns a value as a list: IAM takes one string in the place of a list of one.
func many(v any) any {
	if list, ok := v.([]any); ok {
		return list
	}
	return []any{v}
}

// granted returns the statements of each function's role.
func granted(t *testing.T, s stack) map[string][]statement {
	t.Helper()
	all := map[string][]statement{}
	s.params["BoxFunctions"] = "on"
	for _, f := range []string{"Http", "Socket", "Relay", "Sweep", "Oauth", "Console", "Setup"} {
		commontest.EqualIn(t, f+" has the role", f+"Role.Arn", s.value(s.get(t, f+"Function", "AWS::Lambda::Function")["Role"]))
		role := s.get(t, f+"Role", "AWS::IAM::Role")
		if managed := role["ManagedPolicyArns"]; managed != nil {
			t.Errorf("%s has policies that are not in the template: %v", f, managed)
		}
		for _, r := range s.resources {
			if p, _ := r["Properties"].(object); r["Type"] == "AWS::IAM::ManagedPolicy" && slices.Contains(s.list(p["Roles"]), f+"Role") {
				all[f] = append(all[f], s.statements(p["PolicyDocument"])...)
			}
		}
		own, _ := role["Policies"].([]any)
		for _, p := range own {
			all[f] = append(all[f], s.statements(dig(p, "PolicyDocument"))...)
		}
	}
	return all
}

// starts returns the statements of the role with which ECS starts boxes.
func (s stack) starts(t *testing.T) (all []statement) {
	t.Helper()
	for _, p := range s.get(t, "BoxExecutionRole", "AWS::IAM::Role")["Policies"].([]any) {
		all = append(all, s.statements(dig(p, "PolicyDocument"))...)
	}
	return append(all, s.statements(s.get(t, "SecretsPolicy", "AWS::IAM::ManagedPolicy")["PolicyDocument"])...)
}

// A deployment without boxes on Lambda leaves the relay function without a right on secrets.
func TestOnlyWhatStartsBoxesReadsTheirSecrets(t *testing.T) {
	s := expand(t)
	for on, want := range map[string]string{"off": "BoxExecutionRole", "on": "BoxExecutionRole,RelayRole"} {
		t.Run(on, func(t *testing.T) {
			s.params["BoxFunctions"] = on
			got := slices.DeleteFunc(s.list(s.get(t, "SecretsPolicy", "AWS::IAM::ManagedPolicy")["Roles"]), func(role string) bool { return role == "AWS::NoValue" })
			commontest.EqualIn(t, fmt.Sprintf("BoxFunctions=%s: who reads the secrets of boxes", on), want, strings.Join(got, ","))
		})
	}
}

// ofOwn returns the functions that call AWS without the SDK, and the actions that they need.
func ofOwn() map[string][]string {
	return map[string][]string{
		"functions/internal/boot.(*Function).Invoke":              {"lambda:InvokeFunction"},
		"shared/backend/fleet/ecs.(*Fleet).run":                   ofECS()["RunTask"],
		"shared/backend/fleet/ecs.(*Fleet).register":              ofECS()["RegisterTaskDefinition"],
		"shared/backend/fleet/ecs.(*Fleet).list":                  ofECS()["ListTasks"],
		"shared/backend/fleet/ecs.(*Fleet).Tasks":                 ofECS()["DescribeTasks"],
		"shared/backend/fleet/ecs.(*Fleet).Stop":                  ofECS()["StopTask"],
		"shared/backend/relayserver.(*Connections).ask":           {"execute-api:ManageConnections"},
		"shared/backend/fleet/lambda.(*Fleet).invoke":             {"lambda:InvokeFunction"},
		"shared/backend/native/eventbridge.(*Scheduler).Schedule": {"scheduler:CreateSchedule", "iam:PassRole"}, // PassRole is for the schedules' role
		"shared/backend/native/eventbridge.(*Scheduler).Cancel":   {"scheduler:DeleteSchedule"},
		"functions/internal/boot.readParameters":                  {"ssm:GetParameters"},
		"functions/internal/boot.readSecret":                      {"secretsmanager:GetSecretValue"},
		"main.keptTickets":                                        {"ssm:GetParameters"},
		"main.keepTickets":                                        {"ssm:PutParameter"},
		"main.servedTickets":                                      {"lambda:GetFunctionConfiguration"},
		"main.runner":                                             {"s3:PutObject", "s3:DeleteObject"},
		"functions/wiring/webconsole.(*Logs).ask":                 {"logs:StartQuery", "logs:GetQueryResults", "logs:StopQuery"},
		"shared/backend/bucket.(*Bucket).pointer":                 {"s3:GetObject", "s3:ListBucket"}, // with the right ListBucket, S3 answers that an object is missing
		"shared/backend/bucket.(*Bucket).Room":                    {"s3:PutObject"},
		"shared/backend/bucket.(*Bucket).Commit":                  {"s3:PutObject", "s3:DeleteObject"},
		"shared/backend/bucket.(*Bucket).Forget":                  {"s3:DeleteObject"},
	}
}

// linked lists the IAM actions that each deployed function may need. The linker drops
// methods that no code can call, so the SDK methods in a program are all that it may
// call.
func linked(t *testing.T) map[string][]string {
	t.Helper()
	operation := regexp.MustCompile(`^github.com/aws/aws-sdk-go-v2/service/(\w+)\.\(\*Client\)\.([A-Z]\w+)$`)
	all, functions, dir := map[string][]string{}, []string{"Http", "Socket", "Relay", "Sweep", "Oauth", "Console", "Setup"}, t.TempDir()
	args := []string{"build", "-trimpath", "-tags", "lambda.norpc,aws", "-o", dir}
	for _, f := range functions {
		args = append(args, "../../functions/"+strings.ToLower(f))
	}
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, f := range functions {
		symbols, err := exec.CommandContext(t.Context(), "go", "tool", "nm", filepath.Join(dir, strings.ToLower(f))).Output()
		commontest.OK(t, err)
		for line := range strings.Lines(string(symbols)) {
			fields := strings.Fields(line)
			name := fields[len(fields)-1]
			if m := operation.FindStringSubmatch(name); m != nil && m[2] != "DescribeEndpoints" { // part of discovery, which is off
				all[f] = append(all[f], m[1]+":"+m[2])
			}
			all[f] = append(all[f], ofOwn()[strings.TrimPrefix(name, "github.com/dormouse-mcp/dormouse/")]...)
		}
		slices.Sort(all[f])
		all[f] = slices.Compact(all[f])
	}
	return all
}

func TestEachFunctionMayDoWhatItCallsAndNothingElse(t *testing.T) {
	t.Parallel()
	needs, has := linked(t), granted(t, expand(t))
	var together []string
	for f, needed := range needs {
		var got []string
		for _, s := range has[f] {
			got = append(got, s.actions...)
		}
		slices.Sort(got)
		together = append(together, needed...)
		// Lambda itself needs these rights in the function's role.
		want := append(slices.Clone(needed), "logs:CreateLogStream", "logs:PutLogEvents")
		slices.Sort(want)
		commontest.SameIn(t, fmt.Sprintf("%s: needed (-) and granted (+)", f), want, slices.Compact(got))
	}
	known := called(t)
	if len(known) < 5 {
		t.Errorf("the sources name %v only, so this test shows nothing of them", known)
	}
	for _, action := range known {
		if !slices.Contains(together, action) {
			t.Errorf("the sources call %s: give it a line in ofOwn, and the right in the template", action)
		}
	}
}

// indexes returns the indexes that the store reads, by operation.
func indexes(t *testing.T) map[string][]string {
	t.Helper()
	// Functions call only one of the methods that scan an index: Due.
	names, all := map[string]string{}, map[string][]string{"dynamodb:Scan": {"due"}}
	var asked [][2]string // operation, name of a constant
	for name, f := range sources(t) {
		if filepath.ToSlash(filepath.Dir(name)) != "shared/store/dynamostore" {
			continue
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ValueSpec:
				for i, value := range n.Values {
					if lit, ok := value.(*ast.BasicLit); ok {
						names[n.Names[i].Name] = strings.Trim(lit.Value, `"`)
					}
				}
			case *ast.CompositeLit:
				of, _ := n.Type.(*ast.SelectorExpr)
				for _, e := range n.Elts {
					kv, ok := e.(*ast.KeyValueExpr)
					if !ok || of == nil || fmt.Sprint(kv.Key) != "IndexName" {
						continue
					}
					if call, ok := kv.Value.(*ast.CallExpr); ok { // aws.String(NAME)
						asked = append(asked, [2]string{strings.TrimSuffix(of.Sel.Name, "Input"), fmt.Sprint(call.Args[0])})
					}
				}
			}
			return true
		})
	}
	for _, a := range asked {
		all["dynamodb:"+a[0]] = append(all["dynamodb:"+a[0]], names[a[1]])
	}
	return all
}

// An index is a resource of its own: a right on the table does not include it.
func TestWhoMayAskTheTableMayAskItsIndexes(t *testing.T) {
	known := indexes(t)
	if len(known) < 2 {
		t.Fatalf("the store asks %v only, so this test shows nothing", known)
	}
	for f, statements := range granted(t, expand(t)) {
		for action, names := range known {
			var on []string
			for _, st := range statements {
				if slices.Contains(st.actions, action) {
					on = append(on, st.resources...)
				}
			}
			for _, index := range names {
				if len(on) > 0 && !slices.Contains(on, "Table.Arn/index/"+index) {
					t.Errorf("%s may %s on %v, and not on the index %s", f, action, on, index)
				}
			}
		}
	}
}

func TestEveryRightNamesItsResource(t *testing.T) {
	s := expand(t)
	whole := []string{"ecr:GetAuthorizationToken", "ecs:ListTasks", "logs:GetQueryResults", "logs:StopQuery"} // have no resource that could be named
	all := granted(t, s)
	all["boxes"] = s.starts(t)
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

// A hostile server in a function may get at the function's role.
func TestABoxAsAFunctionMayWriteItsLogAndNothingElse(t *testing.T) {
	s := expandAs(t, "boxes.yaml")
	s.params["Name"] = "stack"
	role := s.get(t, "BoxRole", "AWS::IAM::Role")
	commontest.EqualIn(t, "the role has policies that are not in the template", false, role["ManagedPolicyArns"] != nil)
	var all []statement
	for _, p := range role["Policies"].([]any) {
		all = append(all, s.statements(dig(p, "PolicyDocument"))...)
	}
	if len(all) != 1 || !slices.Equal(all[0].actions, []string{"logs:CreateLogStream", "logs:PutLogEvents"}) || len(all[0].resources) != 1 || !strings.HasSuffix(all[0].resources[0], ":log-group:/dormouse/stack/box:*") {
		t.Errorf("the role may do %v", all)
	}
	for name, r := range s.resources {
		if r["Type"] == "AWS::IAM::ManagedPolicy" {
			t.Errorf("%s is for boxes too", name)
		}
	}
	for _, size := range []string{"512", "1024", "2048"} {
		f := s.get(t, "BoxFunction"+size, "AWS::Lambda::Function")
		commontest.EqualIn(t, size+" has the role", "BoxRole.Arn", s.value(f["Role"]))
		if f["Environment"] != nil {
			t.Errorf("%s has an environment, which its servers might read", size)
		}
		commontest.EqualIn(t, size+" has the isolation", "PER_TENANT", dig(f, "TenancyConfig", "TenantIsolationMode"))
		commontest.EqualIn(t, "MB of "+size, size, fmt.Sprint(f["MemorySize"]))
		commontest.EqualIn(t, size+" is invoked again", "0", fmt.Sprint(s.get(t, "BoxEvents"+size, "AWS::Lambda::EventInvokeConfig")["MaximumRetryAttempts"]))
	}
}

// The name of another stack may begin with the name of this one. The things of that stack must
// be out of reach.
func TestAStackWhoseNameBeginsAlikeIsOutOfReach(t *testing.T) {
	s := expand(t)
	const family = "0123456789abcdef"
	for who, statements := range granted(t, s) {
		for _, st := range statements {
			for _, resource := range st.resources {
				_, pattern, _ := strings.Cut(resource, "AWS::AccountId:")
				pattern = strings.NewReplacer("[", `\[`).Replace(pattern)
				for _, other := range []string{"stack-box", "stack-box-" + family[:12], "stack-http", "stack2", "stack-x"} {
					for _, thing := range []string{
						"function:" + other + "-http", "function:" + other + "-box-512", "function:" + other + "-socket:7", "task-definition/" + other + "-box-" + family, "task-definition/" + other + "-box-" + family + ":3",
						"schedule/" + other + "/x", "parameter/" + other + "/x", "secret:" + other + "/x-AbCdEf", "parameter/dormouse.tickets/" + other, "log-group:/dormouse/" + other + "/box:log-stream:x",
					} {
						// IAM's * also matches a slash.
						if reached, err := path.Match(strings.ReplaceAll(pattern, "/", "\x00"), strings.ReplaceAll(thing, "/", "\x00")); err != nil || reached && pattern != "" {
							t.Errorf("%s may %v on %s, which is the stack %s: %v", who, st.actions, thing, other, err)
						}
					}
				}
			}
		}
	}
	// The things of the stack itself are in reach.
	starts := granted(t, s)["Http"]
	for _, own := range []string{"task-definition/stack-box-" + family, "task-definition/stack-box-" + family + ":3", "function:stack-box-2048"} {
		if !slices.ContainsFunc(starts, func(st statement) bool {
			return slices.ContainsFunc(st.resources, func(resource string) bool {
				_, pattern, _ := strings.Cut(resource, "AWS::AccountId:")
				ok, _ := path.Match(strings.ReplaceAll(pattern, "/", "\x00"), strings.ReplaceAll(own, "/", "\x00"))
				return ok
			})
		}) {
			t.Errorf("http may not start %s", own)
		}
	}
}
