package dormouse

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/store/dynamostore"
)

func TestCredentialsComeFromTheEnvironmentThenFromTheAWSCommand(t *testing.T) {
	dir := t.TempDir()
	script := "#!/bin/sh\n[ \"$*\" = 'configure export-credentials --format process' ] || exit 1\n" +
		`echo '{"Version":1,"AccessKeyId":"A","SecretAccessKey":"S","SessionToken":"T","Expiration":"2026-11-22T00:00:00Z"}'` + "\n"
	if err := os.WriteFile(filepath.Join(dir, "aws"), []byte(script), 0o700); err != nil { //nolint:gosec // it is a program
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"} {
		t.Setenv(name, "")
	}
	of := func(store string) dynamostore.Keys {
		getenv := awsCredentials(t.Context(), store)
		return dynamostore.Keys{ID: getenv("AWS_ACCESS_KEY_ID"), Secret: getenv("AWS_SECRET_ACCESS_KEY"), Token: getenv("AWS_SESSION_TOKEN")}
	}
	if got, want := of("dynamodb:t"), (dynamostore.Keys{ID: "A", Secret: "S", Token: "T"}); got != want {
		t.Errorf("the aws command's: %+v", got)
	}
	commontest.EqualIn(t, "DynamoDB Local's", (dynamostore.Keys{}), of("dynamodb:t?endpoint=http://127.0.0.1:8000"))
	t.Setenv("AWS_ACCESS_KEY_ID", "env")
	commontest.EqualIn(t, "the environment's", "env", of("dynamodb:t").ID)
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	t.Setenv("PATH", t.TempDir())
	commontest.EqualIn(t, "nobody's", (dynamostore.Keys{}), of("dynamodb:t"))
}
