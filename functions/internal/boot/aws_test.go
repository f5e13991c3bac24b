package boot

import (
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestAServiceIsWhereItsPartitionHasIt(t *testing.T) {
	for _, env := range []string{EnvLocal, envEndpoint} {
		t.Setenv(env, "")
	}
	for region, test := range map[string]struct{ suffix, want string }{
		"eu-west-1":  {"", "https://ecs.eu-west-1.amazonaws.com"},
		"cn-north-1": {"amazonaws.com.cn", "https://ecs.cn-north-1.amazonaws.com.cn"},
	} {
		t.Setenv(envRegion, region)
		t.Setenv(envDomain, test.suffix)
		commontest.EqualIn(t, "ECS of "+region, test.want, endpoint("ecs"))
	}
}
