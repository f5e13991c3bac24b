package main

import (
	"context"
	"encoding/json"
	"os/exec"

	"github.com/dormouse-mcp/dormouse/shared/dynamostore"
)

// signedIn asks the aws command for the credentials that it would use itself: of a
// profile (AWS_PROFILE), of a single sign-on, of a role. It returns no credentials
// without the command, or if the command has none; the store then reports what is
// missing.
func signedIn(ctx context.Context) dynamostore.Keys {
	out, err := exec.CommandContext(ctx, "aws", "configure", "export-credentials", "--format", "process").Output()
	var got struct{ AccessKeyId, SecretAccessKey, SessionToken string } //nolint:revive,staticcheck // names of the command
	if err != nil || json.Unmarshal(out, &got) != nil {
		return dynamostore.Keys{}
	}
	return dynamostore.Keys{ID: got.AccessKeyId, Secret: got.SecretAccessKey, Token: got.SessionToken}
}
