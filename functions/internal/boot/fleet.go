package boot

import (
	"cmp"
	"fmt"
	"os"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet/ecs"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet/lambda"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet/places"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet/process"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
)

// ecsListLag is the longest delay until ECS lists a task.
const ecsListLag = time.Minute

// openFleet opens ECS, and Lambda if EnvBoxFunctions names functions for boxes. If EnvFleet
// is not set, it opens the fleet of the emulator instead of ECS, which lists tasks without
// delay.
func openFleet(servers *serversfile.File) (boxes *places.Fleet, listLag time.Duration, err error) {
	base, wish, all := ecs.Place, places.Auto, map[string]fleet.Fleet{}
	if place := os.Getenv(EnvFleet); place == "" {
		base, wish = process.Place, places.Fargate
		all[base] = process.NewClient(endpoint("fleet"), local().Since)
	} else {
		listLag = ecsListLag
		if all[base], err = openECS(place, servers); err != nil {
			return nil, 0, fmt.Errorf("%s: %w", EnvFleet, err)
		}
	}
	if text := os.Getenv(EnvBoxFunctions); text != "" && text != "[]" {
		if all[lambda.Place], err = openLambda(text, servers); err != nil {
			return nil, 0, fmt.Errorf("%s: %w", EnvBoxFunctions, err)
		}
	}
	return places.New(base, cmp.Or(local().Place, wish), all), listLag, nil
}

// openLambda opens the functions for boxes.
func openLambda(text string, servers *serversfile.File) (fleet.Fleet, error) {
	sizes, err := lambda.ParseSizes(text)
	if err != nil {
		return nil, err
	}
	return lambda.New(lambda.Config{
		Region: os.Getenv(envRegion), Credentials: credentials(), Endpoint: endpoint("lambda"), Sizes: sizes,
		Memory: func(t fleet.Task) int {
			s, _ := servers.Server(t.Server)
			return s.Box.MemoryMB
		},
	})
}

func openECS(text string, servers *serversfile.File) (fleet.Fleet, error) {
	c, err := ecs.ParsePlace(text)
	if err != nil {
		return nil, err
	}
	c.Endpoint = cmp.Or(c.Endpoint, endpoint("ecs"))
	c.Credentials = credentials()
	c.Shape = func(t fleet.Task) ecs.Shape {
		s, _ := servers.Server(t.Server)
		secrets := map[string]string{}
		for name, reference := range s.References() {
			secrets[serversfile.SecretVariable(name)] = reference
		}
		return ecs.Shape{Image: s.Box.Image, Size: ecs.Size{CPUs: s.Box.CPUs, MemoryMB: s.Box.MemoryMB}, Secrets: secrets}
	}
	return ecs.New(c)
}
