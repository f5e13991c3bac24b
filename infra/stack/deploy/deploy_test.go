package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// account imitates an AWS account behind the command aws, with a log of the commands.
type account struct {
	t       *testing.T
	replies map[string][]string // by the beginning of a command; each reply is used once, and the last one again and again; "!" stands for an error
	log     []string
	servers string // the servers file
}

func (a *account) do(_ context.Context, c command) (string, error) {
	line := c.Name + " " + strings.Join(c.Args, " ")
	if c.Stdin != "" {
		line += " < " + c.Stdin
	}
	a.log = append(a.log, line)
	best := ""
	for key := range a.replies {
		if strings.HasPrefix(line, key) && len(key) > len(best) {
			best = key
		}
	}
	if key, replies := best, a.replies[best]; best != "" {
		if len(replies) > 1 {
			a.replies[key] = replies[1:]
		}
		if said, failed := strings.CutPrefix(replies[0], "!"); failed {
			return "", errors.New(said)
		}
		return replies[0], nil
	}
	if c.Name == "aws" {
		a.t.Errorf("nobody expects %s", line)
	}
	return "", nil
}

// ran returns the commands with a prefix, in order, without the prefix.
func (a *account) ran(prefix string) (all []string) {
	for _, line := range a.log {
		if rest, ok := strings.CutPrefix(line, prefix); ok {
			all = append(all, rest)
		}
	}
	return all
}

// before checks that the first command was run, and before the second.
func (a *account) before(first, second string) {
	a.t.Helper()
	at := func(prefix string) int {
		return slices.IndexFunc(a.log, func(line string) bool { return strings.HasPrefix(line, prefix) })
	}
	if one, two := at(first), at(second); one < 0 || two < one {
		a.t.Errorf("%q is number %d and %q number %d of\n%s", first, one, second, two, strings.Join(a.log, "\n"))
	}
}

const (
	noStack  = "!Stack with id dormouse does not exist"
	outputs  = `"Outputs":[{"OutputKey":"RepositoryUri","OutputValue":"1.dkr.ecr/dormouse-repo","Description":"images"},{"OutputKey":"FirstKey","OutputValue":"bin/dormouse keys create","Description":"a key"},{"OutputKey":"ConsoleUrl","OutputValue":"https://e/console","Description":"the console"},{"OutputKey":"TableName","OutputValue":"tab"},{"OutputKey":"BucketName","OutputValue":"buck"}]`
	oldStack = `{"Stacks":[{"StackStatus":"UPDATE_COMPLETE","Parameters":[{"ParameterKey":"Architecture","ParameterValue":"x86_64"},{"ParameterKey":"SessionHours","ParameterValue":"168"},{"ParameterKey":"Boxes","ParameterValue":"on"}],` + outputs + `}]}`
	noImage  = "!An error occurred (ImageNotFoundException)"
)

func limits(total, free string) string {
	return `{"AccountLimit":{"ConcurrentExecutions":` + total + `,"UnreservedConcurrentExecutions":` + free + `}}`
}

// usual returns an account with a thousand invocations. The arguments are what it says of its stack,
// one after the other; without them, it has none at first.
func usual(t *testing.T, stacks ...string) *account {
	if stacks == nil {
		stacks = []string{noStack, oldStack}
	}
	return &account{t: t, servers: `{"mcpServers": {"x": {"command": "a"}}}`, replies: map[string][]string{
		"aws lambda get-account-settings":        {limits("1000", "1000")},
		"aws cloudformation describe-stacks":     stacks,
		"aws configure get region":               {"eu-west-1"},
		"aws ssm get-parameters-by-path":         {`["apigateway","dynamodb","ecr","fargate","lambda"]`},
		"aws ec2 describe-vpcs":                  {`["vpc-1"]`},
		"aws service-quotas get-service-quota":   {"5.0"},
		"aws iam get-role":                       {"{}"},
		"aws cloudformation list-stack-resource": {`["network"]`},
		"aws lambda put-function-concurrency":    {""},
		"aws ecr describe-images":                {noImage},
		"aws ecr get-login-password":             {"word"},
		"git rev-parse":                          {"0ed538c1a2b3\n"},
		"aws cloudformation update-stack":        {""},
		"aws cloudformation wait":                {""},
		"aws cloudformation describe-stack-reso": {"the-cluster"},
	}}
}

const config = `
[default.global.parameters]
stack_name = "dormouse"
[default.deploy.parameters]
resolve_s3 = true
s3_prefix = "dormouse"
[dev.global.parameters]
stack_name = "dormouse-dev"
[dev.deploy.parameters]
parameter_overrides = "Spot=true LogDays=3"
[prod.global.parameters]
stack_name = "dormouse"
[prod.deploy.parameters]
confirm_changeset = true
parameter_overrides = "Protect=on"
[long.global.parameters]
stack_name = "the-hosted-servers-of-a-department-with-a-long-long-name"
`

// networkFile is an absolute path, because tests change their folder.
var networkFile, _ = filepath.Abs(filepath.Join("..", "network.yaml")) //nolint:gochecknoglobals // read only

// deploy runs the program in a folder with the configuration and the runners.
func deploy(t *testing.T, a *account, section string, set func(*program), args ...string) (string, error) {
	t.Helper()
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{"samconfig.toml": config, "servers.json": a.servers, "bin/linux-arm64/runner": "arm", "bin/linux-amd64/runner": "amd"} {
		commontest.OK(t, os.MkdirAll(filepath.Dir(name), 0o755))
		commontest.OK(t, os.WriteFile(name, []byte(text), 0o600))
	}
	var out bytes.Buffer
	p := program{do: a.do, out: &out, sam: "sam"}
	if set != nil {
		set(&p)
	}
	var err error
	synctest.Test(t, func(t *testing.T) { err = p.run(t.Context(), section, args) })
	return out.String(), err
}

// deployed is deploy without an error.
func deployed(t *testing.T, a *account, section string, set func(*program), args ...string) string {
	t.Helper()
	out, err := deploy(t, a, section, set, args...)
	commontest.OK(t, err)
	return out
}

func TestANewStackLeavesInvocationsForItsBoxes(t *testing.T) {
	a := usual(t)
	out := deployed(t, a, "default", nil, "up")
	commontest.Same(t, []string{"--config-env default --parameter-overrides Architecture=arm64 Concurrency=1000"}, a.ran("sam deploy "))
	// The stack creates the image repository, so the image is pushed after sam deploy.
	a.before("make sam-build ARCH=arm64", "sam deploy")
	a.before("sam deploy", "make image ARCH=arm64 IMAGE=1.dkr.ecr/dormouse-repo:0ed538c1a2b3-1f126023 < word")
	a.before("make image", "aws cloudformation update-stack --stack-name dormouse --use-previous-template")
	commontest.Contains(t, "boxes get their image by", "ParameterKey=RunnerImage,ParameterValue=1.dkr.ecr/dormouse-repo:0ed538c1a2b3-1f126023", a.ran("aws cloudformation update-stack")[0])
	commontest.Contains(t, "the user is told", "a key:\n  bin/dormouse keys create", out)
	commontest.Contains(t, "the user is told", "the console:\n  https://e/console", out)
}

func TestAStackKeepsItsProcessorAndGetsItsImageFirst(t *testing.T) {
	a := usual(t, oldStack)
	deployed(t, a, "dev", nil, "up", "LogDays=60")
	commontest.Same(t, []string{"--config-env dev --parameter-overrides Architecture=x86_64 Concurrency=1000 LogDays=60 RunnerImage=1.dkr.ecr/dormouse-repo:0ed538c1a2b3-a8d8ee71 Spot=true"}, a.ran("sam deploy "))
	a.before("make sam-build ARCH=x86_64", "sam deploy")
	a.before("make image ARCH=x86_64", "sam deploy")

	// The tag tells apart what the variables of make put into the image.
	locks, tags := t.TempDir(), map[string]bool{}
	for i, set := range [][2]string{{"ARCH", ""}, {"BAKE", ""}, {"LOCKS", locks}, {"LOCKS", locks}, {"SERVERS", networkFile}} {
		t.Setenv(set[0], set[1])
		commontest.OK(t, os.WriteFile(filepath.Join(locks, "a"), []byte{byte(i)}, 0o600))
		a = usual(t, oldStack)
		deployed(t, a, "dev", nil, "up")
		tags[a.ran("sam deploy ")[0]] = true
	}
	commontest.Equal(t, 5, len(tags))

	a = usual(t, oldStack)
	a.replies["aws ecr describe-images"] = []string{"{}"}
	deployed(t, a, "dev", func(p *program) { p.arch = "arm64" }, "up")
	if got := a.ran("sam deploy ")[0]; !strings.Contains(got, "Architecture=arm64") || len(a.ran("make image")) > 0 {
		t.Errorf("a caller's own processor, and an image that is there: %s, %q", got, a.log)
	}

	a = usual(t)
	deployed(t, a, "default", nil, "up", "RunnerImage=example.com/r@sha256:0")
	if got := a.ran("sam deploy ")[0]; !strings.Contains(got, "RunnerImage=example.com/r@sha256:0") || len(a.ran("make image")) > 0 {
		t.Errorf("an image of the user's own: %s, %q", got, a.log)
	}

	// An upgrade from a release without Concurrency keeps the share that it had.
	a = usual(t)
	a.replies["aws lambda get-account-settings"] = []string{limits("1000", "400")}
	a.replies["aws cloudformation describe-stacks"] = []string{strings.Replace(oldStack, `{"ParameterKey":"Boxes"`, `{"ParameterKey":"HttpConcurrency","ParameterValue":"500"},{"ParameterKey":"RelayConcurrency","ParameterValue":"100"},{"ParameterKey":"Boxes"`, 1)}
	deployed(t, a, "default", nil, "up")
	commontest.Contains(t, "", "Concurrency=1000 ", a.ran("sam deploy ")[0])

	// A share that was chosen in a smaller account stays, and the user is told.
	for kept, told := range map[string]bool{"0": false, "10": true, "1000": false} {
		a = usual(t)
		a.replies["aws lambda get-account-settings"] = []string{limits("1000", "400")}
		a.replies["aws cloudformation describe-stacks"] = []string{strings.Replace(oldStack, `{"ParameterKey":"Boxes"`, `{"ParameterKey":"Concurrency","ParameterValue":"`+kept+`"},{"ParameterKey":"Boxes"`, 1)}
		out := deployed(t, a, "default", nil, "up")
		if strings.Contains(a.ran("sam deploy ")[0], "Concurrency=") || strings.Contains(out, "ARGS=Concurrency=") != told {
			t.Errorf("Concurrency=%s: the user is told %s", kept, out)
		}
	}
}

// network.yaml names zones where some lack Fargate, and an account may not have them.
func TestTheZonesOfTheNetworkAreThoseOfTheAccount(t *testing.T) {
	text, err := os.ReadFile(networkFile)
	commontest.OK(t, err)
	for region, needed := range withFargate {
		for _, zone := range needed {
			if !strings.Contains(string(text), zone) || !strings.Contains(string(text), region) {
				t.Errorf("network.yaml does not name %s of %s", zone, region)
			}
		}
		for zones, good := range map[string]bool{`["` + strings.Join(needed, `","`) + `"]`: true, `["` + needed[0] + `"]`: false} {
			t.Setenv("AWS_REGION", region)
			a := usual(t)
			a.replies["aws ec2 describe-availability-zones"] = []string{zones}
			if _, err := deploy(t, a, "default", nil, "doctor"); (err == nil) != good || err != nil && !strings.Contains(err.Error(), "give VpcId and SubnetIds") {
				t.Errorf("%s with %s: %v", region, zones, err)
			}
		}
	}
}

// The doctor needs rights to read, and says all that would fail at once.
func TestTheDoctorSaysWhatWouldFail(t *testing.T) {
	a := usual(t)
	a.replies["aws lambda get-account-settings"] = []string{limits("10", "10")}
	a.replies["aws ec2 describe-vpcs"] = []string{`["1","2","3","4","5"]`}
	a.replies["aws ssm get-parameters-by-path"] = []string{`["apigateway","dynamodb","ecr","lambda"]`}
	a.replies["aws iam get-role"] = []string{"!An error occurred (NoSuchEntity)"}
	a.replies["aws apigateway get-account"] = []string{"None"}
	a.replies["aws secretsmanager get-secret-value"] = []string{`{"one":"` + strings.Repeat("x", 2000) + `"}`}
	out, err := deploy(t, a, "default", nil, "doctor", "AccessLogs=on", "ConnectSecrets=of/connect")
	for _, want := range []string{"10 invocations", "5 VPCs", "has no fargate", "AccessLogs=on needs a role", "Lambda takes 4096"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
	commontest.Contains(t, "the doctor says", "create-service-linked-role", out)
	for _, line := range a.log {
		if verb := strings.Fields(line)[2]; !regexp.MustCompile("^(get|describe|list)").MatchString(verb) {
			t.Errorf("the doctor does %s", line)
		}
	}

	a = usual(t)
	a.replies["aws ec2 describe-vpcs"], a.replies["aws lambda get-account-settings"] = []string{"!AccessDenied of VPCs"}, []string{"!AccessDenied of Lambda"}
	if _, err = deploy(t, a, "default", nil, "doctor"); err == nil || !strings.Contains(err.Error(), "of VPCs") || !strings.Contains(err.Error(), "of Lambda") {
		t.Errorf("what the doctor may not see: %v", err)
	}

	a = usual(t)
	a.replies["aws ec2 describe-vpc-endpoints"] = []string{"[]"}
	out, err = deploy(t, a, "default", nil, "doctor", "VpcId=vpc-1", "SubnetIds=subnet-1", "PublicIp=false")
	if err != nil || !strings.Contains(out, "no gateway endpoint for S3") || !strings.Contains(out, "nothing was found") {
		t.Errorf("%v, %s", err, out)
	}
}

// What would fail in the middle of a deployment is refused before anything is built.
func TestWhatWouldFailLaterIsRefusedFirst(t *testing.T) {
	const thirdParty = `{"mcpServers": {"x": {"command": "a"}}, "x-dormouse": {"connect": {"github": {
		"authorize": "https://example.com/a", "token": "https://example.com/t", "client_id": "c", "client_secret": "${GITHUB_SECRET}"}}}}`
	token := func(value string) string {
		return `{"mcpServers": {"x": {"command": "a", "env": {"TOKEN": "` + value + `"}}}}`
	}
	const stack, role, secret = "aws cloudformation describe-stacks", "aws apigateway get-account", "aws secretsmanager get-secret-value"
	for name, c := range map[string]struct {
		asked, reply string
		servers      string // "" for one that is good
		args         string
		want         string // "" if nothing is refused
	}{
		"a stack that failed":        {stack, strings.Replace(oldStack, "UPDATE_COMPLETE", "ROLLBACK_COMPLETE", 1), "", "up", "cannot be updated"},
		"a deletion of nothing":      {stack, noStack, "", "down", "no stack dormouse"},
		"nobody is signed in":        {stack, "!Unable to locate credentials", "", "up", "Unable to locate cred"},
		"few invocations":            {"aws lambda get-account-settings", limits("10", "10"), "", "up", "aws service-quotas request-service-quota-increase"},
		"no role for access logs":    {role, "None", "", "up AccessLogs=on", "aws apigateway update-account"},
		"a variable that is not set": {"", "", token("${GITHUB_TOKEN}"), "up", "GITHUB_TOKEN is not set"},
		"a server in Go, no program": {"", "", `{"mcpServers": {"x": {"x-dormouse": {"native": "counter"}}}}`, "up", "make deploy GO_SERVERS=../hello"},
		"a secret of others":         {"", "", token("ssm:/other/github"), "up", "put it below dormouse/"},
		"a secret of the stack":      {"", "", token("secretsmanager:dormouse/github"), "up", ""},
		"a third party, no secret":   {"", "", thirdParty, "up", "x-dormouse.connect: github: client_secret has a variable that is not set"},
		"a third party, the secret":  {secret, `{"github":"word"}`, thirdParty, "up ConnectSecrets=of/connect", ""},
	} {
		t.Run(name, func(t *testing.T) {
			a := usual(t)
			if c.asked != "" {
				a.replies[c.asked] = []string{c.reply}
			}
			a.servers = cmp.Or(c.servers, a.servers)
			_, err := deploy(t, a, "default", nil, strings.Fields(c.args)...)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "word") || len(a.ran("sam")) > 0) {
				t.Errorf("want %q: %v; ran %q", c.want, err, a.log)
			}
			if got := a.ran(secret); len(got) > 1 || len(got) == 1 && !strings.Contains(got[0], "--secret-id of/connect ") {
				t.Errorf("asked for %q", got)
			}
		})
	}
}

func TestADeletionEndsWhatRunsFirstAndLeavesNothingOfItsOwn(t *testing.T) {
	for _, purge := range []bool{false, true} {
		a := usual(t, oldStack)
		a.replies["aws cloudformation list-stacks"], a.replies["aws cloudformation delete-stack"] = []string{`["dormouse-boxes"]`}, []string{""}
		a.replies["aws ecs list-tasks --cluster the-cluster --query"] = []string{`["t1","t2"]`, `["t2"]`, `[]`}
		// Stopped tasks stay in the cluster until their networks are removed.
		a.replies["aws ecs list-tasks --cluster the-cluster --desired-status STOPPED"] = []string{`["t1","t2"]`}
		a.replies["aws ecs describe-tasks"] = []string{`["t1"]`, `["t1","t2"]`, `["t2"]`, `[]`}
		a.replies["aws ecs stop-task"] = []string{""}
		a.replies["aws ecs list-task-definition-families"] = []string{`["dormouse-box-0123456789abcdef","dormouse-box-two-box-0123456789abcdef"]`}
		a.replies["aws ecs list-task-definitions"] = []string{`["d:1","d:2"]`}
		a.replies["aws ecs deregister-task-definition"], a.replies["aws ecs delete-task-definitions"] = []string{""}, []string{""}
		a.replies["aws s3 rb"], a.replies["aws dynamodb"] = []string{""}, []string{""}
		a.replies["aws ssm delete-parameters"] = []string{""}
		versions := []string{`{"Objects":[{"Key":"k","VersionId":"1"}]}`, `{"Objects":[{"Key":"k","VersionId":"2"}]}`, `{"Objects":[]}`}
		a.replies["aws s3api list-object-versions --bucket buck"], a.replies["aws s3api delete-objects --bucket buck"] = versions, []string{"null"}
		out := deployed(t, a, "default", func(p *program) { p.purge, p.yes = purge, true }, "down")
		a.before("aws lambda put-function-concurrency --function-name dormouse-http --reserved-concurrent-executions 0", "aws ecs list-tasks")
		a.before("aws cloudformation delete-stack --stack-name dormouse-boxes", "aws cloudformation wait stack-delete-complete --stack-name dormouse-boxes")
		a.before("aws cloudformation wait stack-delete-complete", "sam delete")
		a.before("aws ecs list-tasks", "sam delete --config-env default --no-prompts")
		if asked := a.ran("aws ecs describe-tasks"); len(asked) != 4 || !strings.Contains(asked[0], "--tasks t1 t2 ") {
			t.Errorf("asked %q whether they have ended", asked)
		}
		a.before("sam delete", "aws ecs list-task-definition-families")
		commontest.EqualIn(t, "functions that start no box any more", 3, len(a.ran("aws lambda put-function-concurrency")))
		commontest.EqualIn(t, "stopped tasks", 2, len(a.ran("aws ecs stop-task --cluster the-cluster --task ")))
		commontest.Same(t, []string{"d:1", "d:2"}, a.ran("aws ecs delete-task-definitions --task-definitions "))
		if gone := len(a.ran("aws s3 rb s3://buck --force")) + len(a.ran("aws dynamodb delete-table --table-name tab")) + len(a.ran("aws ssm delete-parameters --names /dormouse.tickets/dormouse")); purge != (gone == 3) {
			t.Errorf("purge=%v: %d of table, bucket and secret are deleted", purge, gone)
		}
		var emptied []string // AWS deletes no bucket in which a version is left
		for _, line := range a.ran("aws s3api delete-objects") {
			_, objects, _ := strings.Cut(line, " < ")
			emptied = append(emptied, objects)
		}
		if purge {
			a.before("aws s3api delete-objects", "aws s3 rb")
		}
		if d := gocmp.Diff(versions[:2], emptied); purge && d != "" || !purge && emptied != nil {
			t.Errorf("purge=%v: deleted %q", purge, emptied)
		}
		if told := strings.Contains(out, "aws dynamodb delete-table --table-name tab"); told == purge {
			t.Errorf("purge=%v: the user is told %s", purge, out)
		}
	}
}

// A stack is deleted by who types its name, and a protected one by nobody.
func TestADeletionIsConfirmed(t *testing.T) {
	for typed, want := range map[string]string{"": "there is no terminal", "y\n": "not confirmed", "dormouse-dev\n": "not confirmed"} {
		a := usual(t, oldStack)
		out, err := deploy(t, a, "default", func(p *program) {
			if typed != "" {
				p.in, p.purge = strings.NewReader(typed), true
			}
		}, "down")
		if err == nil || !strings.Contains(err.Error(), want) || len(a.ran("aws lambda put"))+len(a.ran("sam")) > 0 {
			t.Errorf("%q: %v, ran %q", typed, err, a.log)
		}
		if typed != "" && !strings.Contains(out, "with all sessions, keys and workspaces. Type its name, dormouse,") {
			t.Errorf("the user is asked %s", out)
		}
	}
	a := usual(t, strings.Replace(oldStack, `{"StackStatus"`, `{"EnableTerminationProtection":true,"StackStatus"`, 1))
	if _, err := deploy(t, a, "prod", func(p *program) { p.yes = true }, "down"); err == nil || !strings.Contains(err.Error(), "make deploy CONFIG=prod ARGS=Protect=off") {
		t.Error(err)
	}
}

// sam asks the person at the terminal, and where there is none, nothing is built in vain. A
// change set that nobody executed is no stack.
func TestAChangeIsConfirmedAtTheTerminal(t *testing.T) {
	atTerminal := func(p *program) { p.in = strings.NewReader("") }
	a := usual(t)
	if _, err := deploy(t, a, "prod", nil, "up"); err == nil || !strings.Contains(err.Error(), "no terminal") || len(a.log) > 0 {
		t.Errorf("%v, ran %q", err, a.log)
	}
	reviewed := `{"Stacks":[{"StackStatus":"REVIEW_IN_PROGRESS"}]}`
	a = usual(t, noStack, reviewed)
	if _, err := deploy(t, a, "prod", atTerminal, "up", "Spot=true"); err == nil || !strings.Contains(err.Error(), "nothing is deployed") {
		t.Error(err)
	}
	// An update that is not confirmed is told by the time of the last one.
	a = usual(t, strings.Replace(oldStack, `{"StackStatus"`, `{"LastUpdatedTime":"2026-11-28T12:00:00Z","StackStatus"`, 1))
	if out, err := deploy(t, a, "prod", atTerminal, "up"); err != nil || !strings.Contains(out, "is as it was") || strings.Contains(out, "keys create") {
		t.Errorf("%v, %s", err, out)
	}
	for _, set := range []func(*program){atTerminal, func(p *program) { p.yes = true }} {
		kept := strings.Replace(oldStack, `{"ParameterKey":"Boxes"`, `{"ParameterKey":"Protect","ParameterValue":"on"},{"ParameterKey":"RestoredTable","ParameterValue":"other"},{"ParameterKey":"Boxes"`, 1)
		a = usual(t, reviewed, kept)
		a.replies["aws cloudformation update-termination-protection"], a.replies["aws dynamodb update-table"] = []string{""}, []string{""}
		a.replies["aws dynamodb describe-table --table-name other"] = []string{"False"}
		deployed(t, a, "prod", set, "up", "Spot=true")
		p := program{}
		set(&p)
		if got := a.ran("sam deploy --config-env prod"); len(got) != 1 || strings.Contains(got[0], "--no-confirm-changeset") != p.yes || !strings.Contains(got[0], "Protect=on") {
			t.Errorf("deployed with %q", got)
		}
		if got := a.ran("aws cloudformation update-termination-protection"); len(got) != 1 || !strings.Contains(got[0], "--enable-termination-protection") {
			t.Errorf("protected by %q", got)
		}
		commontest.Same(t, []string{"--table-name other --deletion-protection-enabled"}, a.ran("aws dynamodb update-table "))
		// Without protection the stack and the table can be deleted.
		a.log, a.replies["aws dynamodb describe-table --table-name other"] = nil, []string{"True"}
		a.replies["aws cloudformation describe-stacks"] = []string{strings.Replace(kept, `"on"},{"ParameterKey":"RestoredTable"`, `"off"},{"ParameterKey":"RestoredTable"`, 1)}
		deployed(t, a, "default", set, "up")
		commontest.Same(t, []string{"--table-name other --no-deletion-protection-enabled"}, a.ran("aws dynamodb update-table "))
	}
}

func TestAStackWhoseFunctionsWouldHaveTooLongNamesIsRefused(t *testing.T) {
	template, err := os.ReadFile("../boxes.yaml")
	commontest.OK(t, err)
	longest := 0
	for _, m := range regexp.MustCompile(`FunctionName: !Sub \$\{Name\}(\S+)`).FindAllStringSubmatch(string(template), -1) {
		longest = max(longest, len(m[1]))
	}
	if longest == 0 {
		t.Fatal("boxes.yaml names no function after the stack")
	}
	for length, refused := range map[int]bool{64 - longest: false, 65 - longest: true} {
		commontest.EqualIn(t, fmt.Sprintf("a name of %d characters is refused, when the longest end has %d", length, longest), refused, settings{stack: strings.Repeat("x", length)}.fits() != nil)
	}
	a := usual(t)
	if _, err := deploy(t, a, "long", nil, "up"); err == nil || !strings.Contains(err.Error(), "[long.global.parameters]") || len(a.ran("sam")) > 0 {
		t.Errorf("%v; ran %q", err, a.log)
	}
}

// The program and sam must read the same values from the project's file.
func TestTheProjectsOwnSettingsAreRead(t *testing.T) {
	text, err := os.ReadFile("../../../samconfig.toml")
	commontest.OK(t, err)
	s, err := readSettings(string(text), "dev")
	if err != nil || s.stack != "dormouse-dev" || s.params["Spot"] != "true" {
		t.Errorf("%+v, %v", s, err)
	}
	guided, err := readSettings("version = 0.1\n[default.deploy.parameters]\nstack_name = \"mine\"\nregion = \"eu-west-1\"\ncapabilities = \"CAPABILITY_IAM\"\nparameter_overrides = \"Spot=\\\"false\\\" AlarmEmail=\\\"\\\" ConnectSecrets=\\\"a b\\\"\"\n", "default")
	if err != nil || guided.stack != "mine" || guided.region != "eu-west-1" || guided.params["Spot"] != "false" || guided.params["ConnectSecrets"] != "a b" || len(guided.params) != 3 {
		t.Errorf("what sam deploy --guided writes is read as %+v, %v", guided, err)
	}
	for _, wrong := range []string{`parameter_overrides = ["A=B"]`, `parameter_overrides = "A"`} {
		if _, err := readSettings("[x.global.parameters]\nstack_name = \"x\"\n[x.deploy.parameters]\n"+wrong, "x"); err == nil {
			t.Errorf("%s is taken", wrong)
		}
	}
	if _, err := readSettings(string(text), "nobody"); err == nil {
		t.Error("a section that is not there is taken")
	}
}
