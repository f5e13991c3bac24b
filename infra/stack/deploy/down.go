package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// tickets begins the name of a parameter in Systems Manager, and the name of a stack ends it. The
// parameter has the secret that encrypts the stack's tickets, which let boxes write events.
const tickets = "/dormouse.tickets/"

const (
	tasksEvery  = 5 * time.Second
	tasksWithin = 5 * time.Minute
)

// down deletes the stack, and what its functions have created. It keeps the table, the bucket
// and the secret for tickets unless p.purge is set.
func (p *program) down(ctx context.Context) error {
	s, err := p.existing(ctx)
	if err != nil {
		return err
	}
	if s.Kept {
		return fmt.Errorf("the stack %s is protected: make deploy CONFIG=%s ARGS=Protect=off lets it go", p.config.stack, p.config.section)
	}
	if !p.yes {
		what := "The stack is deleted; its table, bucket and secret of tickets stay."
		if p.purge {
			what = "The stack is deleted, with all sessions, keys and workspaces."
		}
		if err := p.answered(p.config.stack, "%s Type its name, %s, to go on", what, p.config.stack); err != nil {
			return err
		}
	}
	if s.whole() {
		if err := p.silence(ctx); err != nil {
			return err
		}
		if err := p.endTasks(ctx); err != nil {
			return err
		}
	}
	if err := p.boxesDown(ctx); err != nil {
		return err
	}
	if _, err := p.do(ctx, command{Name: p.sam, Args: []string{"delete", "--config-env", p.config.section, "--no-prompts"}, Show: true}); err != nil {
		return err
	}
	if err := p.definitions(ctx); err != nil {
		return err
	}
	return p.lasting(ctx, s)
}

// silence keeps the functions from starting boxes, by a limit of 0 invocations. AWS does not delete
// a cluster that has tasks, such as boxes, nor a network in which tasks run.
func (p *program) silence(ctx context.Context) error {
	for _, function := range []string{"-http", "-socket", "-sweep"} {
		if _, err := p.aws(ctx, "lambda", "put-function-concurrency", "--function-name", p.config.stack+function, "--reserved-concurrent-executions", "0"); err != nil {
			return err
		}
	}
	p.say("no function starts a box any more; if this ends early, run make delete again")
	return nil
}

// endTasks stops all boxes, which are tasks of ECS, and waits until all have ended. A task that was
// told to stop is in the cluster until AWS has removed its network interface. Until then ECS lists
// it only under the desired status STOPPED.
func (p *program) endTasks(ctx context.Context) error {
	cluster, err := p.aws(ctx, "cloudformation", "describe-stack-resource", "--stack-name", p.config.stack, "--logical-resource-id", "Cluster",
		"--query", "StackResourceDetail.PhysicalResourceId", "--output", "text")
	if err != nil {
		return err
	}
	asked := map[string]bool{}
	for end := time.Now().Add(tasksWithin); ; time.Sleep(tasksEvery) {
		tasks, err := p.list(ctx, "ecs", "list-tasks", "--cluster", cluster, "--query", "taskArns")
		if err != nil {
			return err
		}
		ending, err := p.ending(ctx, cluster)
		if err != nil || len(tasks)+len(ending) == 0 {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("%d tasks of the cluster %s have not ended; run make delete again", len(tasks)+len(ending), cluster)
		}
		for _, task := range tasks {
			if asked[task] {
				continue
			}
			if _, err := p.aws(ctx, "ecs", "stop-task", "--cluster", cluster, "--task", task, "--reason", "the stack is deleted"); err != nil {
				return err
			}
			asked[task] = true
		}
	}
}

// ending returns the tasks that were told to stop and have not stopped yet.
func (p *program) ending(ctx context.Context, cluster string) (all []string, err error) {
	stopped, err := p.list(ctx, "ecs", "list-tasks", "--cluster", cluster, "--desired-status", "STOPPED", "--query", "taskArns")
	if err != nil {
		return nil, err
	}
	for some := range slices.Chunk(stopped, 100) { // ECS describes at most 100 tasks at a time
		args := append([]string{"ecs", "describe-tasks", "--cluster", cluster, "--query", "tasks[?lastStatus!=`STOPPED`].taskArn", "--tasks"}, some...)
		left, err := p.list(ctx, args...)
		if err != nil {
			return nil, err
		}
		all = append(all, left...)
	}
	return all, nil
}

// definitions deletes the task definitions that the functions registered.
func (p *program) definitions(ctx context.Context) error {
	prefix := p.config.stack + "-box-"
	families, err := p.list(ctx, "ecs", "list-task-definition-families", "--family-prefix", prefix, "--status", "ACTIVE", "--query", "families")
	if err != nil {
		return err
	}
	ours := regexp.MustCompile("^" + regexp.QuoteMeta(prefix) + "[0-9a-f]{16}$") // another stack's name may have the same beginning
	for _, family := range families {
		if !ours.MatchString(family) {
			continue
		}
		all, err := p.list(ctx, "ecs", "list-task-definitions", "--family-prefix", family, "--query", "taskDefinitionArns")
		if err != nil {
			return err
		}
		for _, arn := range all {
			if _, err := p.aws(ctx, "ecs", "deregister-task-definition", "--task-definition", arn); err != nil {
				return err
			}
			if _, err := p.aws(ctx, "ecs", "delete-task-definitions", "--task-definitions", arn); err != nil {
				return err
			}
		}
	}
	return nil
}

// lasting deletes the resources that CloudFormation keeps when it deletes a stack, if p.purge is
// set. Otherwise it prints the commands that delete them.
func (p *program) lasting(ctx context.Context, s *stack) error {
	table, bucket := s.output("TableName"), s.output("BucketName")
	if table == "" || bucket == "" {
		return nil // the stack never created them
	}
	commands := [][]string{
		{"s3", "rb", "s3://" + bucket, "--force"},
		{"dynamodb", "delete-table", "--table-name", table},
		{"ssm", "delete-parameters", "--names", tickets + p.config.stack}, // no error if there is no such parameter, as after older releases
	}
	if !p.purge {
		p.say("Table, bucket and the secret of tickets are still there, with all sessions and workspaces. PURGE=1 deletes them too, and so do:")
		for _, c := range commands {
			p.say("  aws %s", strings.Join(c, " "))
		}
		return nil
	}
	failed := emptyBucket(ctx, p, bucket)
	for _, c := range commands {
		_, err := p.aws(ctx, c...)
		failed = errors.Join(failed, err)
	}
	return failed
}

// emptyBucket deletes all versions of all objects in a bucket, a thousand at a time. AWS deletes no
// bucket in which a version is left, and "aws s3 rb --force" deletes only the objects.
func emptyBucket(ctx context.Context, p *program, bucket string) error {
	for {
		text, err := p.aws(ctx, "s3api", "list-object-versions", "--bucket", bucket, "--no-paginate", "--output", "json",
			"--query", "{Objects:[Versions,DeleteMarkers][][].{Key:Key,VersionId:VersionId}}")
		if err != nil {
			return err
		}
		var versions struct{ Objects []json.RawMessage }
		if err := json.Unmarshal([]byte(text), &versions); err != nil {
			return fmt.Errorf("aws s3api list-object-versions does not say a list: %w", err)
		}
		if len(versions.Objects) == 0 {
			return nil
		}
		left, err := p.do(ctx, command{Name: "aws", Stdin: text, Args: []string{
			"s3api", "delete-objects", "--bucket", bucket, "--delete", "file:///dev/stdin", "--output", "json", "--query", "Errors",
		}})
		if err != nil {
			return err
		}
		if left = strings.TrimSpace(left); left != "" && left != "null" && left != "[]" {
			return fmt.Errorf("the bucket %s keeps what may not be deleted: %s", bucket, left)
		}
	}
}
