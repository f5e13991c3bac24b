package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/access/credentials"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
)

// fewInvocations is the number of concurrent invocations that Lambda always keeps
// unreserved. In an account with a smaller limit, waiting clients soon use all
// invocations.
const fewInvocations = 100

// quotaCommand asks AWS to raise the limit to the usual one of an older account.
const quotaCommand = "aws service-quotas request-service-quota-increase --service-code lambda --quota-code L-B99A9384 --desired-value 1000"

// concurrency reads how many concurrent invocations the account may have. It returns
// parameters for a new stack that keep waiting clients from using them all.
func (p *program) concurrency(ctx context.Context) (map[string]string, error) {
	text, err := p.aws(ctx, "lambda", "get-account-settings", "--output", "json")
	if err != nil {
		return nil, err
	}
	var got struct {
		AccountLimit struct{ ConcurrentExecutions, UnreservedConcurrentExecutions int }
	}
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		return nil, fmt.Errorf("aws lambda get-account-settings: %w", err)
	}
	total, free := got.AccountLimit.ConcurrentExecutions, got.AccountLimit.UnreservedConcurrentExecutions
	if total < fewInvocations {
		if !p.force {
			return nil, fmt.Errorf("this account may have %d invocations at a time, and each waiting client holds one: "+
				"ask for more, which takes AWS some hours, or take FORCE=1 to deploy all the same\n\n  %s", total, quotaCommand)
		}
		p.say("This account may have %d invocations at a time. More clients than that at once are throttled:\n\n  %s\n", total, quotaCommand)
	}
	own := map[string]string{"WaitingCalls": strconv.Itoa(max(1, total/3))}
	if http, relay := free/2, free/10; free-http-relay >= fewInvocations {
		own["HttpConcurrency"], own["RelayConcurrency"] = strconv.Itoa(http), strconv.Itoa(relay)
	}
	return own, nil
}

// logsRole refuses access logs in an account whose API Gateway has no role to write them.
// The role belongs to all APIs of the region, so no stack makes it.
func (p *program) logsRole(ctx context.Context) error {
	role, err := p.aws(ctx, "apigateway", "get-account", "--query", "cloudwatchRoleArn", "--output", "text")
	if err != nil {
		return err
	}
	if role != "" && role != "None" {
		return nil
	}
	const name = "apigateway-logs"
	return fmt.Errorf(`AccessLogs=on needs a role with which API Gateway writes logs, once in this account and region:

  aws iam create-role --role-name %[1]s --assume-role-policy-document '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"Service":"apigateway.amazonaws.com"},"Action":"sts:AssumeRole"}]}'
  aws iam attach-role-policy --role-name %[1]s --policy-arn arn:aws:iam::aws:policy/service-role/AmazonAPIGatewayPushToCloudWatchLogs
  aws apigateway update-account --patch-operations op=replace,path=/cloudwatchRoleArn,value=$(aws iam get-role --role-name %[1]s --query Role.Arn --output text)`, name)
}

// withFargate lists the zones with Fargate, for the regions where some zones lack it.
var withFargate = map[string][]string{ //nolint:gochecknoglobals // read only
	"usw1": {"usw1-az1", "usw1-az3"}, "apne1": {"apne1-az1", "apne1-az2", "apne1-az4"},
}

// zones returns parameters for a new stack with a network of its own, if some zones of the
// region lack Fargate. They name two zones that have it. In other regions zones returns
// none.
func (p *program) zones(ctx context.Context) (map[string]string, error) {
	there, err := p.list(ctx, "ec2", "describe-availability-zones", "--query", "AvailabilityZones[].ZoneId")
	if err != nil {
		return nil, err
	}
	var good []string
	odd := false
	for _, zone := range there {
		region, _, _ := strings.Cut(zone, "-")
		if having, some := withFargate[region]; some {
			odd = true
			if !slices.Contains(having, zone) {
				continue
			}
		}
		good = append(good, zone)
	}
	if !odd {
		return nil, nil
	}
	if len(good) < 2 {
		return nil, fmt.Errorf("this account has %v, of which %v have Fargate; two are needed: give VpcId and SubnetIds", there, good)
	}
	slices.Sort(good)
	return map[string]string{"ZoneIds": good[0] + "," + good[1]}, nil
}

// value returns the value that a parameter will have, "" for the template's own: params has
// what this deployment sets, and s is the stack, nil for a new one.
func value(params map[string]string, s *stack, name string) string {
	if given, ok := params[name]; ok || s == nil {
		return given
	}
	return s.Params[name]
}

// connectSecrets returns the client secrets that the functions will get, by the names of
// third parties.
func (p *program) connectSecrets(ctx context.Context, params map[string]string, s *stack) (secrets map[string]string, err error) {
	name := value(params, s, "ConnectSecrets")
	if name == "" {
		return nil, nil
	}
	text, err := p.aws(ctx, "secretsmanager", "get-secret-value", "--secret-id", name, "--query", "SecretString", "--output", "text")
	if err != nil {
		return nil, fmt.Errorf("ConnectSecrets names the secret %s, which cannot be read: %w", name, err)
	}
	if secrets, err = credentials.ReadSecrets(text); err != nil {
		return nil, fmt.Errorf("ConnectSecrets names the secret %s, whose value is %w", name, err)
	}
	return secrets, nil
}

// servers checks that the functions will be able to read servers.json. They have none of
// the caller's variables, and boxes may read only the secrets below one path.
func (p *program) servers(ctx context.Context, params map[string]string, s *stack) error {
	c, _, err := serversfile.Load("servers.json", nil)
	if err != nil {
		return err
	}
	if rejected := c.Rejected(); len(rejected) > 0 {
		return fmt.Errorf("%v\n(the functions have none of your variables: write a default, or \"ssm:/%s/NAME\" for a secret that is in AWS Systems Manager)",
			rejected[0], p.config.stack)
	}
	secrets, err := p.connectSecrets(ctx, params, s)
	if err != nil {
		return err
	}
	if _, err := credentials.ReadProviders(c.Connect(), secrets); err != nil {
		return fmt.Errorf("servers.json: %w\n(the functions have none of your variables, and read no .env: docs/third-parties.md says where the secret of a client comes from)", err)
	}
	path := p.config.stack
	for _, name := range c.Names() {
		server, _ := c.Server(name)
		for variable, reference := range server.References() {
			_, secret, _ := serversfile.Reference(reference)
			if strings.HasPrefix(secret, "arn:") || strings.HasPrefix(strings.TrimPrefix(secret, "/"), path+"/") {
				continue
			}
			return fmt.Errorf("servers.json: server %q: env %q names %q, which boxes may not read: put it below %s/",
				name, variable, reference, path)
		}
	}
	return nil
}

// settle is how long IAM takes until a new role can be used everywhere.
const settle = 10 * time.Second

// serviceRole creates the role in which ECS acts. AWS creates it with the first cluster of
// an account, but that cluster may fail because the role is so new.
func (p *program) serviceRole(ctx context.Context) {
	_, err := p.aws(ctx, "iam", "create-service-linked-role", "--aws-service-name", "ecs.amazonaws.com")
	switch {
	case err == nil:
		p.say("made the account's role for ECS")
		time.Sleep(settle)
	case strings.Contains(err.Error(), "has been taken"), strings.Contains(err.Error(), "EntityAlreadyExists"): // the role exists
	default:
		p.say("whether the account has its role for ECS is not known: %v", err)
	}
}

// coherent checks values that depend on each other. The template cannot do that.
func coherent(params map[string]string) error {
	number := func(name string, usual int) int {
		if n, err := strconv.Atoi(params[name]); err == nil {
			return n
		}
		return usual
	}
	days, hours := number("SnapshotDays", 15), number("SessionHours", 168)
	if days*24 < 2*hours {
		return fmt.Errorf("SnapshotDays=%d is less than twice SessionHours=%d: a session would lose its workspace while it lives; take SnapshotDays=%d",
			days, hours, (2*hours+23)/24)
	}
	return nil
}
