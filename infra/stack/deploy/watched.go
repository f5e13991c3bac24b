package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// triggers returns the logical names of the alarms that roll an update back.
// CloudFormation takes at most five.
func triggers() []string {
	return []string{"HttpErrorsAlarm", "HttpApiErrorsAlarm", "SocketErrorsAlarm", "RelayErrorsAlarm", "FailedStartsAlarm"}
}

// minutes returns for how long CloudFormation watches alarms after an update: 0 for not at
// all, and -1 if the caller has not said.
func minutes(text string) (int, error) {
	if text == "" {
		return -1, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > 180 {
		return 0, fmt.Errorf("ROLLBACK is %q; want 0 to 180 minutes", text)
	}
	return n, nil
}

// watched updates a stack as sam deploy does, and has CloudFormation watch alarms
// meanwhile and for some minutes after. If an alarm rings, CloudFormation rolls
// everything back. With 0 minutes CloudFormation watches no alarm, not even those of the
// last update: an alarm that rings already would roll back the update that fixes its
// cause. The command sam has no flag for either.
func (p *program) watched(ctx context.Context, s *stack, params map[string]string, minutes int) error {
	if p.config.confirm && !p.yes {
		if err := p.answered("y", "Update the stack %s? y or n", p.config.stack); err != nil {
			return err
		}
	}
	packaged, err := p.do(ctx, command{Name: p.sam, Args: []string{"package", "--config-env", p.config.section, "--resolve-s3", "--s3-prefix", p.config.stack}})
	if err != nil {
		return err
	}
	at := regexp.MustCompile(`CodeUri: s3://([^/]+)/`).FindStringSubmatch(packaged)
	parts := strings.SplitN(s.ID, ":", 5) // an ARN
	if at == nil || len(parts) < 5 {
		return fmt.Errorf("sam package does not say where the code is, or the stack %q not its region", s.ID)
	}
	packaged = packaged[max(0, strings.Index(packaged, "AWSTemplateFormatVersion")):]
	sum := sha256.Sum256([]byte(packaged))
	object := p.config.stack + "/" + hex.EncodeToString(sum[:16]) + ".template"
	if _, err := p.do(ctx, command{Name: "aws", Args: []string{"s3", "cp", "-", "s3://" + at[1] + "/" + object}, Stdin: packaged}); err != nil {
		return err
	}
	url := "https://s3." + parts[3] + "." + suffix(parts[1]) + "/" + at[1] + "/" + object // as sam deploy writes it
	known, err := p.list(ctx, "cloudformation", "validate-template", "--template-url", url, "--query", "Parameters[].ParameterKey")
	if err != nil {
		return err
	}
	rollback, err := p.rollback(ctx, minutes)
	if err != nil {
		return err
	}
	args := []string{
		"cloudformation", "update-stack", "--stack-name", p.config.stack, "--template-url", url, "--capabilities", "CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND",
		"--rollback-configuration", rollback, "--parameters",
	}
	for _, name := range slices.Sorted(slices.Values(known)) {
		if value, ok := params[name]; ok {
			args = append(args, asJSON(map[string]string{"ParameterKey": name, "ParameterValue": value}))
		} else if _, ok := s.Params[name]; ok {
			args = append(args, asJSON(map[string]any{"ParameterKey": name, "UsePreviousValue": true}))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(params)) {
		if !slices.Contains(known, name) {
			return fmt.Errorf("template.yaml has no parameter %s", name)
		}
	}
	if _, err := p.aws(ctx, args...); err != nil {
		if strings.Contains(err.Error(), "No updates are to be performed") {
			return nil
		}
		return err
	}
	if minutes > 0 {
		p.say("the stack is being updated; for %d minutes after, these alarms roll it back: %s", minutes, strings.Join(triggers(), ", "))
	}
	return p.updated(ctx)
}

// updated returns when an update has ended. The aws command waits an hour at most, and
// CloudFormation may watch alarms for three.
func (p *program) updated(ctx context.Context) error {
	for {
		_, err := p.aws(ctx, "cloudformation", "wait", "stack-update-complete", "--stack-name", p.config.stack)
		if err == nil {
			return nil
		}
		s, failed := p.describe(ctx)
		if failed != nil {
			return failed
		}
		if s == nil || !strings.Contains(err.Error(), "Max attempts exceeded") || !strings.HasSuffix(s.Status, "_IN_PROGRESS") {
			return fmt.Errorf("the stack was not updated, or was rolled back; its events say why: %w", err)
		}
	}
}

// suffix returns the end of AWS's domain names in a partition.
func suffix(partition string) string {
	switch partition {
	case "aws-cn":
		return "amazonaws.com.cn"
	case "aws-eusc":
		return "amazonaws.eu"
	}
	return "amazonaws.com"
}

func (p *program) rollback(ctx context.Context, minutes int) (string, error) {
	if minutes == 0 {
		return asJSON(map[string]any{"RollbackTriggers": []string{}}), nil
	}
	const missing = "the stack %s has no alarms: deploy it once with AlarmEmail=ADDRESS, then again with ROLLBACK"
	watch, err := p.list(ctx, "cloudformation", "list-stack-resources", "--stack-name", p.config.stack,
		"--query", "StackResourceSummaries[?LogicalResourceId==`Watch`].PhysicalResourceId")
	if err != nil {
		return "", err
	}
	if len(watch) != 1 {
		return "", fmt.Errorf(missing, p.config.stack)
	}
	names, err := p.list(ctx, "cloudformation", "list-stack-resources", "--stack-name", watch[0],
		"--query", "StackResourceSummaries[?contains(`"+asJSON(triggers())+"`, LogicalResourceId)].PhysicalResourceId")
	if err != nil {
		return "", err
	}
	if len(names) != len(triggers()) {
		return "", fmt.Errorf(missing, p.config.stack)
	}
	arns, err := p.list(ctx, append(append([]string{"cloudwatch", "describe-alarms", "--alarm-names"}, names...), "--query", "MetricAlarms[].AlarmArn")...)
	if err != nil {
		return "", err
	}
	if len(arns) != len(triggers()) {
		return "", fmt.Errorf("CloudWatch has %d of the alarms %v of the stack: deploy it once without ROLLBACK", len(arns), triggers())
	}
	var all []map[string]string
	for _, arn := range arns {
		all = append(all, map[string]string{"Arn": arn, "Type": "AWS::CloudWatch::Alarm"})
	}
	return asJSON(map[string]any{"RollbackTriggers": all, "MonitoringTimeInMinutes": minutes}), nil
}

// asJSON encodes what has only strings, numbers and booleans.
func asJSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(text)
}
