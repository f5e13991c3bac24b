package boot

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/catalog"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

func keeps(t *testing.T, where string) (*Function, error) {
	t.Helper()
	t.Setenv(envRegion, "eu-test-1")
	file := filepath.Join(t.TempDir(), "servers.json")
	text := `{"mcpServers":{"kept":{"command":"a","x-dormouse":{"box":{"snapshot":"session"}}},
		"common":{"command":"a","x-dormouse":{"box":{"snapshot":"principal"}}},"plain":{"command":"a"}}}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	servers, _, err := catalog.Load(file, os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	f := &Function{Catalog: servers}
	return f, f.keep(where)
}

func TestWhereBoxesKeepTheirWorkspaces(t *testing.T) {
	for where, told := range map[string]string{
		"": "", "folder:/x": "folder:/x", "s3:kept": "host", "s3:kept/a?endpoint=http://127.0.0.1:9": "host",
	} {
		f, err := keeps(t, where)
		if err != nil {
			t.Errorf("%q: %v", where, err)
			continue
		}
		env, err := f.launch(session.Box{Server: "kept"})
		if err != nil || env[EnvSnapshots] != told {
			t.Errorf("%q: a runner is told %q, %v", where, env[EnvSnapshots], err)
		}
	}
	for _, where := range []string{"folder:x", "folder:", "/x", "s3:", "s3:K", "gs:kept", "host"} {
		if _, err := keeps(t, where); err == nil {
			t.Errorf("%q is taken", where)
		}
	}
}

func TestBucketIsForThoseFunctionsWithRightsInIt(t *testing.T) {
	f, err := keeps(t, "s3:kept")
	if err != nil {
		t.Fatal(err)
	}
	if f.Relay.Snapshots != nil || f.Relay.Forget != nil {
		t.Error("every function uses it")
	}
	if c := f.RelayWithBucket(); c.Snapshots == nil || c.Forget == nil || c.Kept == nil {
		t.Error("none does")
	}
	if f, err = keeps(t, "folder:/x"); err != nil {
		t.Fatal(err)
	}
	if f.Relay.Snapshots != nil || f.Relay.Forget == nil {
		t.Error("what is in a folder is removed by every function, and given by none")
	}
}

func TestOnlyWhatIsKeptForASessionGoesWithIt(t *testing.T) {
	f, err := keeps(t, "folder:/x")
	if err != nil {
		t.Fatal(err)
	}
	for server, want := range map[string]bool{"kept": true, "common": false, "plain": false, "unknown": false} {
		if got := f.Relay.Kept(server); got != want {
			t.Errorf("%s: %t", server, got)
		}
	}
}
