package main

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// asked runs make deploy for a new stack with these answers, and returns what the user sees,
// the settings that are kept, and the error.
func asked(t *testing.T, a *account, answers ...string) (out, kept string, err error) {
	t.Helper()
	for _, name := range []string{"AWS_REGION", "AWS_DEFAULT_REGION"} {
		t.Setenv(name, "") // the test sets it
	}
	out, err = deploy(t, a, "default", func(p *program) { p.in = strings.NewReader(strings.Join(answers, "\n") + "\n") }, "up")
	text, failed := os.ReadFile("samconfig.toml")
	if failed != nil {
		t.Fatal(failed)
	}
	return out, string(text), err
}

func TestAnswersAreKeptAndDeployed(t *testing.T) {
	a := usual(t)
	a.replies["aws cloudformation describe-stacks --stack-name dormouse --"] = []string{noStack}
	a.replies["aws cloudformation describe-stacks --stack-name mcp"] = []string{noStack, oldStack}
	delete(a.replies, "aws cloudformation describe-stacks")
	out, kept, err := asked(t, a, "mcp", "us-east-2", "oauth", "mcp.example.com", "arn:aws:acm:us-east-2:1:certificate/1", "", "", "ops@example.com")
	if err != nil {
		t.Fatalf("%v; the user sees %s", err, out)
	}
	want := `
[default.global.parameters]
stack_name = "mcp"
region = "us-east-2"
[default.deploy.parameters]
parameter_overrides = "Access=oauth AlarmEmail=ops@example.com CertificateArn=arn:aws:acm:us-east-2:1:certificate/1 DomainName=mcp.example.com"
resolve_s3 = true
s3_prefix = "mcp"
[dev.global.parameters]
stack_name = "dormouse-dev"
[dev.deploy.parameters]
parameter_overrides = "Spot=true IdleSeconds=30"
[prod.global.parameters]
stack_name = "dormouse"
[prod.deploy.parameters]
confirm_changeset = true
parameter_overrides = "Protect=on"
[long.global.parameters]
stack_name = "the-hosted-servers-of-a-department-with-a-long-long-name"
`
	if d := cmp.Diff(want, kept); d != "" {
		t.Errorf("samconfig.toml, wanted (-) and kept (+):\n%s", d)
	}
	if got := a.ran("sam deploy "); len(got) != 1 || !strings.Contains(got[0], "DomainName=mcp.example.com") || !strings.Contains(got[0], "Access=oauth") {
		t.Errorf("deployed with %q", got)
	}
	if os.Getenv("AWS_REGION") != "us-east-2" || os.Getenv("AWS_DEFAULT_REGION") != "us-east-2" {
		t.Error("the commands work in another region than the stack")
	}
	if !strings.Contains(out, "region [eu-west-1]: ") {
		t.Errorf("the region of aws is not offered: %s", out)
	}
}

func TestEmptyAnswersTakeDefaultsAndWrongOnesAreAskedAgain(t *testing.T) {
	a := usual(t)
	a.replies["aws cloudformation describe-stacks"] = []string{noStack, noStack, oldStack}
	out, kept, err := asked(t, a, "1st", strings.Repeat("long", 14), "", "mars", "", "everybody", "", "", "vpc-1", "", "subnet-1,subnet-2", "two words", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"1st" has not the form`, "the name of the stack has 56 characters", `"mars" has not the form`, `"everybody" is none of keys, oauth, idp`, "this one is needed", "spaces, quotes"} {
		if strings.Count(out, want) != 1 {
			t.Errorf("the user sees %q %d times in %s", want, strings.Count(out, want), out)
		}
	}
	if !strings.Contains(kept, "stack_name = \"dormouse\"\nregion = \"eu-west-1\"\n") || !strings.Contains(kept, `parameter_overrides = "SubnetIds=subnet-1,subnet-2 VpcId=vpc-1"`) {
		t.Errorf("kept are %s", kept)
	}
}

func TestWithoutAllAnswersNothingIsWrittenOrDeployed(t *testing.T) {
	a := usual(t)
	_, kept, err := asked(t, a, "mcp", "us-east-2")
	if err == nil || !strings.Contains(err.Error(), "nothing was written") || kept != config || len(a.ran("sam")) > 0 {
		t.Errorf("%v, kept %s, ran %q", err, kept, a.log)
	}
}

// The guide asks only at a terminal, only for a new stack, and only if the command names
// no parameters.
func TestNothingIsAskedWithoutATerminalOrNeed(t *testing.T) {
	for want, c := range map[string]struct {
		stack string
		args  []string
	}{
		"the stack is dormouse in eu-west-1, with the defaults": {noStack, []string{"up"}},
		"": {oldStack, []string{"up"}},
	} {
		a := usual(t)
		a.replies["aws cloudformation describe-stacks"] = []string{c.stack, oldStack}
		out, err := deploy(t, a, "default", nil, c.args...)
		if err != nil || want != "" && !strings.Contains(out, want) || strings.Contains(out, "]: ") {
			t.Errorf("%v; the user sees %s", err, out)
		}
	}
	a := usual(t)
	out, err := deploy(t, a, "default", func(p *program) { p.in = strings.NewReader("") }, "up", "Spot=true")
	if err != nil || strings.Contains(out, "first deployment") {
		t.Errorf("who names parameters is asked: %v, %s", err, out)
	}
}

// CloudFormation would refuse a default that breaks its parameter's own rules, but only
// at the first deployment.
func TestEveryParameterOfTheTemplateIsRead(t *testing.T) {
	text, err := os.ReadFile(templateFile)
	if err != nil {
		t.Fatal(err)
	}
	all, err := parameters(string(text))
	if err != nil || len(all) < 20 {
		t.Fatalf("read %d parameters, %v", len(all), err)
	}
	for name, p := range all {
		if p.description == "" {
			t.Errorf("%s has no description", name)
		}
		if err := p.check(p.usual); err != nil {
			t.Errorf("the default of %s: %v", name, err)
		}
	}
	for _, q := range questions(settings{stack: "dormouse"}, "us-east-1") {
		if _, ok := all[q.name]; !ok && q.text == "" {
			t.Errorf("%s is asked, and is no parameter", q.name)
		}
	}
}
