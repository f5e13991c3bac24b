package dormouse

import (
	"context"
	"encoding/json"
	"os/exec"

	"github.com/dormouse-mcp/dormouse/shared/store/dynamostore"
)

// signedIn returns the credentials that the aws command would use, which may come from a profile
// (AWS_PROFILE), a single sign-on or a role. If the command is missing or fails, signedIn returns
// none; the store then reports what is missing.
func signedIn(ctx context.Context) dynamostore.Keys {
	out, err := exec.CommandContext(ctx, "aws", "configure", "export-credentials", "--format", "process").Output()
	var got struct{ AccessKeyId, SecretAccessKey, SessionToken string } //nolint:revive,staticcheck // the names are those in the command's output
	if err != nil || json.Unmarshal(out, &got) != nil {
		return dynamostore.Keys{}
	}
	return dynamostore.Keys{ID: got.AccessKeyId, Secret: got.SecretAccessKey, Token: got.SessionToken}
}
