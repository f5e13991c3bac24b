package boot

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/bucket"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet/ecs"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet/lambda"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet/places"
	"github.com/dormouse-mcp/dormouse/shared/backend/ociimage"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
)

// ecsListLag is how long it may take until ECS lists a new task.
const ecsListLag = time.Minute

// openFleet opens ECS, and also Lambda if EnvBoxFunctions names functions for boxes. If EnvFleet
// is not set, it opens the emulator's fleet, which lists tasks at once, instead of ECS.
func openFleet(servers *serversfile.File) (boxes *places.Fleet, listLag time.Duration, err error) {
	base, wish, all := ecs.Place, places.Auto, map[string]fleet.Fleet{}
	if place := os.Getenv(EnvFleet); place == "" {
		base, wish = poolPlace, places.Fargate
		if all[base], err = openPool(endpoint("fleet"), local().Since); err != nil {
			return nil, 0, err
		}
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
	if c.RunnerURL, err = signer(c.Runner); err != nil {
		return nil, err
	}
	c.Inspect = ociimage.Registries{Arch: c.Arch, Login: loginECR}.Inspect
	c.Shape = func(t fleet.Task) (ecs.Shape, error) { return shapeOf(servers, t.Server) }
	return ecs.New(c)
}

// shapeOf returns the image, size and secrets that the tasks of a server need.
func shapeOf(servers *serversfile.File, server string) (ecs.Shape, error) {
	s, _ := servers.Server(server)
	secrets := map[string]string{}
	for name, reference := range s.References() {
		secrets[serversfile.SecretVariable(name)] = reference
	}
	container, _, err := s.Container()
	if err != nil {
		err = fleet.Refusal{Why: err.Error()} // a Refusal's text is shown to callers, and the start is not tried again
	}
	return ecs.Shape{
		Image: cmp.Or(container.Image, s.Box.Image), User: container.User, Size: ecs.Size{CPUs: s.Box.CPUs, MemoryMB: s.Box.MemoryMB}, Secrets: secrets,
	}, err
}

// signer returns a function that signs URLs of the runner's object in S3. The argument object is
// "BUCKET/FOLDER/SHA256".
func signer(object string) (func(context.Context) (string, error), error) {
	if object == "" {
		return func(context.Context) (string, error) {
			return "", errors.New("DORMOUSE_FLEET names no runner: deploy the stack, sam local has none")
		}, nil
	}
	place, sum := path.Split(object)
	location, err := bucket.ParseLocation(place, os.Getenv(envRegion))
	if err != nil {
		return nil, fmt.Errorf("the place of the runner: %w", err)
	}
	b := bucket.New(bucketIn(location))
	return func(ctx context.Context) (string, error) { return b.URL(ctx, sum) }, nil
}

// loginECR returns the Authorization header for a private ECR registry that the function's role
// may read. For other registries it returns "".
func loginECR(ctx context.Context, registry string) (string, error) {
	rest, own := strings.CutSuffix(registry, "."+cmp.Or(os.Getenv(envDomain), "amazonaws.com"))
	words := strings.Split(rest, ".") // ACCOUNT.dkr.ecr.REGION
	if !own || len(words) != 4 || words[1] != "dkr" || words[2] != "ecr" {
		return "", nil
	}
	service := Service("ecr")
	service.Region, service.Endpoint = words[3], strings.Replace(endpoint("api.ecr"), "."+os.Getenv(envRegion)+".", "."+words[3]+".", 1)
	a, err := service.JSON(ctx, "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken", []byte("{}"), 64<<10)
	var answer struct {
		Data []struct {
			Token string `json:"authorizationToken"`
		} `json:"authorizationData"`
	}
	if err == nil {
		err = json.Unmarshal(a.Body, &answer)
	}
	if err != nil || len(answer.Data) == 0 {
		return "", fmt.Errorf("ECR answers %d to GetAuthorizationToken: %w", a.Status, cmp.Or(err, errors.New("it gives no token")))
	}
	return "Basic " + answer.Data[0].Token, nil
}
