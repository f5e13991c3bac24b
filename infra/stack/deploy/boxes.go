package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
)

// boxes deploys a second stack, with Lambda functions that run boxes. It cannot be part of the first
// stack, because a function needs its image when it is created, and the repository for that image is
// in the first stack. At the end boxes sets the parameter BoxFunctions of the first stack.
func (p *program) boxes(ctx context.Context) error {
	s, err := p.current(ctx)
	if err != nil {
		return err
	}
	if s == nil || !s.whole() {
		return fmt.Errorf("there is no stack %s that is complete: run make deploy first", p.config.stack)
	}
	arch := s.Params["Architecture"]
	tag, err := p.tag(ctx, arch)
	if err != nil {
		return err
	}
	image, err := p.image(ctx, s, tag, arch)
	if err != nil {
		return err
	}
	_, err = p.do(ctx, command{Show: true, Name: "aws", Args: []string{
		"cloudformation", "deploy", "--template-file", "infra/stack/boxes.yaml", "--stack-name", p.config.stack + boxesEnd,
		"--capabilities", "CAPABILITY_IAM", "--no-fail-on-empty-changeset",
		"--parameter-overrides", "Name=" + p.config.stack, "Architecture=" + arch, "Image=" + image,
	}})
	if err != nil {
		return err
	}
	return p.set(ctx, s, "BoxFunctions", "on")
}

// boxesEnd, after the name of the first stack, makes the name of the second one.
const boxesEnd = "-boxes"

// set gives one parameter of the stack another value, and waits until the stack is updated. The
// template and the other parameters stay as they are.
func (p *program) set(ctx context.Context, s *stack, name, value string) error {
	if s.Params[name] == value {
		return nil
	}
	args := []string{
		"cloudformation", "update-stack", "--stack-name", p.config.stack, "--use-previous-template",
		"--capabilities", "CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND",
		"--rollback-configuration", `{"RollbackTriggers":[]}`, // otherwise an alarm that is on would undo the update
		"--parameters", "ParameterKey=" + name + ",ParameterValue=" + value,
	}
	for _, other := range slices.Sorted(maps.Keys(s.Params)) {
		if other != name {
			args = append(args, "ParameterKey="+other+",UsePreviousValue=true")
		}
	}
	if _, err := p.aws(ctx, args...); err != nil {
		return err
	}
	p.say("%s is being set to %s", name, value)
	_, err := p.aws(ctx, "cloudformation", "wait", "stack-update-complete", "--stack-name", p.config.stack)
	return err
}

// boxesDown deletes the stack that boxes has deployed, if there is one.
func (p *program) boxesDown(ctx context.Context) error {
	name := p.config.stack + boxesEnd
	there, err := p.list(ctx, "cloudformation", "list-stacks", "--stack-status-filter", "CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE", "ROLLBACK_COMPLETE", "CREATE_FAILED", "DELETE_FAILED",
		"--query", "StackSummaries[?StackName==`"+name+"`].StackName")
	if err != nil || len(there) == 0 {
		return err
	}
	if _, err := p.aws(ctx, "cloudformation", "delete-stack", "--stack-name", name); err != nil {
		return err
	}
	_, err = p.aws(ctx, "cloudformation", "wait", "stack-delete-complete", "--stack-name", name)
	return err
}
