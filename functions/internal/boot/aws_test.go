package boot

import "testing"

func TestAServiceIsWhereItsPartitionHasIt(t *testing.T) {
	for _, env := range []string{EnvLocal, envEndpoint} {
		t.Setenv(env, "")
	}
	for region, test := range map[string]struct{ suffix, want string }{
		"eu-west-1":  {"", "https://ecs.eu-west-1.amazonaws.com"},
		"cn-north-1": {"amazonaws.com.cn", "https://ecs.cn-north-1.amazonaws.com.cn"},
	} {
		t.Run(region, func(t *testing.T) {
			t.Setenv(envRegion, region)
			t.Setenv(envDomain, test.suffix)
			if got := endpoint("ecs"); got != test.want {
				t.Errorf("ECS of %s is at %s, want %s", region, got, test.want)
			}
		})
	}
}
