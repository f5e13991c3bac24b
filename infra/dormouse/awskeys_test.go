package dormouse

import (
	"os"
	"path/filepath"
	"testing"

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
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"} {
		t.Setenv(name, "")
	}
	of := func(getenv func(string) string) dynamostore.Keys {
		getenv = awsCredentials(t.Context(), getenv)
		return dynamostore.Keys{ID: getenv("AWS_ACCESS_KEY_ID"), Secret: getenv("AWS_SECRET_ACCESS_KEY"), Token: getenv("AWS_SESSION_TOKEN")}
	}
	if got, want := of(os.Getenv), (dynamostore.Keys{ID: "A", Secret: "S", Token: "T"}); got != want {
		t.Errorf("the aws command's: %+v", got)
	}
	instead := map[string]string{"AWS_ACCESS_KEY_ID": "i", "AWS_SECRET_ACCESS_KEY": "s"}
	if got, want := of(func(name string) string { return instead[name] }), (dynamostore.Keys{ID: "i", Secret: "s"}); got != want {
		t.Errorf("what stands in: %+v", got)
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "env")
	if got := of(os.Getenv); got.ID != "env" {
		t.Errorf("the environment's: %+v", got)
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	t.Setenv("PATH", t.TempDir())
	if got := of(os.Getenv); got != (dynamostore.Keys{}) {
		t.Errorf("nobody's: %+v", got)
	}
}
