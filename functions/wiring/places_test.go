package wiring

import (
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet/places"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func TestAServerNeedsAnInstallUntilOneOfItsDefinitionIsKept(t *testing.T) {
	servers, _, err := serversfile.Parse([]byte(`{"mcpServers":{"npm":{"command":"npx","args":["-y","a"]},"py":{"command":"/usr/bin/uvx","args":["b"]},"own":{"command":"node","args":["c.js"]}}}`), "servers.json", func(string) (string, bool) { return "", false })
	commontest.OK(t, err)
	f := &Function{Settings: Settings{Servers: servers}}
	for name, installs := range map[string]bool{"npm": true, "py": true, "own": false} {
		s, _ := servers.Server(name)
		for installed, want := range map[string]bool{"": installs, "an earlier definition": installs, s.Definition(): false} {
			commontest.EqualIn(t, name+" needs an install", want, f.needs(storage.Box{Server: name, Installed: installed}).Installs)
		}
	}
}

// A box on Lambda has no uid for each server, so it has none of the guards that need one, and
// it has the image of its function.
func TestAServerWithGuardsIsNotPlacedOnLambda(t *testing.T) {
	servers, _, err := serversfile.Parse([]byte(`{"mcpServers":{
		"profile":{"command":"node","x-dormouse":{"box":{"profile":"default","place":"lambda"}}},
		"rootfs":{"command":"node","x-dormouse":{"box":{"read_only_rootfs":true,"place":"lambda"}}},
		"offline":{"command":"node","x-dormouse":{"box":{"network":"off","place":"lambda"}}},
		"container":{"command":"docker","args":["run","-i","--rm","mcp/time"],"x-dormouse":{"box":{"place":"lambda"}}},
		"free":{"command":"node","x-dormouse":{"box":{"place":"lambda"}}},
		"secrets":{"command":"node","env":{"TOKEN":"ssm:/stack/token"}}
	}}`), "servers.json", func(string) (string, bool) { return "", false })
	commontest.OK(t, err)
	f := &Function{Settings: Settings{Servers: servers}}
	two := places.New("ecs", places.Auto, map[string]fleet.Fleet{"ecs": nil, places.Lambda: nil})
	for name, want := range map[string]string{"profile": "ecs", "rootfs": "ecs", "offline": "ecs", "container": "ecs", "free": places.Lambda, "secrets": places.Lambda} {
		commontest.EqualIn(t, name, want, two.Choose(f.needs(storage.Box{Server: name, Attempt: 1})))
	}
}
