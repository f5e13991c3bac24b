package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

type stack struct {
	ID      string // its ARN
	Status  string
	Params  map[string]string
	Outputs []output
	Kept    bool   // CloudFormation refuses to delete it
	Updated string // time of the last update, "" before the first
}

type output struct {
	OutputKey, OutputValue, Description string
}

// output returns an output of the stack, "" if it has none of this name.
func (s *stack) output(name string) string {
	for _, o := range s.Outputs {
		if o.OutputKey == name {
			return o.OutputValue
		}
	}
	return ""
}

// describe returns the stack as AWS describes it, or nil if there is none.
func (p *program) describe(ctx context.Context) (*stack, error) {
	text, err := p.aws(ctx, "cloudformation", "describe-stacks", "--stack-name", p.config.stack, "--output", "json")
	if err != nil {
		if strings.Contains(err.Error(), "does not exist") {
			return nil, nil
		}
		return nil, err
	}
	var got struct {
		Stacks []struct {
			StackId     string //nolint:revive,staticcheck // the name in AWS's answer
			StackStatus string
			Updated     string `json:"LastUpdatedTime"`
			Kept        bool   `json:"EnableTerminationProtection"`
			Parameters  []struct{ ParameterKey, ParameterValue string }
			Outputs     []output
		}
	}
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		return nil, fmt.Errorf("aws cloudformation describe-stacks: %w", err)
	}
	if len(got.Stacks) != 1 {
		return nil, fmt.Errorf("aws describes %d stacks of the name %s", len(got.Stacks), p.config.stack)
	}
	one := got.Stacks[0]
	s := &stack{ID: one.StackId, Status: one.StackStatus, Params: map[string]string{}, Outputs: one.Outputs, Kept: one.Kept, Updated: one.Updated}
	for _, pair := range one.Parameters {
		s.Params[pair.ParameterKey] = pair.ParameterValue
	}
	return s, nil
}

// existing returns the stack, or an error if there is none.
func (p *program) existing(ctx context.Context) (*stack, error) {
	s, err := p.describe(ctx)
	if err == nil && s == nil {
		err = fmt.Errorf("there is no stack %s in this account and region", p.config.stack)
	}
	return s, err
}

// whole reports whether the last change of the stack has succeeded, or was rolled back. Only such
// a stack can be updated.
func (s *stack) whole() bool {
	return slices.Contains([]string{"CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE", "IMPORT_COMPLETE"}, s.Status)
}

// list runs the aws command, whose output must be a JSON list of strings, and returns that list.
func (p *program) list(ctx context.Context, args ...string) ([]string, error) {
	text, err := p.aws(ctx, append(args, "--output", "json")...)
	if err != nil {
		return nil, err
	}
	var all []string
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return nil, fmt.Errorf("aws %s does not say a list: %w", strings.Join(args[:2], " "), err)
	}
	return all, nil
}
