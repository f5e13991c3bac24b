package boot

import (
	"os"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/catalog"
	"github.com/dormouse-mcp/dormouse/shared/fleet"
	"github.com/dormouse-mcp/dormouse/shared/fleet/ecs"
	"github.com/dormouse-mcp/dormouse/shared/fleet/process"
)

// ecsListLag is how late ECS lists what it runs.
const ecsListLag = time.Minute

// openFleet opens ECS, or, where EnvFleet is not set, the boxes of the emulator, which
// lists what it runs at once.
func openFleet(servers *catalog.Catalog) (boxes fleet.Fleet, listLag time.Duration, err error) {
	text := os.Getenv(EnvFleet)
	if text == "" {
		return process.NewClient(endpoint("fleet")), 0, nil
	}
	c, err := ecs.ParsePlace(text)
	if err != nil {
		return nil, 0, err
	}
	c.Credentials, c.Disabled = credentials(), boxesOff(os.Getenv(EnvBoxes))
	c.Shape = func(t fleet.Task) ecs.Shape {
		s, _ := servers.Server(t.Server)
		secrets := map[string]string{}
		for name, reference := range s.References() {
			secrets[catalog.SecretVariable(name)] = reference
		}
		return ecs.Shape{Image: s.Box.Image, Size: ecs.Size{CPUs: s.Box.CPUs, MemoryMB: s.Box.MemoryMB}, Secrets: secrets}
	}
	boxes, err = ecs.New(c)
	return boxes, ecsListLag, err
}

// boxesOff says whether boxes are switched off: what cannot be understood starts none.
func boxesOff(text string) bool { return text != "" && text != "on" }
