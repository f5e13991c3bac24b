package dormouse

import (
	"context"
	"encoding/json"
	"os/exec"

	"github.com/dormouse-mcp/dormouse/shared/store/dynamostore"
)

// signedIn asks the aws command for the credentials that the command would use itself.
// They may be those of a profile (AWS_PROFILE), of a single sign-on, or of a role. If
// there is no command, or it has none, signedIn returns no credentials. The store then
// reports what is missing.
func signedIn(ctx context.Context) dynamostore.Keys {
	out, err := exec.CommandContext(ctx, "aws", "configure", "export-credentials", "--format", "process").Output()
	var got struct{ AccessKeyId, SecretAccessKey, SessionToken string } //nolint:revive,staticcheck // the aws command calls them so
	if err != nil || json.Unmarshal(out, &got) != nil {
		return dynamostore.Keys{}
	}
	return dynamostore.Keys{ID: got.AccessKeyId, Secret: got.SecretAccessKey, Token: got.SessionToken}
}
