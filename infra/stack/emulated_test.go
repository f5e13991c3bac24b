//go:build walk

package stack_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	nethttp "net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/dormouse-mcp/dormouse/shared/backend/bucket"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet/ecs"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/dynamostore"
)

// notEmulated returns the types of resources that ministack does not know, which
// docs/aws/checked.md lists. Resources of such a type do nothing there.
func notEmulated() []string {
	return []string{
		"AWS::ApiGatewayV2::RouteResponse", "AWS::ECS::ClusterCapacityProviderAssociations", "AWS::Logs::QueryDefinition",
		"AWS::WAFv2::WebACLAssociation",
	}
}

// An emulator that others wrote creates the template that CloudFormation gets, updates it
// with every option, and deletes it.
func TestTheStackIsCreatedUpdatedAndDeleted(t *testing.T) {
	e := emulate(t)
	before := map[string][]string{}
	e.do(&before, "left")

	created := e.change("create")
	e.resolved(created)
	e.used(created)
	e.change("update", "BoxFunctions=on", "Spot=true", "Metrics=on", "AlarmEmail=ops@example.com",
		"Concurrency=1000", "AccessLogs=on", "Protect=on")
	e.change("update", "Protect=off")
	var zone string
	e.do(&zone, "zone")
	named := e.change("update", "DomainName=mcp.example.com", "SocketDomainName=ws.example.com", "HostedZoneId="+zone,
		"CertificateArn=arn:aws:acm:us-east-1:000000000000:certificate/1", "WebAclArn=arn:aws:wafv2:us-east-1:000000000000:regional/webacl/a/1")
	e.resolved(named)
	e.lines(named)
	commontest.EqualIn(t, "the endpoints are", "https://mcp.example.com wss://ws.example.com", named.Outputs["Endpoint"]+" "+named.Outputs["WebSocketUrl"])
	e.elsewhere()
	e.has("DORMOUSE_SESSION_LIFE", "168h")
	e.change("update", "SessionHours=24")
	e.has("DORMOUSE_SESSION_LIFE", "24h")
	e.do(nil, "delete")

	after := map[string][]string{}
	e.do(&after, "left")
	for kind, all := range after {
		added := slices.DeleteFunc(all, func(one string) bool { return slices.Contains(before[kind], one) })
		// These are left: what the test made (a bucket with the code, a network, a task
		// definition that make delete would remove), and the stack's table, bucket and secret.
		want := map[string]int{"tables": 1, "buckets": 2, "networks": 1, "task definitions": 1, "parameters": 1}[kind]
		commontest.EqualIn(t, fmt.Sprintf("%s that are left: %q", kind, added), want, len(added))
	}
}

// counted checks that the variables of each function have at most as many bytes as the doctor counts,
// of the 4 KB that Lambda takes.
func (e *emulator) counted(environments map[string]map[string]string) {
	e.t.Helper()
	text, err := os.ReadFile(filepath.Join("deploy", "doctor.go"))
	commontest.OK(e.t, err)
	counts := regexp.MustCompile(`ownBytes\s*= (\d+)(?s:.*)ownBytes \+ (\d+)\*len\(d.config.stack\)`).FindStringSubmatch(string(text))
	if counts == nil {
		e.t.Fatal("the doctor counts otherwise")
	}
	own, _ := strconv.Atoi(counts[1])
	each, _ := strconv.Atoi(counts[2])
	for function, variables := range environments {
		n, named := 0, 0
		for name, value := range variables {
			n += len(name) + len(value)
			named += strings.Count(value, "dormouse")
		}
		if n > own+each*len("dormouse") || named > each {
			e.t.Errorf("%s has %d bytes of variables, with the stack's name %d times; the doctor counts %d, and %d times the name", function, n, named, own, each)
		}
	}
}

// emulator is a ministack that judges each request by the policies of its caller.
type emulator struct {
	t        *testing.T
	python   string
	endpoint string
	more     string         // the file with what functions have beside their own variables
	template string         // the file
	steps    io.Writer      // stdin of testdata/emulate.py, which takes one step a line
	came     *bufio.Scanner // its stdout, with the result of each step
	failed   *bytes.Buffer  // its stderr
}

func emulate(t *testing.T) *emulator {
	t.Helper()
	dir, err := install(t.Context(), "ministack", []string{"ministack==1.5.33", "boto3==1.43.106", "aws-sam-translator==1.115.0"})
	if err != nil {
		t.Fatalf("%v\n%s", err, howToGetSAM)
	}
	e := &emulator{t: t, python: filepath.Join(dir, "bin", "python"), template: filepath.Join(t.TempDir(), "template.json")}
	e.more = filepath.Join(t.TempDir(), "variables.json")

	cmd := exec.CommandContext(t.Context(), e.python, append([]string{filepath.Join("testdata", "emulator.py")}, notEmulated()...)...) //nolint:gosec // installed above
	cmd.Env = append(os.Environ(), "VARIABLES_FILE="+e.more, "AUTH=true", "GATEWAY_PORT=0", "BIND_HOST=127.0.0.1", "LAMBDA_EXECUTOR=local", "TMPDIR="+t.TempDir(), "PYTHONUNBUFFERED=1")
	said, err := cmd.StdoutPipe()
	commontest.OK(t, err)
	cmd.Stderr = cmd.Stdout
	cmd.Cancel, cmd.WaitDelay = func() error { return cmd.Process.Signal(os.Interrupt) }, 10*time.Second
	commontest.OK(t, cmd.Start())
	lines := bufio.NewScanner(said)
	for e.endpoint == "" && lines.Scan() {
		if _, at, found := strings.Cut(lines.Text(), "Running on "); found {
			e.endpoint, _, _ = strings.Cut(at, " ")
		}
	}
	if e.endpoint == "" {
		t.Fatal("ministack ended at once")
	}
	e.gives(nil)
	ended := make(chan struct{})
	go func() { // ministack would block when the pipe is full
		defer close(ended)
		for lines.Scan() {
			continue
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		<-ended
		_ = cmd.Wait() // how it ended says nothing of the stack
	})
	e.listen()
	e.write()
	return e
}

// gives sets the variables that the emulator adds to those of each function: its own address,
// and these.
func (e *emulator) gives(variables map[string]string) {
	e.t.Helper()
	all := map[string]string{"AWS_ENDPOINT_URL": e.endpoint}
	maps.Copy(all, variables)
	text, err := json.Marshal(all)
	if err == nil {
		err = os.WriteFile(e.more, text, 0o600)
	}
	commontest.OK(e.t, err)
}

// setup returns the program that makes the custom resources of a stack.
func setup(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "setup")
	build(t, program, root("functions", "setup"))
	return program
}

// listen starts testdata/emulate.py, which takes steps until the test is over.
func (e *emulator) listen() {
	e.t.Helper()
	cmd := exec.CommandContext(e.t.Context(), e.python, filepath.Join("testdata", "emulate.py"), e.endpoint, setup(e.t)) //nolint:gosec // installed above
	e.failed = &bytes.Buffer{}
	cmd.Stderr = e.failed
	steps, err := cmd.StdinPipe()
	commontest.OK(e.t, err)
	came, err := cmd.StdoutPipe()
	commontest.OK(e.t, err)
	commontest.OK(e.t, cmd.Start())
	e.t.Cleanup(func() { _ = cmd.Wait() }) // the test's context has ended it
	e.steps, e.came = steps, bufio.NewScanner(came)
	e.came.Buffer(nil, 64<<20)
}

// aRunner is what the emulated setup function has in place of the runner (emulate.py).
const aRunner = "a runner"

// brought reports whether a task gets the runner by the URL that a function with a role signs.
func (e *emulator) brought(object, role string) (allowed bool) {
	e.t.Helper()
	place, sum := path.Split(object)
	location, err := bucket.ParseLocation(place, "us-east-1")
	commontest.OK(e.t, err)
	location.Endpoint = e.endpoint
	url, err := bucket.New(bucket.Config{Location: location, Credentials: e.as(role)}).URL(e.t.Context(), sum)
	commontest.OK(e.t, err)
	q, err := nethttp.NewRequestWithContext(e.t.Context(), nethttp.MethodGet, url, nethttp.NoBody)
	commontest.OK(e.t, err)
	res, err := nethttp.DefaultClient.Do(q)
	commontest.OK(e.t, err)
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	return res.StatusCode == nethttp.StatusOK && err == nil && string(text) == aRunner && sum == fmt.Sprintf("%x", sha256.Sum256(text))
}

// write writes the template in the form that CloudFormation gets, with values of parameters.
func (e *emulator) write(values ...string) {
	e.t.Helper()
	raw := run(e.t, tools(e.t).python, append([]string{filepath.Join("testdata", "expand.py"), root("template.yaml")}, values...)...)
	commontest.OK(e.t, os.WriteFile(e.template, raw, 0o600))
}

// elsewhere moves the boxes into a network of the owner's, and back.
func (e *emulator) elsewhere() {
	e.t.Helper()
	var own struct{ VPC, Subnets string }
	e.do(&own, "network")
	before := map[string][]string{}
	e.do(&before, "left")
	m := e.change("update", "VpcId="+own.VPC, "SubnetIds="+own.Subnets, "PublicIp=false")
	var vpc string
	if e.do(&vpc, "firewall", m.Resources["BoxSecurityGroup"]); vpc != own.VPC {
		e.t.Errorf("the security group of boxes is in %s, want %s", vpc, own.VPC)
	}
	after := map[string][]string{}
	if e.do(&after, "left"); len(after["networks"]) != len(before["networks"])-1 || m.Resources["Network"] != "" {
		e.t.Errorf("the stack keeps a network of its own: %q", after["networks"])
	}
	environments := map[string]map[string]string{}
	e.do(&environments, "functions")
	if c, err := ecs.ParsePlace(environments["dormouse-http"]["DORMOUSE_FLEET"]); err != nil || strings.Join(c.Subnets, ",") != own.Subnets || c.PublicIP {
		e.t.Errorf("functions start boxes in %v, %v, want %s", c.Subnets, err, own.Subnets)
	}
	if id, err := e.place("dormouse-HttpRole").Run(e.t.Context(), fleet.Task{ClientToken: "elsewhere", Box: "default/echo", Server: "echo", Env: map[string]string{"DORMOUSE_RELAY_URL": "wss://relay"}}); err != nil {
		e.t.Errorf("in a network of the owner's a box cannot be started: %s, %v", id, err)
	}
	if m = e.change("update", "VpcId=", "SubnetIds=", "PublicIp=true"); m.Resources["Network"] == "" {
		e.t.Error("the stack has no network of its own again")
	}
}

// place returns the driver of ECS with the place of the http function and the credentials
// of a role.
func (e *emulator) place(role string) *ecs.Fleet {
	e.t.Helper()
	environments := map[string]map[string]string{}
	e.do(&environments, "functions")
	c, err := ecs.ParsePlace(environments["dormouse-http"]["DORMOUSE_FLEET"])
	commontest.OK(e.t, err)
	c.Endpoint, c.Credentials = e.endpoint, e.as(role)
	c.RunnerURL = func(context.Context) (string, error) { return "https://bucket/" + c.Runner, nil }
	c.Inspect = func(context.Context, string) (string, frame.Image, error) {
		return "", frame.Image{}, errors.New("no server has an image of its own")
	}
	boxes, err := ecs.New(c)
	commontest.OK(e.t, err)
	return boxes
}

// has checks that the functions have the value of a variable.
func (e *emulator) has(variable, want string) {
	e.t.Helper()
	environments := map[string]map[string]string{}
	e.do(&environments, "functions")
	delete(environments, "dormouse-setup")
	if len(environments) < 5 {
		e.t.Errorf("clients reach %d functions", len(environments))
	}
	for name, environment := range environments {
		if got := environment[variable]; got != want {
			e.t.Errorf("%s has %s=%s, want %s", name, variable, got, want)
		}
	}
}

// do makes a step of testdata/emulate.py, and decodes what came of it.
func (e *emulator) do(into any, step ...string) {
	e.t.Helper()
	line, err := json.Marshal(step)
	commontest.OK(e.t, err)
	if _, err := e.steps.Write(append(line, '\n')); err != nil || !e.came.Scan() {
		e.t.Fatalf("%s: %v, %v\n%s", line, err, e.came.Err(), e.failed)
	}
	if into == nil {
		return
	}
	commontest.OKIn(e.t, fmt.Sprintf("%s: %s", line, e.came.Bytes()), json.Unmarshal(e.came.Bytes(), into))
}

// made is a stack after a change.
type made struct {
	Status    string
	Failed    []string
	Outputs   map[string]string
	Resources map[string]string // physical ids by logical name
}

// change creates or updates the stack, with these parameters and the others by default.
func (e *emulator) change(step string, parameters ...string) made {
	e.t.Helper()
	var m made
	e.do(&m, append([]string{step, e.template}, parameters...)...)
	if want := strings.ToUpper(step) + "_COMPLETE"; m.Status != want || len(m.Failed) > 0 {
		e.t.Fatalf("%s %v: the stack is %s, %q", step, parameters, m.Status, m.Failed)
	}
	return m
}

// lines checks that the outputs with command lines and files for clients name the address of the
// endpoint.
func (e *emulator) lines(m made) {
	e.t.Helper()
	var file struct {
		Servers map[string]struct {
			Type, URL string
			Headers   map[string]string
		} `json:"mcpServers"`
	}
	commontest.CheckIn(e.t, fmt.Sprintf("McpJson is %q", m.Outputs["McpJson"]), json.Unmarshal([]byte(m.Outputs["McpJson"]), &file))
	url := m.Outputs["Endpoint"] + "/SERVER/mcp"
	if s := file.Servers["SERVER"]; s.Type != "http" || s.URL != url || s.Headers["Authorization"] != "Bearer KEY" {
		e.t.Errorf("McpJson has %+v, want %s", file, url)
	}
	if want := "claude mcp add --transport http SERVER " + url + " --header 'Authorization: Bearer KEY'"; m.Outputs["ClaudeCode"] != want {
		e.t.Errorf("ClaudeCode is %q, want %q", m.Outputs["ClaudeCode"], want)
	}
	if !strings.HasPrefix(m.Outputs["WebSocketUrl"], "wss://") || !strings.HasPrefix(m.Outputs["Endpoint"], "https://") {
		e.t.Errorf("clients cannot connect to %s and %s", m.Outputs["Endpoint"], m.Outputs["WebSocketUrl"])
	}
}

// unresolved reports whether a value still has a function of the template's language.
func unresolved(text string) bool {
	return slices.ContainsFunc([]string{"${", "{{resolve", `"Ref"`, "Fn::"}, func(rest string) bool { return strings.Contains(text, rest) })
}

// resolved checks that outputs, environments and policies name what was created.
func (e *emulator) resolved(m made) {
	e.t.Helper()
	for name, value := range m.Outputs {
		if unresolved(value) || value == "" {
			e.t.Errorf("output %s is %q", name, value)
		}
	}
	environments := map[string]map[string]string{}
	e.do(&environments, "functions")
	if len(environments) != 7 {
		e.t.Errorf("there are %d functions", len(environments))
	}
	if secret := environments["dormouse-http"]["DORMOUSE_SECRET"]; len(secret) != 64 || secret != environments["dormouse-relay"]["DORMOUSE_SECRET"] {
		e.t.Errorf("functions seal with %q", secret)
	}
	e.counted(environments)
	delete(environments, "dormouse-setup") // this function has no store
	for function, environment := range environments {
		for name, value := range environment {
			if unresolved(value) {
				e.t.Errorf("%s of %s is %q", name, function, value)
			}
		}
		if got, want := environment["DORMOUSE_STORE"], "dynamodb:"+m.Resources["Table"]; got != want {
			e.t.Errorf("%s works with %s, not with %s", function, got, want)
		}
	}
	policies := map[string][]struct{ Resource any }{}
	e.do(&policies, "policies")
	for role, statements := range policies {
		if len(statements) == 0 {
			e.t.Errorf("the role %s may do nothing", role)
		}
		for _, s := range statements {
			for _, arn := range flat(s.Resource) {
				if unresolved(arn) || !e.known(arn, m) {
					e.t.Errorf("the role %s may use %q, which is nothing of the stack", role, arn)
				}
			}
		}
	}
}

func flat(resource any) []string {
	if one, ok := resource.(string); ok {
		return []string{one}
	}
	var all []string
	for _, one := range resource.([]any) {
		all = append(all, flat(one)...)
	}
	return all
}

// known reports whether an ARN of a policy has the name of a resource, or one that begins
// with the stack's name.
func (*emulator) known(arn string, m made) bool {
	if arn == "*" {
		return true
	}
	for _, name := range m.Resources {
		if _, last, cut := strings.Cut(name, ":::"); cut {
			name = last
		}
		if name != "" && strings.Contains(arn, name) {
			return true
		}
	}
	return slices.ContainsFunc([]string{":task-definition/dormouse-box-", ":parameter/dormouse/", ":parameter/dormouse.tickets/dormouse", ":secret:dormouse/", ":repository/*", ":function:dormouse-", "/dormouse/"}, func(own string) bool {
		return strings.Contains(arn, own)
	})
}

// used has the drivers of the functions work with what was created. The emulator judges
// the calls of roles by their policies.
func (e *emulator) used(m made) {
	e.t.Helper()
	ctx := e.t.Context()
	table := func(role string) storage.Store {
		location := dynamostore.Location{Table: m.Resources["Table"], Region: "us-east-1", Endpoint: e.endpoint}
		return dynamostore.New(location.Client(e.as(role), nil), location.Table, dynamostore.Options{})
	}
	http, relay := table("dormouse-HttpRole"), table("dormouse-RelayRole")
	s := storage.Session{ID: storage.NewID(), Server: "echo", Tenant: "default", Created: time.Now(), Expires: time.Now().Add(time.Hour)}
	commontest.CheckIn(e.t, "http cannot create a session", http.Create(ctx, s))
	if all, err := http.List(ctx, "default", "", 10); err != nil || len(all) != 1 {
		e.t.Errorf("http lists %v, %v", all, err)
	}
	_, err := http.Due(ctx)
	commontest.CheckIn(e.t, "http cannot look for what is due", err)
	console := table("dormouse-ConsoleRole")
	if all, err := console.List(ctx, "default", "", 10); err != nil || len(all) != 1 {
		e.t.Errorf("the console lists %v, %v", all, err)
	}
	_, err = console.Due(ctx)
	commontest.CheckIn(e.t, "the console cannot look for what is due", err)
	if _, err := relay.Due(ctx); err == nil {
		e.t.Error("relay may look for what is due")
	}

	environments := map[string]map[string]string{}
	e.do(&environments, "functions")
	at, err := ecs.ParsePlace(environments["dormouse-http"]["DORMOUSE_FLEET"])
	if err != nil || !strings.HasPrefix(at.Runner, m.Resources["Bucket"]+"/runner/") || m.Resources["Bucket"]+"/"+m.Resources["Runner"] != at.Runner {
		e.t.Errorf("the runner is at %q, %v; the stack has %s", at.Runner, err, m.Resources["Runner"])
	}
	if !strings.HasPrefix(at.Image, "public.ecr.aws/") || !strings.Contains(at.Image, "@sha256:") {
		e.t.Errorf("by default boxes have the image %s", at.Image)
	}
	for _, role := range []string{"dormouse-HttpRole", "dormouse-SocketRole", "dormouse-SweepRole"} {
		if !e.brought(at.Runner, role) {
			e.t.Errorf("a task that %s starts does not get the runner", role)
		}
	}
	commontest.EqualIn(e.t, "the console may sign URLs of the runner", false, e.brought(at.Runner, "dormouse-ConsoleRole"))

	task := fleet.Task{ClientToken: "first", Box: "default/echo", Server: "echo", Env: map[string]string{"DORMOUSE_RELAY_URL": "wss://relay"}}
	id, err := e.place("dormouse-HttpRole").Run(ctx, task)
	commontest.CheckIn(e.t, "http cannot start a box", err)
	if _, err := e.place("dormouse-RelayRole").Run(ctx, task); err == nil {
		e.t.Error("relay may start a box")
	}
	if _, err := e.place("dormouse-HttpRole").Tasks(ctx); err == nil {
		e.t.Error("http may list tasks")
	}
	sweep := e.place("dormouse-SweepRole")
	tasks, err := sweep.Tasks(ctx)
	if err != nil || len(tasks) != 1 {
		e.t.Errorf("sweep sees the tasks %+v, %v", tasks, err)
	}
	commontest.CheckIn(e.t, "sweep cannot stop a box", sweep.Stop(ctx, id, "test"))
	if tasks, err := sweep.Tasks(ctx); err != nil || len(tasks) != 1 || tasks[0].State != fleet.Stopped {
		e.t.Errorf("after the stop sweep sees %+v, %v", tasks, err)
	}
}

func owner() aws.CredentialsProvider {
	return aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
		return aws.Credentials{AccessKeyID: "test", SecretAccessKey: "test"}, nil
	})
}

// as returns credentials of a role, by the beginning of its name.
func (e *emulator) as(role string) aws.CredentialsProvider {
	e.t.Helper()
	var c struct{ Key, Secret, Token string }
	e.do(&c, "credentials", role)
	return aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
		return aws.Credentials{AccessKeyID: c.Key, SecretAccessKey: c.Secret, SessionToken: c.Token}, nil
	})
}

// An upgrade from the last release keeps what lasts: the table, the bucket, the secret of
// tickets, which goes from Secrets Manager into a parameter and is replaced there, the
// repository, and the APIs of sockets, by whose names clients connect. The emulator makes a
// REST API anew whose text has changed, which CloudFormation changes in its place.
func TestTheLastReleaseIsUpgraded(t *testing.T) {
	releases, err := os.ReadFile("releases.txt")
	commontest.OK(t, err)
	lines := strings.Split(strings.TrimSpace(string(releases)), "\n")
	release, _, _ := strings.Cut(lines[len(lines)-1], " ")
	old := filepath.Join(t.TempDir(), "template.yaml")
	commontest.OK(t, os.WriteFile(old, run(t, "git", "-C", root(), "show", release+":template.yaml"), 0o600))
	e := emulate(t)
	now := e.template
	e.template = filepath.Join(t.TempDir(), "old.json")
	commontest.OK(t, os.WriteFile(e.template, run(t, tools(t).python, filepath.Join("testdata", "expand.py"), old), 0o600))
	secrets := func() (current, other string) {
		environments := map[string]map[string]string{}
		e.do(&environments, "functions")
		delete(environments, "dormouse-setup")
		for name, environment := range environments {
			if secret := environment["DORMOUSE_SECRET"]; current != "" && secret != current {
				t.Errorf("%s seals with another secret", name)
			}
			current, other = environment["DORMOUSE_SECRET"], environment["DORMOUSE_OTHER_SECRET"]
		}
		return current, other
	}
	before := e.change("create")
	first, _ := secrets()
	e.template = now
	after := e.change("update")
	if kept, other := secrets(); len(first) != 64 || kept != first || other != "" || before.Resources["TicketSecret"] == "" || after.Resources["TicketSecret"] != "" {
		t.Errorf("the secret was %q, and is %q and %q; its resources %q and %q", first, kept, other, before.Resources["TicketSecret"], after.Resources["TicketSecret"])
	}
	for _, name := range []string{
		"Table", "Bucket", "Repository", "SocketApi", "RelayApi", "Schedules", "Cluster",
	} {
		if before.Resources[name] == "" || after.Resources[name] != before.Resources[name] {
			t.Errorf("%s was %q, and is %q", name, before.Resources[name], after.Resources[name])
		}
	}
	e.resolved(after)
	e.used(after)
	e.change("update", "OtherSecret=AWSPENDING")
	current, next := secrets()
	if current != first || len(next) != 64 || next == first {
		t.Errorf("the first step of a new secret seals with %s and opens %s", current, next)
	}
	e.change("update", "OtherSecret=AWSPREVIOUS")
	if current, other := secrets(); current != next || other != first {
		t.Errorf("the second step seals with %s and opens %s, want %s and %s", current, other, next, first)
	}
	e.change("update", "OtherSecret=")
	if current, other := secrets(); current != next || other != "" {
		t.Errorf("the third step seals with %s and opens %s, want %s", current, other, next)
	}
}
