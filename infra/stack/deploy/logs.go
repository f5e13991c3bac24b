package main

import (
	"context"
	"fmt"
	"slices"
)

// logs follows the logs of the functions, the boxes and the APIs until the user interrupts it.
// It passes the names of all log groups to sam logs. Without them, sam logs looks for a default
// stage of each WebSocket API, and fails because there is none.
func (p *program) logs(ctx context.Context) error {
	if _, err := p.existing(ctx); err != nil {
		return err
	}
	groups, err := p.list(ctx, "cloudformation", "list-stack-resources", "--stack-name", p.config.stack,
		"--query", "StackResourceSummaries[?ResourceType==`AWS::Logs::LogGroup`].PhysicalResourceId")
	if err != nil {
		return err
	}
	if len(groups) == 0 {
		return fmt.Errorf("the stack %s has no logs", p.config.stack)
	}
	args := []string{"logs", "--config-env", p.config.section, "--tail"}
	for _, group := range slices.Sorted(slices.Values(groups)) {
		args = append(args, "--cw-log-group", group)
	}
	_, err = p.do(ctx, command{Name: p.sam, Args: args, Show: true})
	return err
}
