package boot

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

func TestStoreIsOpenedByItsForm(t *testing.T) {
	t.Setenv(envRegion, "eu-west-1")
	forms := []string{"dynamodb:dormouse"}
	if sqliteForm != "" { // this build has SQLite
		forms = append(forms, "sqlite:"+filepath.Join(t.TempDir(), "store.db"))
	}
	for _, form := range forms {
		s, _, err := openStore(form, sessions.Limits{})
		commontest.OKIn(t, form, err)
		commontest.Check(t, s.Close())
	}
}

func TestStoreThatIsNoneIsToldWithWhatItMayBe(t *testing.T) {
	t.Setenv(envRegion, "")
	t.Setenv("AWS_DEFAULT_REGION", "")
	for name, test := range map[string]struct{ form, want string }{
		"not set":          {"", "is not set; want "},
		"another kind":     {"redis:x", `is "redis:x"; want `},
		"no path":          {"sqlite:", `is "sqlite:"; want `},
		"no table":         {"dynamodb:", `is "dynamodb:"; want `},
		"short table":      {"dynamodb:x?region=r", `"x" is no name of a table`},
		"no region":        {"dynamodb:dormouse", "set AWS_REGION"},
		"unknown setting":  {"dynamodb:dormouse?zone=1&region=r", `"zone" is not a setting`},
		"twice":            {"dynamodb:dormouse?region=r&region=s", `"region" is not a setting of a table, or is there twice`},
		"endpoint no URL":  {"dynamodb:dormouse?endpoint=localhost:8000", "is no endpoint"},
		"query unreadable": {"dynamodb:dormouse?endpoint=%zz", "malformed"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := openStore(test.form, sessions.Limits{})
			if err == nil || !strings.HasPrefix(err.Error(), EnvStore) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error is %v, want one of %s with %q", err, EnvStore, test.want)
			}
		})
	}
}

func TestWhatIsDeployedHasNoSQLite(t *testing.T) {
	const functions = "github.com/dormouse-mcp/dormouse/functions/..."
	deps := func(tags string) string {
		out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-tags", tags, functions).CombinedOutput()
		if err != nil {
			t.Fatalf("go list: %v\n%s", err, out)
		}
		return string(out)
	}
	deployed := deps("lambda.norpc,aws")
	for _, module := range []string{"modernc.org/sqlite", "shared/store/sqlitestore", "aws-sdk-go-v2/config"} {
		if strings.Contains(deployed, module) {
			t.Errorf("with -tags aws the functions import %s", module)
		}
	}
	if !strings.Contains(deps("lambda.norpc"), "modernc.org/sqlite") {
		t.Error("without -tags aws the functions have no SQLite, so this test shows nothing")
	}
}
