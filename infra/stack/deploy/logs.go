package main

import (
	"context"
	"fmt"
	"slices"
)

// logs follows the logs of the functions, the boxes and the APIs until the user ends it.
// Without names of log groups, sam logs would look for the default stage of each WebSocket
// API, which has none, and fail.
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
