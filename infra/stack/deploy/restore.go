package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/internal/restored"
	"github.com/dormouse-mcp/dormouse/shared/store/dynamostore"
)

const (
	restoredEvery  = 20 * time.Second
	restoredWithin = 24 * time.Hour
)

// restore creates a new table with the content that the stack's table had at a time. It adds the
// settings that AWS does not restore, and prints the command that makes the functions use the new
// table. The argument at is a time in the form of RFC 3339, or "" for the newest second that AWS
// can restore, some five minutes ago.
func (p *program) restore(ctx context.Context, at string) error {
	s, err := p.existing(ctx)
	if err != nil {
		return err
	}
	if s.output("TableName") == "" {
		return fmt.Errorf("the stack %s has no table", p.config.stack)
	}
	when := []string{"--use-latest-restorable-time"}
	if at != "" {
		if _, err := time.Parse(time.RFC3339, at); err != nil {
			return fmt.Errorf("AT is %q; want a time such as 2026-11-23T12:00:00Z", at)
		}
		when = []string{"--restore-date-time", at}
	}
	keys, err := p.keys(ctx) // advance needs them; better to fail here, before the table is restored
	if err != nil {
		return err
	}
	table := p.config.stack + "-" + time.Now().UTC().Format("20060102t150405")
	_, err = p.aws(ctx, append([]string{
		"dynamodb", "restore-table-to-point-in-time", "--source-table-name", s.output("TableName"), "--target-table-name", table,
		"--billing-mode-override", "PAY_PER_REQUEST",
	}, when...)...)
	if err != nil {
		return err
	}
	p.say("%s is being restored; AWS takes some 20 minutes for most tables, and longer for large ones", table)
	if err := p.active(ctx, table); err != nil {
		return err
	}
	region, err := p.advance(ctx, table, keys)
	if err != nil {
		return fmt.Errorf("%s is restored, and cannot be used yet: %w", table, err)
	}
	for _, setting := range [][]string{
		{"update-time-to-live", "--time-to-live-specification", "Enabled=true,AttributeName=x"},
		{"update-continuous-backups", "--point-in-time-recovery-specification", "PointInTimeRecoveryEnabled=true"},
	} {
		if _, err := p.aws(ctx, append([]string{"dynamodb", setting[0], "--table-name", table}, setting[1:]...)...); err != nil {
			return fmt.Errorf("%s is restored, and lacks a setting: %w", table, err)
		}
	}
	p.say("\nLook at it:\n  bin/dormouse sessions --store 'dynamodb:%s?region=%s'\nHave the functions use it:\n  make deploy CONFIG=%s ARGS='RestoredTable=%s'", table, region, p.config.section, table)
	return nil
}

// advance prepares the boxes in a restored table for their next start, and returns the region of the
// table; see [restored.Advance].
func (p *program) advance(ctx context.Context, table string, keys dynamostore.Keys) (region string, err error) {
	arn, err := p.aws(ctx, "dynamodb", "describe-table", "--table-name", table, "--query", "Table.TableArn", "--output", "text")
	if err != nil {
		return "", err
	}
	parts := strings.SplitN(arn, ":", 5)
	if len(parts) < 5 {
		return "", fmt.Errorf("%q is no ARN of a table", arn)
	}
	at := dynamostore.Location{Table: table, Region: parts[3], Endpoint: os.Getenv("AWS_ENDPOINT_URL")}
	boxes, err := restored.Advance(ctx, dynamostore.New(at.Client(keys, nil), table, dynamostore.Options{}))
	if err == nil {
		p.say("%d boxes are ready to wake", boxes)
	}
	return at.Region, err
}

// keys returns the credentials that the aws command uses.
func (p *program) keys(ctx context.Context) (dynamostore.Keys, error) {
	if id := os.Getenv("AWS_ACCESS_KEY_ID"); id != "" {
		return dynamostore.Keys{ID: id, Secret: os.Getenv("AWS_SECRET_ACCESS_KEY"), Token: os.Getenv("AWS_SESSION_TOKEN")}, nil
	}
	text, err := p.aws(ctx, "configure", "export-credentials", "--format", "process")
	if err != nil {
		return dynamostore.Keys{}, fmt.Errorf("want version 2 of the aws command, signed in: %w", err)
	}
	var k struct{ AccessKeyId, SecretAccessKey, SessionToken string } //nolint:revive,staticcheck // names in the command's output
	if err := json.Unmarshal([]byte(text), &k); err != nil {
		return dynamostore.Keys{}, fmt.Errorf("aws configure export-credentials: %w", err)
	}
	return dynamostore.Keys{ID: k.AccessKeyId, Secret: k.SecretAccessKey, Token: k.SessionToken}, nil
}

// active waits until AWS has restored a table.
func (p *program) active(ctx context.Context, table string) error {
	for end := time.Now().Add(restoredWithin); ; time.Sleep(restoredEvery) {
		status, err := p.aws(ctx, "dynamodb", "describe-table", "--table-name", table, "--query", "Table.TableStatus", "--output", "text")
		switch {
		case err != nil && !strings.Contains(err.Error(), "ResourceNotFound"): // a new table may not be there yet
			return err
		case status == "ACTIVE":
			return nil
		case time.Now().After(end):
			return fmt.Errorf("%s is %s after %s; once it is ACTIVE, switch on its time to live (x) and its point-in-time recovery", table, status, restoredWithin)
		}
	}
}
