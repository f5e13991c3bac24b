package stack_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// packages returns the packages of SAM to install, with their versions.
func packages() []string { return []string{"aws-sam-cli==1.170.0", "cfn-lint==1.58.0"} }

const howToGetSAM = `these tests run the commands sam, aws and cfn-lint, and ministack, which they install into .tools: install Python 3.10 or newer with venv and pip ("apt-get install python3-venv"), and see that a package index is within reach`

type sam struct{ python string }

// tools returns the SAM command, which it installs once. Concurrent runs wait for the
// first one.
func tools(t *testing.T) sam {
	t.Helper()
	dir, err := install(t.Context(), "sam", packages())
	if err != nil {
		t.Fatalf("%v\n%s", err, howToGetSAM)
	}
	return sam{filepath.Join(dir, "bin", "python")}
}

// install returns a folder below .tools/NAME with these packages of PyPI.
func install(ctx context.Context, name string, packages []string) (string, error) {
	all, err := filepath.Abs(root(".tools", name))
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(all, 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(all, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	dir := filepath.Join(all, strings.ReplaceAll(strings.Join(packages, "-"), "==", "-"))
	stamp := filepath.Join(dir, ".installed")
	if _, err := os.Stat(stamp); err == nil {
		return dir, nil
	}
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	pip := append([]string{filepath.Join(dir, "bin", "python"), "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"}, packages...)
	for _, command := range [][]string{{"python3", "-m", "venv", dir}, pip} {
		if out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("%s: %w\n%s", strings.Join(command, " "), err, out)
		}
	}
	return dir, os.WriteFile(stamp, nil, 0o644)
}

// withAWS returns a PATH that begins with the real aws command.
func withAWS(t *testing.T) string {
	t.Helper()
	dir, err := install(t.Context(), "aws", []string{"awscli==1.46.3"})
	if err != nil {
		t.Fatalf("%v\n%s", err, howToGetSAM)
	}
	programs := t.TempDir() // the folder of the command has a python3 too
	commontest.OK(t, os.Symlink(filepath.Join(dir, "bin", "aws"), filepath.Join(programs, "aws")))
	return programs + ":" + os.Getenv("PATH")
}

// run returns the output of a program, which must succeed.
func run(t *testing.T, name string, args ...string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "AWS_DEFAULT_REGION=us-east-1", "SAM_CLI_TELEMETRY=0")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s%s", strings.Join(args, " "), err, &stdout, &stderr)
	}
	return stdout.Bytes()
}

// build makes a program as make build-…Function does, for this machine.
func build(t *testing.T, to, from string, env ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w", "-tags", "lambda.norpc,aws", "-o", to, from) //nolint:gosec // our own folders
	cmd.Env = append(append(os.Environ(), "CGO_ENABLED=0"), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

type object = map[string]any

// stack is the template in the form that CloudFormation gets.
type stack struct {
	params     map[string]string
	allowed    map[string][]string // values that a parameter may have
	conditions object
	mappings   object
	resources  map[string]object
}

// expansions has what testdata/expand.py made of a template and values of parameters. Each is made
// once for all tests of a run, which do not run in parallel.
var expansions = map[string][]byte{} //nolint:gochecknoglobals // made once for all tests

// expand returns the expanded template with the parameters' defaults.
func expand(t *testing.T) stack {
	t.Helper()
	return expandAs(t, root("template.yaml"))
}

// expandAs returns another template, or one with other values of parameters.
func expandAs(t *testing.T, file string, values ...string) stack {
	t.Helper()
	of := strings.Join(append([]string{file}, values...), " ")
	if expansions[of] == nil {
		expansions[of] = run(t, tools(t).python, append([]string{filepath.Join("testdata", "expand.py"), file}, values...)...)
	}
	var template struct {
		Parameters map[string]struct {
			Default       any
			AllowedValues []any
		}
		Conditions object
		Mappings   object
		Resources  map[string]object
	}
	commontest.OK(t, json.Unmarshal(expansions[of], &template))
	s := stack{
		params: map[string]string{"AWS::StackName": "stack"}, allowed: map[string][]string{},
		conditions: template.Conditions, mappings: template.Mappings, resources: template.Resources,
	}
	for name, p := range template.Parameters {
		s.params[name] = fmt.Sprint(p.Default)
		for _, v := range p.AllowedValues {
			s.allowed[name] = append(s.allowed[name], fmt.Sprint(v))
		}
	}
	return s
}

// nested returns a stack in the stack, with the parameters that it gets.
func (s stack) nested(t *testing.T, name string) stack {
	t.Helper()
	properties := s.get(t, name, "AWS::CloudFormation::Stack")
	inner := expandAs(t, root(s.value(properties["TemplateURL"])))
	for parameter, value := range properties["Parameters"].(object) {
		if _, known := inner.params[parameter]; !known {
			t.Errorf("%s gets %s, which its template does not have", name, parameter)
		}
		inner.params[parameter] = s.value(value)
	}
	return inner
}

// get returns the properties of a resource.
func (s stack) get(t *testing.T, name, kind string) object {
	t.Helper()
	r, ok := s.resources[name]
	if !ok || r["Type"] != kind {
		t.Fatalf("%s is a %v, want a %s", name, r["Type"], kind)
	}
	properties, _ := r["Properties"].(object)
	return properties
}

// dig returns a value inside nested objects, nil if there is none.
func dig(in any, keys ...string) any {
	for _, k := range keys {
		m, _ := in.(object)
		in = m[k]
	}
	return in
}

// value returns CloudFormation's value as text: a resource as its name, an attribute as
// NAME.ATTRIBUTE, a list as its items separated by commas.
func (s stack) value(v any) string {
	switch v := v.(type) {
	case []any:
		return strings.Join(s.list(v), ",")
	case object:
		for function, arg := range v {
			return s.call(function, arg)
		}
		return ""
	default:
		return fmt.Sprint(v)
	}
}

// list returns CloudFormation's value as a list of texts.
func (s stack) list(v any) []string {
	items, ok := v.([]any)
	if !ok {
		return strings.Split(s.value(v), ",")
	}
	var all []string
	for _, item := range items {
		all = append(all, s.value(item))
	}
	return all
}

// call evaluates a function of CloudFormation.
func (s stack) call(function string, arg any) string {
	list, _ := arg.([]any)
	switch function {
	case "Ref":
		return s.ref(fmt.Sprint(arg))
	case "Fn::GetAtt":
		return strings.Join(s.list(arg), ".")
	case "Fn::Join":
		return strings.Join(s.list(list[1]), s.value(list[0]))
	case "Fn::If":
		if s.holds(object{"Condition": list[0]}) {
			return s.value(list[1])
		}
		return s.value(list[2])
	case "Fn::FindInMap":
		return fmt.Sprint(dig(s.mappings, s.list(arg)...))
	case "Fn::Split":
		return strings.Join(strings.Split(s.value(list[1]), s.value(list[0])), ",")
	case "Fn::Sub":
		text, own := arg, object{}
		if list != nil {
			text, own = list[0], list[1].(object)
		}
		return os.Expand(fmt.Sprint(text), func(name string) string {
			if v, ok := own[name]; ok {
				return s.value(v)
			}
			return s.ref(name)
		})
	}
	panic("the tests cannot evaluate " + function)
}

// ref returns the value of a parameter, or the name of a resource itself.
func (s stack) ref(name string) string {
	if v, ok := s.params[name]; ok {
		return v
	}
	return name
}

// holds evaluates a condition of CloudFormation.
func (s stack) holds(condition any) bool {
	for function, arg := range condition.(object) {
		list, _ := arg.([]any)
		switch function {
		case "Condition":
			return s.holds(s.conditions[fmt.Sprint(arg)])
		case "Fn::Equals":
			return s.value(list[0]) == s.value(list[1])
		case "Fn::Not":
			return !s.holds(list[0])
		case "Fn::And":
			return s.holds(list[0]) && s.holds(list[1])
		case "Fn::Or":
			return s.holds(list[0]) || s.holds(list[1])
		}
	}
	panic(fmt.Sprintf("the tests cannot evaluate %v", condition))
}
