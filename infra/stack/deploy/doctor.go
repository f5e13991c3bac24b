package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/access/credentials"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
)

// Limits of AWS, and what the stack takes of one.
const (
	fewInvocations   = 100  // concurrent invocations that Lambda keeps unreserved in each account
	usualVPCs        = 5    // VPCs that an account may have in a region, unless AWS has raised the limit
	environmentBytes = 4096 // the largest environment of a function
	ownBytes         = 2000 // bytes of the environment besides secrets, subnets and the stack's name; TestTheStackIsCreatedUpdatedAndDeleted measures it
)

// quotaCommand asks AWS to allow 1,000 concurrent invocations.
const quotaCommand = "aws service-quotas request-service-quota-increase --service-code lambda --quota-code L-B99A9384 --desired-value 1000"

// doctor checks what would fail in a deployment, and returns the parameters that the deployment is
// to set. If something would fail, it returns an error, or with p.force prints a warning. It needs
// only rights to read, and changes nothing. The argument s is the stack, or nil if there is none.
func (p *program) doctor(ctx context.Context, s *stack) (map[string]string, error) {
	d := &diagnosis{program: p, stack: s, params: maps.Clone(p.config.params)}
	maps.Copy(d.params, p.given)
	d.params["Architecture"] = cmp.Or(p.arch, d.value("Architecture"), "arm64")
	for _, look := range []func(context.Context) error{
		d.name, d.account, d.region, d.network, d.roles, d.servers, d.environment,
	} {
		if err := look(ctx); err != nil { // the check could not be made; the other checks follow all the same
			d.failed = append(d.failed, err)
		}
	}
	if len(d.failed) > 0 && !p.force {
		return nil, fmt.Errorf("this would fail (FORCE=1 tries it all the same):\n%w", errors.Join(d.failed...))
	}
	for _, err := range d.failed {
		p.say("would fail: %v", err)
	}
	return d.params, nil
}

// diagnosis is one run of the doctor.
type diagnosis struct {
	*program
	stack  *stack
	params map[string]string // parameters that this deployment sets
	failed []error           // what would fail
	bytes  int               // how many bytes of secrets functions get in their environment
}

func (d *diagnosis) fails(format string, args ...any) {
	d.failed = append(d.failed, fmt.Errorf(format, args...))
}

// value returns the value that a parameter will have after the deployment, or "" if it will have
// the template's default.
func (d *diagnosis) value(name string) string {
	if given, ok := d.params[name]; ok || d.stack == nil {
		return given
	}
	return d.stack.Params[name]
}

// name checks that the stack can be updated, and that its name is not too long.
func (d *diagnosis) name(context.Context) error {
	if d.stack != nil && !d.stack.whole() {
		d.fails("the stack %s is %s and cannot be updated: look at its events, then make delete", d.config.stack, d.stack.Status)
	}
	if err := d.config.fits(); err != nil {
		d.failed = append(d.failed, err)
	}
	return nil
}

// account checks how many invocations the account may have at a time. If the parameter
// Concurrency is not set, account chooses its value: the largest share that leaves a hundred
// invocations for other functions. If the stack has a smaller share, account tells the user.
func (d *diagnosis) account(ctx context.Context) error {
	text, err := d.aws(ctx, "lambda", "get-account-settings", "--output", "json")
	if err != nil {
		return err
	}
	var got struct {
		AccountLimit struct{ ConcurrentExecutions, UnreservedConcurrentExecutions int }
	}
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		return fmt.Errorf("aws lambda get-account-settings: %w", err)
	}
	total, free := got.AccountLimit.ConcurrentExecutions, got.AccountLimit.UnreservedConcurrentExecutions
	d.say("invocations at a time: %d, of which %d are free", total, free)
	if total < fewInvocations {
		d.fails("this account may have %d invocations at a time, and each waiting client holds one: ask for more, which takes AWS some hours\n\n  %s\n", total, quotaCommand)
	}
	kept, _ := strconv.Atoi(d.value("Concurrency"))
	if d.params["Concurrency"] != "" || d.value("Concurrency") == "0" {
		return nil
	}
	if kept > fewInvocations {
		free += kept * 6 / 10 // which the stack's own functions reserve: see Shares in template.yaml
	}
	if d.stack != nil {
		for _, name := range []string{"HttpConcurrency", "RelayConcurrency"} { // parameters of older releases
			own, _ := strconv.Atoi(d.stack.Params[name])
			free += own
		}
	}
	for _, share := range []int{10000, 5000, 2000, 1000, 500, 100, 10} {
		if share > total || share > fewInvocations && free-share*6/10 < fewInvocations {
			continue
		}
		switch {
		case kept == 0:
			d.params["Concurrency"] = strconv.Itoa(share)
		case kept < share:
			d.say("the stack counts on %d of them, and could on more: make deploy CONFIG=%s ARGS=Concurrency=%d", kept, d.config.section, share)
		}
		return nil
	}
	return nil
}

// withFargate has the zones with Fargate that network.yaml uses, for each region in which other zones
// lack Fargate.
var withFargate = map[string][]string{ //nolint:gochecknoglobals // read only
	"us-west-1": {"usw1-az1", "usw1-az3"}, "ap-northeast-1": {"apne1-az1", "apne1-az4"},
}

// region checks that a region is chosen, and that it has the services and zones that the stack
// needs.
func (d *diagnosis) region(ctx context.Context) error {
	region := cmp.Or(d.config.region, os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION"))
	if region == "" { // the command fails if there is none; region is then ""
		region, _ = d.aws(ctx, "configure", "get", "region")
	}
	if region == "" {
		d.fails("no region is chosen: set AWS_REGION, or region in [%s.global.parameters] of samconfig.toml", d.config.section)
		return nil
	}
	there, err := d.list(ctx, "ssm", "get-parameters-by-path", "--path", "/aws/service/global-infrastructure/regions/"+region+"/services", "--query", "Parameters[].Value")
	if err != nil {
		d.say("which services %s has is not known: %v", region, err)
	}
	for _, service := range []string{"apigateway", "dynamodb", "ecr", "fargate", "lambda"} {
		if len(there) > 0 && !slices.Contains(there, service) {
			d.fails("the region %s has no %s", region, service)
		}
	}
	if needed := withFargate[region]; needed != nil && d.value("VpcId") == "" {
		zones, err := d.list(ctx, "ec2", "describe-availability-zones", "--query", "AvailabilityZones[].ZoneId")
		if err != nil {
			return err
		}
		for _, zone := range needed {
			if !slices.Contains(zones, zone) {
				d.fails("this account has the zones %v of %s, and the stack's network needs %v, which have Fargate: give VpcId and SubnetIds", zones, region, needed)
				break
			}
		}
	}
	return nil
}

// network checks that the account may have one more VPC in the region, for the stack. If the user
// has given a VPC instead, network warns if boxes would load their images through a NAT gateway.
func (d *diagnosis) network(ctx context.Context) error {
	vpc := d.value("VpcId")
	if vpc == "" {
		if d.stack != nil {
			own, err := d.list(ctx, "cloudformation", "list-stack-resources", "--stack-name", d.config.stack,
				"--query", "StackResourceSummaries[?LogicalResourceId==`Network`].PhysicalResourceId")
			if err != nil || len(own) > 0 {
				return err
			}
		}
		all, err := d.list(ctx, "ec2", "describe-vpcs", "--query", "Vpcs[].VpcId")
		if err != nil {
			return err
		}
		most := usualVPCs
		if text, err := d.aws(ctx, "service-quotas", "get-service-quota", "--service-code", "vpc", "--quota-code", "L-F678F1CE", "--query", "Quota.Value", "--output", "text"); err == nil {
			if n, err := strconv.ParseFloat(text, 64); err == nil {
				most = int(n)
			}
		}
		if len(all) >= most {
			d.fails("the region has %d VPCs, of %d that it may have: give VpcId and SubnetIds, or ask for more (quota L-F678F1CE)", len(all), most)
		}
		return nil
	}
	if d.value("PublicIp") != "false" {
		return nil
	}
	endpoints, err := d.list(ctx, "ec2", "describe-vpc-endpoints", "--filters", "Name=vpc-id,Values="+vpc, "--query", "VpcEndpoints[?ends_with(ServiceName, '.s3')].VpcEndpointId")
	if err != nil {
		return err
	}
	if len(endpoints) == 0 {
		d.say("the network %s has no gateway endpoint for S3, so each start of a box pays a NAT gateway some $0.02 for its image. The endpoint is free: aws ec2 create-vpc-endpoint --vpc-id %[1]s --service-name com.amazonaws.REGION.s3 --route-table-ids TABLE", vpc)
	}
	return nil
}

// roles checks that the account has the two IAM roles that are not part of a stack: the one of ECS
// and, with access logs, the one of API Gateway.
func (d *diagnosis) roles(ctx context.Context) error {
	if _, err := d.aws(ctx, "iam", "get-role", "--role-name", "AWSServiceRoleForECS"); err != nil && strings.Contains(err.Error(), "NoSuchEntity") {
		d.say("the account has no role for ECS yet; AWS makes it with the first cluster. If that fails, repeat it after\n  aws iam create-service-linked-role --aws-service-name ecs.amazonaws.com")
	}
	if d.value("AccessLogs") != "on" {
		return nil
	}
	role, err := d.aws(ctx, "apigateway", "get-account", "--query", "cloudwatchRoleArn", "--output", "text")
	if err != nil || role != "" && role != "None" {
		return err
	}
	d.fails(`AccessLogs=on needs a role with which API Gateway writes logs, once in this account and region:

  aws iam create-role --role-name %[1]s --assume-role-policy-document '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"Service":"apigateway.amazonaws.com"},"Action":"sts:AssumeRole"}]}'
  aws iam attach-role-policy --role-name %[1]s --policy-arn arn:aws:iam::aws:policy/service-role/AmazonAPIGatewayPushToCloudWatchLogs
  aws apigateway update-account --patch-operations op=replace,path=/cloudwatchRoleArn,value=$(aws iam get-role --role-name %[1]s --query Role.Arn --output text)
`, "apigateway-logs")
	return nil
}

// servers checks that the functions can use servers.json. The functions do not have the environment
// variables of the user. Boxes may read only secrets whose names begin with the name of the stack.
// servers does not check secrets that are named by ARN.
func (d *diagnosis) servers(ctx context.Context) error {
	c, _, err := serversfile.Load("servers.json", nil)
	if err != nil {
		return err
	}
	if rejected := c.Rejected(); len(rejected) > 0 {
		d.fails("%v\n(the functions have none of your variables: write a default, or \"ssm:/%s/NAME\" for a secret that is in AWS Systems Manager)", rejected[0], d.config.stack)
		return nil
	}
	var secrets map[string]string
	if name := d.value("ConnectSecrets"); name != "" {
		text, err := d.aws(ctx, "secretsmanager", "get-secret-value", "--secret-id", name, "--query", "SecretString", "--output", "text")
		if err != nil {
			return fmt.Errorf("ConnectSecrets names the secret %s, which cannot be read: %w", name, err)
		}
		d.bytes += len(text)
		if secrets, err = credentials.ReadSecrets(text); err != nil {
			return fmt.Errorf("ConnectSecrets names the secret %s, whose value is %w", name, err)
		}
	}
	if _, err := credentials.ReadProviders(c.Connect(), secrets); err != nil {
		d.fails("servers.json: %w\n(the functions have none of your variables, and read no .env: docs/third-parties.md says where the secret of a client comes from)", err)
	}
	for _, name := range c.Names() {
		server, _ := c.Server(name)
		if server.Native != "" && !server.Disabled && d.native == "" {
			d.fails("servers.json: server %q is in Go, and without your program the functions could serve nothing: name its folder, as in make deploy GO_SERVERS=../hello", name)
		}
		for variable, reference := range server.References() {
			_, secret, _ := serversfile.Reference(reference)
			if strings.HasPrefix(secret, "arn:") || strings.HasPrefix(strings.TrimPrefix(secret, "/"), d.config.stack+"/") {
				continue
			}
			d.fails("servers.json: server %q: env %q names %q, which boxes may not read: put it below %s/", name, variable, reference, d.config.stack)
		}
	}
	return nil
}

// environment checks that the environment variables of the functions are not over Lambda's limit.
func (d *diagnosis) environment(context.Context) error {
	n := ownBytes + 25*len(d.config.stack) + d.bytes + len(d.value("SubnetIds"))
	if n > environmentBytes {
		d.fails("the environment of the functions would have some %d bytes, and Lambda takes %d: keep fewer client secrets in ConnectSecrets, or fewer subnets", n, environmentBytes)
	}
	return nil
}

const (
	functionName = 64          // the most characters that the name of a function may have
	longestEnd   = "-box-2048" // what the longest name of a function adds to the name of the stack; see boxes.yaml
)

// stackName matches the stack names that CloudFormation accepts.
var stackName = regexp.MustCompile(`^[a-zA-Z][-a-zA-Z0-9]*$`)

// fits checks the name of the stack. The names of the stack's functions begin with it. If one of
// them were too long, CloudFormation would fail in the middle of a deployment.
func (s settings) fits() error {
	if !stackName.MatchString(s.stack) {
		return fmt.Errorf("%q is no name of a stack: letters, digits and - are, and the first is a letter", s.stack)
	}
	if most := functionName - len(longestEnd); len(s.stack) > most {
		return fmt.Errorf("the name of the stack has %d characters, and Lambda takes %d for the function %s%s: name the stack with at most %d in [%s.global.parameters] of samconfig.toml",
			len(s.stack), functionName, s.stack, longestEnd, most, s.section)
	}
	return nil
}
