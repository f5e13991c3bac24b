package boot

import (
	"os"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/catalog"
	"github.com/dormouse-mcp/dormouse/shared/fleet"
	"github.com/dormouse-mcp/dormouse/shared/fleet/ecs"
	"github.com/dormouse-mcp/dormouse/shared/fleet/process"
)

// ecsListLag is the longest delay until ECS lists a task.
const ecsListLag = time.Minute

// openFleet opens ECS. Where EnvFleet is not set, it opens the boxes of the emulator,
// which lists tasks without delay.
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

// boxesOff reports whether boxes are off. Any value except "on" and "" does that, so
// that a mistyped value starts none.
func boxesOff(text string) bool { return text != "" && text != "on" }
