package boot

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

func TestStoreThatIsNoneIsNamed(t *testing.T) {
	t.Setenv(envRegion, "eu-west-1")
	s, _, err := openStore("dynamodb:dormouse", sessions.Limits{})
	commontest.OK(t, err)
	commontest.Check(t, s.Close())
	for _, form := range []string{"", "redis:x", "sqlite:", "dynamodb:", "dynamodb:x", "dynamodb:dormouse?zone=1", "dynamodb:dormouse?region=r&region=s", "dynamodb:dormouse?endpoint=localhost:8000", "dynamodb:dormouse?endpoint=%zz"} {
		if _, _, err := openStore(form, sessions.Limits{}); err == nil || !strings.HasPrefix(err.Error(), EnvStore) {
			t.Errorf("%q: error is %v, want one of %s", form, err, EnvStore)
		}
	}
}

func TestWhatIsDeployedHasNoSQLite(t *testing.T) {
	const functions = "github.com/dormouse-mcp/dormouse/functions/..."
	deps := func(tags string) string {
		out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-tags", tags, functions).CombinedOutput()
		commontest.OKIn(t, "go list says "+string(out), err)
		return string(out)
	}
	deployed := deps("lambda.norpc,aws")
	for _, module := range []string{"modernc.org/sqlite", "shared/store/sqlitestore", "aws-sdk-go-v2/config"} {
		if strings.Contains(deployed, module) {
			t.Errorf("with -tags aws the functions import %s", module)
		}
	}
	commontest.Contains(t, "without -tags aws", "modernc.org/sqlite", deps("lambda.norpc"))
}
