// Package stack_test checks template.yaml and samconfig.toml for errors that AWS would
// refuse, and for errors that AWS would accept and that do harm. The tests do not call
// AWS.
package stack_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/dormouse-mcp/dormouse/functions/wiring/authorization"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet/ecs"
	"github.com/dormouse-mcp/dormouse/shared/backend/native/eventbridge"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
)

func TestTheTemplateIsValid(t *testing.T) {
	t.Parallel() // beside the builds of the functions
	run(t, filepath.Join(filepath.Dir(tools(t).python), "cfn-lint"), append([]string{root("template.yaml")}, others(t)...)...)
}

// others returns the templates beside template.yaml: those that it nests, and that of boxes.
func others(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("*.yaml")
	if err != nil || len(files) < 4 {
		t.Fatalf("%v, %v", files, err)
	}
	return files
}

// SAM and CloudFormation have different words for a streaming endpoint. With
// CloudFormation's word, all other checks pass, but answers are buffered.
func TestAnswersOfTheRESTAPIAreStreamed(t *testing.T) {
	s := expand(t)
	api := s.get(t, "HttpApi", "AWS::ApiGateway::RestApi")
	paths := dig(api, "Body", "paths").(object)
	functions := map[string]string{"/": "Http", "/{proxy+}": "Http", "/console": "Console", "/console/{proxy+}": "Console"}
	for _, path := range authorization.Paths(true) {
		if path != "/login" { // only one machine has this path
			functions[path] = "Oauth"
		}
	}
	for path, function := range functions {
		t.Run(path, func(t *testing.T) {
			integration, _ := dig(paths[path], "x-amazon-apigateway-any-method", "x-amazon-apigateway-integration").(object)
			uri := s.value(integration["uri"])
			if !strings.HasSuffix(uri, ":lambda:path/2021-11-15/functions/"+function+"Function.Arn/response-streaming-invocations") {
				t.Errorf("%s: uri %q", path, uri)
			}
			if integration["responseTransferMode"] != "STREAM" || integration["timeoutInMillis"] != map[string]any{"Http": 900000.0, "Oauth": 29000.0, "Console": 29000.0}[function] {
				t.Errorf("%s: mode %v, timeout %v", path, integration["responseTransferMode"], integration["timeoutInMillis"])
			}
		})
	}
	commontest.EqualIn(t, "paths", len(functions), len(paths))
	if binary := s.list(api["BinaryMediaTypes"]); !slices.Equal(binary, []string{"*~1*"}) { // "/" is written so
		t.Errorf("binary media types: %v", binary)
	}
	commontest.SameIn(t, "the endpoint", object{"Types": []any{"REGIONAL"}}, api["EndpointConfiguration"])
}

// Both functions answer messages with the route's answer, which needs two resources.
// Without both the answer is lost silently.
func TestAnswersOfRoutesGoBackOnTheirConnection(t *testing.T) {
	s := expand(t)
	for _, api := range []string{"Relay", "Socket"} {
		route := s.get(t, api+"ApiDefaultRoute", "AWS::ApiGatewayV2::Route")
		answers := s.get(t, api+"Answers", "AWS::ApiGatewayV2::RouteResponse")
		if route["RouteKey"] != "$default" || route["RouteResponseSelectionExpression"] != "$default" || answers["RouteResponseKey"] != "$default" {
			t.Errorf("route %v, answers %v", route, answers)
		}
		if of, got := s.value(answers["ApiId"]), s.value(answers["RouteId"]); got != api+"ApiDefaultRoute" || of != api+"Api" {
			t.Errorf("answers of %s of %s", got, of)
		}
		// Before the first deployment, CloudFormation creates only the resources to which
		// the stage refers.
		if variables, _ := s.get(t, api+"Apiv1Stage", "AWS::ApiGatewayV2::Stage")["StageVariables"].(object); s.value(variables["answers"]) != api+"Answers" {
			t.Errorf("the stage of %s does not wait for its route response: %v", api, variables)
		}
	}
}

func TestTheTableIsTheOneTheStoreIsTestedWith(t *testing.T) {
	raw, err := os.ReadFile(root("shared", "store", "dynamostore", "table.json"))
	commontest.OK(t, err)
	var want object
	commontest.OK(t, json.Unmarshal(raw, &want))
	s := expand(t)
	got := maps.Clone(s.get(t, "Table", "AWS::DynamoDB::Table"))
	commontest.EqualIn(t, "it is recoverable", true, dig(got, "PointInTimeRecoverySpecification", "PointInTimeRecoveryEnabled"))
	delete(got, "PointInTimeRecoverySpecification")
	commontest.EqualIn(t, "Protect does not keep it", false, got["DeletionProtectionEnabled"] == nil)
	delete(got, "DeletionProtectionEnabled")
	commontest.Same(t, want, got)
	for _, name := range []string{"Table", "Bucket"} {
		// A failed creation must not leave this resource, because the next creation would
		// fail on it.
		if r := s.resources[name]; r["DeletionPolicy"] != "RetainExceptOnCreate" || r["UpdateReplacePolicy"] != "Retain" {
			t.Errorf("%s: %v, %v", name, r["DeletionPolicy"], r["UpdateReplacePolicy"])
		}
	}
}

// Package fleet/ecs must be able to read the value in the template.
func TestTheFleetReadsWhatTheTemplateWrites(t *testing.T) {
	tests := []struct {
		name   string
		params map[string]string
		want   ecs.Config
	}{
		{"all defaults", nil, ecs.Config{
			Subnets: []string{"Network.Outputs.Subnets"}, PublicIP: true, Arch: "arm64",
			Image: "public.ecr.aws/docker/library/node@sha256:3d27e5c11e5786e309ec3e03f93ae536eb36e6e5eb3714d5eb3300a36157add0",
			Size:  ecs.Size{CPUs: 0.25, MemoryMB: 512},
		}},
		{"given network and image", map[string]string{
			"VpcId": "vpc-1", "SubnetIds": "subnet-1,subnet-2,subnet-3", "PublicIp": "false", "RunnerImage": "example.com/r@sha256:0", "Spot": "true",
			"Architecture": "x86_64",
		}, ecs.Config{
			Subnets: []string{"subnet-1", "subnet-2", "subnet-3"}, Spot: true, Image: "example.com/r@sha256:0", Arch: "amd64",
			Size: ecs.Size{CPUs: 0.25, MemoryMB: 512},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := expand(t)
			maps.Copy(s.params, tt.params)
			variables := dig(s.get(t, "HttpFunction", "AWS::Lambda::Function"), "Environment", "Variables").(object)
			got, err := ecs.ParsePlace(s.value(variables["DORMOUSE_FLEET"]))
			commontest.OK(t, err)
			want := tt.want
			want.Region, want.Cluster, want.SecurityGroups = "AWS::Region", "Cluster", []string{"BoxSecurityGroup"}
			want.ExecutionRole, want.Family, want.LogGroup, want.Runner = "BoxExecutionRole.Arn", "stack-box", "BoxLogs", "Runner.Object"
			commontest.Same(t, want, got)
			got.Credentials, got.Endpoint, got.Runner = aws.AnonymousCredentials{}, "https://ecs", "bucket/runner/"+strings.Repeat("0", 64)
			got.RunnerURL = func(context.Context) (string, error) { return "", nil }
			got.Inspect = func(context.Context, string) (string, frame.Image, error) { return "", frame.Image{}, nil }
			_, err = ecs.New(got)
			commontest.Check(t, err)
		})
	}
}

// The eventbridge.Scheduler must be able to read the value in the template: a group and a
// role of the stack, and a name of the function that makes no dependency cycle.
func TestAlarmsAreSetWhereTheTemplateSays(t *testing.T) {
	s := expand(t)
	function := s.get(t, "HttpFunction", "AWS::Lambda::Function")
	var got eventbridge.Scheduler
	commontest.OK(t, json.Unmarshal([]byte(s.value(dig(function, "Environment", "Variables").(object)["DORMOUSE_SCHEDULES"])), &got))
	want := eventbridge.Scheduler{
		Group: "Schedules", Role: "SchedulesRole.Arn",
		Target: "arn:AWS::Partition:lambda:AWS::Region:AWS::AccountId:function:" + s.value(function["FunctionName"]),
	}
	if got.Group != want.Group || got.Role != want.Role || got.Target != want.Target {
		t.Errorf("%+v, want %+v", got, want)
	}
	s.get(t, "Schedules", "AWS::Scheduler::ScheduleGroup")
	trust := fmt.Sprint(dig(s.get(t, "SchedulesRole", "AWS::IAM::Role"), "AssumeRolePolicyDocument"))
	for _, part := range []string{"scheduler.amazonaws.com", "aws:SourceAccount", "aws:SourceArn"} {
		commontest.Contains(t, "the role of alarms", part, trust)
	}
}

func TestNobodyGetsIntoABox(t *testing.T) {
	s := expand(t)
	if in := s.get(t, "BoxSecurityGroup", "AWS::EC2::SecurityGroup")["SecurityGroupIngress"]; in != nil {
		t.Errorf("ingress: %v", in)
	}
	for name, r := range s.resources {
		if r["Type"] == "AWS::EC2::SecurityGroupIngress" {
			t.Errorf("%s lets somebody in", name)
		}
	}
}

// The secret is not in Secrets Manager, which costs money at rest, and no server can name it
// in its env.
func TestTheSecretOfTicketsIsFreeAndOutOfReach(t *testing.T) {
	s := expand(t)
	for name, r := range s.resources {
		if r["Type"] == "AWS::SecretsManager::Secret" {
			t.Errorf("%s costs $0.40 a month", name)
		}
	}
	name := s.value(s.get(t, "Tickets", "Custom::Tickets")["Name"])
	all := granted(t, s)
	all["boxes"] = s.starts(t)
	for who, statements := range all {
		for _, st := range statements {
			for _, resource := range st.resources {
				_, pattern, _ := strings.Cut(resource, ":parameter")
				if reached, err := path.Match(pattern, name); (reached || err != nil) != (who == "Setup" && pattern != "") {
					t.Errorf("%s may %v on %s, and the secret of tickets is %s: %v", who, st.actions, resource, name, err)
				}
			}
		}
	}
	// Stacks have no dot in their names, so this is below the path of no stack.
	if before, _, _ := strings.Cut(strings.TrimPrefix(name, "/"), "/"); !strings.Contains(before, ".") {
		t.Errorf("a stack may have the name %s, and its servers could name %s", before, name)
	}
}

// cfn-lint does not see a circle of resources that wait for each other through a condition.
func TestNoResourceWaitsForItself(t *testing.T) {
	s := expand(t)
	names := slices.Sorted(maps.Keys(s.resources))
	used, needs := map[string]*regexp.Regexp{}, map[string][]string{}
	for _, name := range names {
		quoted := regexp.QuoteMeta(name)
		used[name] = regexp.MustCompile(`"Ref":"` + quoted + `"|"Fn::GetAtt":\["` + quoted + `"|\$\{` + quoted + `[.}]|"DependsOn":(\[[^]]*)?"` + quoted + `"`)
	}
	for _, name := range names {
		text, err := json.Marshal(s.resources[name])
		commontest.OK(t, err)
		for _, other := range names {
			if other != name && used[other].Match(text) {
				needs[name] = append(needs[name], other)
			}
		}
	}
	done := map[string]bool{}
	var visit func(path []string)
	visit = func(path []string) {
		last := path[len(path)-1]
		if slices.Contains(path[:len(path)-1], last) {
			t.Fatalf("a circle: %s", strings.Join(path, " → "))
		}
		if done[last] {
			return
		}
		for _, next := range needs[last] {
			visit(append(slices.Clone(path), next))
		}
		done[last] = true
	}
	for _, name := range names {
		visit([]string{name})
	}
	commontest.EqualIn(t, "nothing was found, so this test shows nothing", false, len(needs["HttpFunction"]) == 0)
}

func TestNoAccountRegionOrProfileIsBakedIn(t *testing.T) {
	for _, name := range []string{"template.yaml", "samconfig.toml"} {
		// Read the file as it is in git's index, because make deploy writes the owner's
		// region into samconfig.toml.
		raw, err := exec.CommandContext(t.Context(), "git", "-C", root(), "show", ":"+name).Output()
		commontest.OK(t, err)
		commontest.EqualIn(t, name, "", regexp.MustCompile(`\b(us|eu|ap|sa|ca|me|af|il)-[a-z]+-\d\b|\b\d{12}\b|(?m)^\s*(profile|region)\s*=`).FindString(string(raw)))
	}
}

func root(parts ...string) string { return filepath.Join(append([]string{"..", ".."}, parts...)...) }

// An alarm or a widget without data looks like a healthy stack. So functions must write
// every metric that is watched.
func TestWhatIsWatchedIsWritten(t *testing.T) {
	s := expand(t)
	var watched []string
	for _, r := range s.nested(t, "Watch").resources {
		if r["Type"] == "AWS::Logs::MetricFilter" {
			pattern := fmt.Sprint(dig(r, "Properties", "FilterPattern"))
			m := regexp.MustCompile(`^\{ \$\.msg = "([^"]+)" \}$`).FindStringSubmatch(pattern)
			if m == nil {
				t.Errorf("pattern %s", pattern)
				continue
			}
			watched = append(watched, m[1])
		}
	}
	seen := s.nested(t, "Seen")
	board := seen.value(seen.get(t, "Dashboard", "AWS::CloudWatch::Dashboard")["DashboardBody"])
	if !json.Valid([]byte(board)) {
		t.Errorf("the dashboard is no JSON: %s", board)
	}
	for _, m := range regexp.MustCompile(`MetricName=\\"(\w+)\\"`).FindAllStringSubmatch(board, -1) {
		watched = append(watched, m[1])
	}
	if len(watched) < 10 {
		t.Errorf("only %v is watched", watched)
	}
	written := written(t)
	for _, w := range watched {
		if !written[w] {
			t.Errorf("%s is watched, and written nowhere", w)
		}
	}
}

// With only one of the two limits, the other would be 0.
func TestEveryWayInIsThrottled(t *testing.T) {
	s := expand(t)
	limits := map[string]any{}
	for _, r := range s.resources {
		p, _ := r["Properties"].(object)
		switch r["Type"] {
		case "AWS::ApiGateway::Stage":
			limits["HttpApi"] = p["MethodSettings"].([]any)[0]
			// CloudFormation demands ~1 for each slash of a path but the first.
			for _, setting := range p["MethodSettings"].([]any)[1:] {
				path := s.value(setting.(object)["ResourcePath"])
				name, ok := strings.CutPrefix(path, "/~1")
				if !ok || strings.Contains(name, "/") || !slices.Contains(authorization.Paths(true), "/"+name) {
					t.Errorf("%s is throttled, and there is no such path", path)
				}
			}
		case "AWS::ApiGatewayV2::Stage":
			limits[s.value(p["ApiId"])] = p["DefaultRouteSettings"]
		}
	}
	for name, want := range map[string]string{"HttpApi": "1000", "SocketApi": "1000", "RelayApi": "2000"} {
		t.Run(name, func(t *testing.T) {
			set, _ := limits[name].(object)
			if rate, burst := s.value(set["ThrottlingRateLimit"]), s.value(set["ThrottlingBurstLimit"]); rate != want || burst != want {
				t.Errorf("%s: rate %s, burst %s, want %s", name, rate, burst, want)
			}
		})
	}
}

// Access logs are off unless they are asked for. They have no query and no header, where a
// ticket or key may stand.
func TestAccessLogsAreAskedForAndHaveNoSecrets(t *testing.T) {
	s := expand(t)
	found := 0
	for name, r := range s.resources {
		p, _ := r["Properties"].(object)
		for _, setting := range []any{p["AccessLogSetting"], p["AccessLogSettings"]} {
			if setting == nil {
				continue
			}
			found++
			s.params["AccessLogs"] = "off"
			commontest.EqualIn(t, name+" logs into", "AWS::NoValue", s.value(setting))
			on := dig(setting, "Fn::If").([]any)[1].(object)
			format, _ := on["Format"].(string)
			if to := s.value(on["DestinationArn"]); to != "ApiLogs.Arn" || !json.Valid([]byte(format)) {
				t.Errorf("%s logs %s into %s", name, format, to)
			}
			for _, used := range regexp.MustCompile(`\$context\.([\w.]+)`).FindAllStringSubmatch(format, -1) {
				if !slices.Contains(strings.Fields("requestTime identity.sourceIp httpMethod path status error.responseType responseLatency responseLength requestId eventType routeKey connectionId"), used[1]) {
					t.Errorf("%s logs %s", name, used[1])
				}
			}
		}
	}
	commontest.EqualIn(t, "stages that can log", 3, found)
}

// If http uses up its limit, there must be invocations left for the frames of boxes. AWS keeps
// a hundred of an account for functions without a limit.
func TestConcurrencyIsSharedAsTheAccountAllows(t *testing.T) {
	s := expand(t)
	for total, share := range s.mappings["Shares"].(object) {
		s.params["Concurrency"] = total
		n, err := strconv.Atoi(total)
		commontest.OK(t, err)
		var got []int
		for _, function := range []string{"HttpFunction", "RelayFunction"} {
			reserved, _ := strconv.Atoi(s.value(s.get(t, function, "AWS::Lambda::Function")["ReservedConcurrentExecutions"]))
			got = append(got, reserved)
		}
		waiting, _ := strconv.Atoi(fmt.Sprint(dig(share, "WaitingCalls")))
		if got[0]+got[1] > 0 && n-got[0]-got[1] < 100 || n > 0 && (waiting < 1 || waiting > n/2) || (n > 200) != (got[0] > 0 && got[1] > 0) {
			t.Errorf("of %d invocations http has %d and relay %d, and %d calls may wait", n, got[0], got[1], waiting)
		}
	}
}

// A session must not lose its workspace while it lives.
func TestAWorkspaceIsKeptForLongerThanItsSession(t *testing.T) {
	s := expand(t)
	for hours, kept := range s.mappings["Workspaces"].(object) {
		n, err := strconv.ParseFloat(hours, 64)
		if days, _ := dig(kept, "Days").(float64); err != nil || days*24 < 2*n {
			t.Errorf("a session of %s hours has its workspace for %v days", hours, days)
		}
	}
	for _, parameter := range []string{"SessionHours", "Concurrency"} { // these have tables of their allowed values
		of := map[string]string{"SessionHours": "Workspaces", "Concurrency": "Shares"}[parameter]
		commontest.SameIn(t, parameter, slices.Sorted(maps.Keys(s.mappings[of].(object))), slices.Sorted(slices.Values(s.allowed[parameter])))
	}
}

// The rules of a firewall and the audience of tokens name the domain. Under AWS's own name for
// the API they would not hold, so an API with a domain does not answer to that name.
func TestAnEndpointWithADomainHasNoOtherName(t *testing.T) {
	for domain, want := range map[string]bool{"": false, "mcp.example.com": true} {
		t.Run(domain, func(t *testing.T) {
			s := expandAs(t, root("template.yaml"), "DomainName="+domain)
			s.params["DomainName"] = domain
			servers, _ := dig(s.get(t, "HttpApi", "AWS::ApiGateway::RestApi"), "Body", "servers").([]any)
			if len(servers) != 1 {
				t.Fatalf("the API has the servers %v", servers)
			}
			commontest.EqualIn(t, fmt.Sprintf("DomainName=%s: AWS's own name is off", domain), fmt.Sprint(want), s.value(dig(servers[0], "x-amazon-apigateway-endpoint-configuration", "disableExecuteApiEndpoint")))
		})
	}
}
