package stack_test

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/store/meter"
	"github.com/dormouse-mcp/dormouse/shared/store/meter/metertest"
)

var update = flag.Bool("update", false, "write the table of resources at rest into docs/costs.md")

// rest is what resources of some kinds cost while nobody calls: dollars a month for each, by
// the list of us-east-1, and what is billed besides when they are used or hold something.
type rest struct {
	what  string
	kinds string // without AWS:: at the beginning
	each  float64
	more  string
}

func atRest() []rest {
	return []rest{
		{"functions", "Lambda::Function Lambda::Version Lambda::Alias Lambda::Permission Lambda::EventInvokeConfig", 0, "invocations and their time"},
		{"the schedule of the sweep", "Events::Schedule", sweepMonth(), "nothing: this is the sweep itself"},
		{
			"APIs and their names", "ApiGateway::RestApi ApiGateway::Deployment ApiGateway::Stage ApiGateway::DomainName ApiGateway::BasePathMapping ApiGatewayV2::Api ApiGatewayV2::Stage ApiGatewayV2::Route ApiGatewayV2::RouteResponse ApiGatewayV2::Integration ApiGatewayV2::DomainName ApiGatewayV2::ApiMapping Route53::RecordSet WAFv2::WebACLAssociation",
			0, "requests, messages, minutes of connections",
		},
		{"the table", "DynamoDB::Table", 0, "reads, writes; $0.25 a GB, and $0.20 a GB for recovery to any second"},
		{"the bucket of workspaces", "S3::Bucket S3::BucketPolicy", 0, "$0.023 a GB. A workspace goes twice `SessionHours` after its last save, and after 15 days at least"},
		{"the repository of images", "ECR::Repository", 0, "$0.10 a GB; the 20 newest tags stay"},
		{"the secret of tickets", "Custom::Tickets", 0, "nothing: a standard parameter of Systems Manager"},
		{"the runner of boxes", "Custom::Runner Lambda::LayerVersion", 0, "next to nothing"},
		{"logs and saved queries", "Logs::LogGroup Logs::QueryDefinition Logs::MetricFilter", 0, "$0.50 a GB taken in, $0.03 a GB kept; lines go after `LogDays`. With [`audit.bodies`](audit.md) a call of 2 KB adds up to 3.3 KB"},
		{"boxes", "ECS::Cluster Events::Rule ECS::ClusterCapacityProviderAssociations EC2::SecurityGroup", 0, "processors, memory and an address while a box is awake"},
		{"the network", "EC2::VPC EC2::Subnet EC2::InternetGateway EC2::VPCGatewayAttachment EC2::RouteTable EC2::Route EC2::SubnetRouteTableAssociation EC2::VPCEndpoint", 0, "nothing: there is no NAT gateway in it"},
		{"alarms of native servers", "Scheduler::ScheduleGroup", 0, "$1.00 a million alarms"},
		{"rights and settings", "IAM::Role IAM::ManagedPolicy AppConfig::Application AppConfig::ConfigurationProfile AppConfig::HostedConfigurationVersion CodeDeploy::Application CodeDeploy::DeploymentGroup CloudFormation::Stack", 0, "nothing"},
		{"alarms, with `AlarmEmail`", "CloudWatch::Alarm", 0.10, "an account's first ten are free"},
		{"their topic, with `AlarmEmail`", "SNS::Topic SNS::Subscription SQS::Queue", 0, "mails"},
		{"the dashboard, by choice", "CloudWatch::Dashboard", 3.00, "an account's first three are free"},
	}
}

// sweepMonth is what the sweep costs that finds nothing, by the schedule of the template.
func sweepMonth() float64 {
	sweep := metertest.Operation{Invocations: 1, Trips: 1, ReadUnits: 1}
	const month, every = 730 * time.Hour, 5 * time.Minute
	return meter.Published().Cost(sweep.Units(meter.Usual())) * float64(month/every)
}

// counted counts the resources of a stack by kind: those that a deployment makes, and all.
func (s stack) counted(t *testing.T, made, all map[string]int) {
	t.Helper()
	for _, r := range s.resources {
		kind := strings.TrimPrefix(fmt.Sprint(r["Type"]), "AWS::")
		if dig(r, "Properties", "ScheduleExpression") != nil {
			kind = "Events::Schedule" // a rule that calls by itself
		}
		all[kind]++
		if c := r["Condition"]; c == nil || s.holds(object{"Condition": c}) {
			made[kind]++
		}
	}
}

// A stack that nobody calls costs at most five cents a month, by list price and without free
// tiers. Each kind of resource has a row with its price in docs/costs.md.
func TestAStackAtRestCostsAtMostFiveCents(t *testing.T) {
	made, all := map[string]int{}, map[string]int{}
	expand(t).counted(t, made, all)
	var b bytes.Buffer
	fmt.Fprint(&b, "| resources | of them | at rest, a month | when they are used or hold something |\n|---|---|---|---|\n")
	sum, known := 0.0, map[string]bool{}
	for _, row := range atRest() {
		n, most := 0, 0
		for _, kind := range strings.Fields(row.kinds) {
			n, most, known[kind] = n+made[kind], most+all[kind], true
		}
		sum += float64(n) * row.each
		price := "–"
		switch {
		case n > 0 && row.each > 0:
			price = fmt.Sprintf("$%.2f", float64(n)*row.each)
		case row.each > 0:
			price = fmt.Sprintf("$%.2f each", row.each)
		}
		count := fmt.Sprint(n)
		if most > n {
			count += fmt.Sprintf(", at most %d", most)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", row.what, count, price, row.more)
	}
	fmt.Fprintf(&b, "| **together** | %d | **$%.2f** | |\n", total(made), sum)
	for _, kind := range slices.Sorted(maps.Keys(all)) {
		if !known[kind] {
			t.Errorf("the template has a resource of the kind %s: give it a row in atRest", kind)
		}
	}
	if sum > 0.05 {
		t.Errorf("a stack costs $%.2f a month at rest, want $0.05 at most", sum)
	}
	const begin, end = "<!-- rest: written by make docs -->\n", "<!-- /rest -->\n"
	page, err := os.ReadFile(root("docs", "costs.md"))
	commontest.OK(t, err)
	before, rest, ok := strings.Cut(string(page), begin)
	table, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("docs/costs.md has no %s", begin)
	}
	if *update {
		commontest.OK(t, os.WriteFile(root("docs", "costs.md"), []byte(before+begin+b.String()+end+after), 0o644))
		return
	}
	commontest.SameIn(t, "make docs writes the table of docs/costs.md anew", b.String(), table)
}

func total(made map[string]int) (n int) {
	for _, count := range made {
		n += count
	}
	return n
}
