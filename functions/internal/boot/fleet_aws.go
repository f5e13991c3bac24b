//go:build aws

package boot

import (
	"os"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/catalog"
	"github.com/dormouse-mcp/dormouse/shared/fleet"
	"github.com/dormouse-mcp/dormouse/shared/fleet/ecs"
	"github.com/dormouse-mcp/dormouse/shared/fleet/process"
)

// listLag: ECS lists what it runs a little late.
const listLag = time.Minute

// fleet is ECS, or, for sam local invoke, the process fleet behind a socket.
func (f *Function) fleet() (fleet.Fleet, error) {
	text := os.Getenv(EnvFleet)
	if text == "" {
		return process.NewClient(os.Getenv(EnvFleetSocket)), nil
	}
	c, err := ecs.ParsePlace(text)
	if err != nil {
		return nil, err
	}
	c.Credentials, c.Disabled = credentials(), boxesOff(os.Getenv(EnvBoxes))
	c.Shape = func(t fleet.Task) ecs.Shape {
		s, _ := f.Catalog.Server(t.Server)
		secrets := map[string]string{}
		for name, reference := range s.References() {
			secrets[catalog.SecretVariable(name)] = reference
		}
		return ecs.Shape{Image: s.Box.Image, Size: ecs.Size{CPUs: s.Box.CPUs, MemoryMB: s.Box.MemoryMB}, Secrets: secrets}
	}
	return ecs.New(c)
}

// boxesOff says whether boxes are switched off: what cannot be understood starts none.
func boxesOff(text string) bool { return text != "" && text != "on" }
