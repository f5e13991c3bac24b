package ecs

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws/arn"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
)

// container is the name of the container with the image of the box.
const container = "runner"

// stopTimeout is the number of seconds between SIGTERM and SIGKILL. Fargate allows 120.
const stopTimeout = 30

// Size is a task's share of a machine. The zero value is the smallest size.
type Size struct {
	CPUs     float64 // processors, 0 or more
	MemoryMB int     // mebibytes, 0 or more
}

// Fargate rounds a size up to the nearest that Fargate sells: the fewest processors that
// can have the memory, then the least memory. Errors: fleet.ErrInvalid for more than 16
// processors or 122,880 MiB, and for negative values.
func (s Size) Fargate() (Size, error) {
	if !(s.CPUs >= 0) || s.MemoryMB < 0 { // a NaN is no size either
		return Size{}, fmt.Errorf("%w: a task cannot have %v processors and %d MiB; neither may be below 0", fleet.ErrInvalid, s.CPUs, s.MemoryMB)
	}
	for _, row := range fargate() {
		if s.CPUs > row.cpus || s.MemoryMB > row.most {
			continue
		}
		if s.MemoryMB <= row.least {
			return Size{row.cpus, row.least}, nil
		}
		if row.step == 0 { // in this row each size is twice the one before
			return Size{row.cpus, 1 << int(math.Ceil(math.Log2(float64(s.MemoryMB))))}, nil
		}
		steps := (s.MemoryMB - row.least + row.step - 1) / row.step
		return Size{row.cpus, row.least + steps*row.step}, nil
	}
	return Size{}, fmt.Errorf("%w: Fargate has no task with %v processors and %d MiB: the largest task has 16 processors and 122880 MiB",
		fleet.ErrInvalid, s.CPUs, s.MemoryMB)
}

// sizes says how much memory Fargate permits with a number of processors.
type sizes struct {
	cpus              float64
	least, most, step int // MiB
}

func fargate() []sizes {
	return []sizes{
		{0.25, 512, 2048, 0},
		{0.5, 1024, 4096, 1024},
		{1, 2048, 8192, 1024},
		{2, 4096, 16384, 1024},
		{4, 8192, 30720, 1024},
		{8, 16384, 61440, 4096},
		{16, 32768, 122880, 8192},
	}
}

// definition returns the task definition for a task. The name of its family has a digest of
// its contents: equal definitions share a name, and a changed one gets another. The
// definition must hold nothing that belongs to a single task.
func (f *Fleet) definition(t fleet.Task) (definition, error) {
	var shape Shape
	if f.cfg.Shape != nil {
		var err error
		if shape, err = f.cfg.Shape(t); err != nil {
			return definition{}, fmt.Errorf("%w: %w", fleet.ErrInvalid, err)
		}
	}
	size := Size{CPUs: cmp.Or(shape.Size.CPUs, f.cfg.Size.CPUs), MemoryMB: cmp.Or(shape.Size.MemoryMB, f.cfg.Size.MemoryMB)}
	size, err := size.Fargate()
	if err != nil {
		return definition{}, err
	}
	secrets, err := f.secrets(shape.Secrets)
	if err != nil {
		return definition{}, err
	}
	units := int(size.CPUs * 1024)
	runner := contents{
		Name: container, Image: cmp.Or(shape.Image, f.cfg.Image), Essential: true, CPU: units, Memory: size.MemoryMB, StopTimeout: stopTimeout,
		User: shape.User, Log: f.logs(), Secrets: secrets,
	}
	first := f.bringing(&runner)
	if shape.Image == "" {
		// The image that "make image" builds sets these, but Config.Image may be another image.
		runner.Environment = append(runner.Environment, variable{"LANG", "C.UTF-8"}, variable{"UV_PYTHON_DOWNLOADS", "never"})
	}
	// The runner does not need these capabilities.
	runner.Linux.Capabilities.Drop = []string{"AUDIT_WRITE", "MKNOD", "NET_BIND_SERVICE", "NET_RAW", "SETFCAP", "SYS_CHROOT"}
	def := definition{
		Compatible: []string{"FARGATE"}, NetworkMode: "awsvpc", CPU: strconv.Itoa(units), Memory: strconv.Itoa(size.MemoryMB),
		ExecutionRole: f.cfg.ExecutionRole, Containers: []contents{runner, first}, Volumes: []named{{volume}}, own: shape.Image != "",
		Platform: map[string]string{"cpuArchitecture": map[string]string{"arm64": "ARM64", "amd64": "X86_64"}[f.cfg.Arch], "operatingSystemFamily": "LINUX"},
	}
	encoded, err := json.Marshal(def)
	if err != nil {
		return definition{}, fmt.Errorf("%w: the task definition cannot be written as JSON: %w", fleet.ErrInvalid, err)
	}
	sum := sha256.Sum256(encoded)
	def.Family = f.cfg.Family + "-" + hex.EncodeToString(sum[:8])
	return def, nil
}

// secrets returns where ECS finds the values of a task's secrets, sorted by the name of the
// variable.
func (f *Fleet) secrets(named map[string]string) ([]secret, error) {
	role, err := arn.Parse(f.cfg.ExecutionRole)
	if err != nil && len(named) > 0 {
		return nil, fmt.Errorf("%w: the execution role is not an ARN, which would name the account of the secrets: %w", fleet.ErrInvalid, err)
	}
	var all []secret
	for _, variable := range slices.Sorted(maps.Keys(named)) {
		service, name, _ := strings.Cut(named[variable], ":")
		from := arn.ARN{Partition: role.Partition, Service: service, Region: f.cfg.Region, AccountID: role.AccountID}
		switch {
		case arn.IsARN(name):
			all = append(all, secret{variable, name})
			continue
		case service == "ssm":
			from.Resource = "parameter/" + strings.TrimPrefix(name, "/")
		case service == "secretsmanager":
			from.Resource = "secret:" + name
		default:
			return nil, fmt.Errorf("%w: the secret %s is in %q, which is neither ssm nor secretsmanager", fleet.ErrInvalid, variable, service)
		}
		all = append(all, secret{variable, from.String()})
	}
	return all, nil
}

func (f *Fleet) logs() *logging {
	if f.cfg.LogGroup == "" {
		return nil
	}
	return &logging{"awslogs", map[string]string{
		"awslogs-group": f.cfg.LogGroup, "awslogs-region": f.cfg.Region, "awslogs-stream-prefix": "box",
		// If the log accepts no lines, the server must go on.
		"mode": "non-blocking", "max-buffer-size": "4m",
	}}
}

// register creates the task definition, or one more revision of it. Equal revisions are harmless.
// register does not look for the definition first, which would need the right to read every task
// definition of the account. If the image is a server's own and not Config.Image, register adds the
// image's present digest to its name.
func (f *Fleet) register(ctx context.Context, def definition) error {
	if def.own {
		if err := f.pin(ctx, &def.Containers[0]); err != nil {
			return err
		}
	}
	if err := f.ask(ctx, "RegisterTaskDefinition", def, &struct{}{}); err != nil {
		return fmt.Errorf("register its definition %s: %w", def.Family, err)
	}
	return nil
}
