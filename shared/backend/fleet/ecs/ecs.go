// Package ecs is the fleet on AWS: a task is one Fargate task of an ECS cluster.
//
// The stack's template makes the cluster, network, roles and log group. The package keeps no
// state between calls.
//
// # Names
//
// The id of a task is "ecs/" and its client token. The fleet knows the id before the task
// exists, and passes it in the environment of the runner (taskEnv). ECS keeps the token as the
// task's startedBy. The task group names box and server. The fleet ignores tasks in the cluster
// without such a group.
//
// # Secrets
//
// A task's environment travels as container overrides. Every principal of AWS that may describe
// tasks of the cluster can read the overrides; a box cannot, because it is given no role. Secret
// values belong in [Shape.Secrets].
package ecs

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/dormouse-mcp/dormouse/shared/backend/awscall"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
)

// Place is the name of ECS as a place where boxes can run.
const Place = "ecs"

// taskEnv is the environment variable that tells a runner its task id.
const taskEnv = "DORMOUSE_BOX_TASK"

const (
	// maxOverrides is ECS's limit for all overrides of a task, as JSON.
	maxOverrides = 8192
	maxGroup     = 255
	maxReason    = 255
	// callTimeout limits a method of the fleet with all its calls and retries.
	callTimeout = 20 * time.Second
	attempts    = 4
	maxBackoff  = 2 * time.Second
)

// Config says where and how tasks run. All fields but Spot, PublicIP, LogGroup, Size, Runner, Shape
// and HTTPClient are required. [ParsePlace] reads Size and all fields but those with the tag "-".
type Config struct {
	Region      string
	Credentials aws.CredentialsProvider `json:"-"`
	// Endpoint is the address of ECS, without a slash at its end.
	Endpoint string
	// HTTPClient may be nil for a client without a timeout of its own.
	HTTPClient *http.Client `json:"-"`

	// Cluster is the name or ARN of the cluster.
	Cluster string
	// Subnets and SecurityGroups are ids.
	Subnets        []string
	SecurityGroups []string
	// PublicIP gives each task a public address. In subnets without a NAT gateway a task
	// can reach the image and the relay only with it.
	PublicIP bool
	// Spot runs tasks on spare capacity. AWS may end a Spot task with two minutes' notice,
	// which is a SIGTERM to the runner. Without spare capacity Run fails with
	// fleet.ErrCapacity: it never falls back to the full price.
	Spot bool
	// ExecutionRole is the ARN of the role that pulls the image and writes the log. The box
	// itself has no role.
	ExecutionRole string
	// Family is the prefix of the names of task definitions, 1 to 200 letters, digits, "-"
	// and "_"; the template makes it of the stack's name. Two deployments of one account must have different ones.
	Family string
	// LogGroup gets the output of runners; "" for no log.
	LogGroup string
	// Image and Size are for tasks whose Shape does not set them. The image need not contain
	// the runner program.
	Image string
	Size  Size `json:"-"`
	// Runner says where the runner program is in S3, "BUCKET/FOLDER/SHA256". SHA256 is the digest
	// of the program, in hexadecimal. A program that starts no box may leave Runner empty.
	Runner string
	// RunnerURL returns a URL, valid for some minutes, by which a task gets the runner.
	RunnerURL func(context.Context) (string, error) `json:"-"`
	// Inspect asks the registry about an image that a Shape names. It returns the name of the image
	// with its digest, and what the image starts. Errors: those of package fleet.
	Inspect func(ctx context.Context, image string) (name string, config frame.Image, err error) `json:"-"`
	// Arch is the processor architecture of the images, "arm64" or "amd64".
	Arch string
	// Shape returns how a task differs from the others; if Shape is nil, none differs. An error
	// says why ECS cannot run the task.
	Shape func(fleet.Task) (Shape, error) `json:"-"`
}

// Shape describes how one server's tasks differ from the others. Zero fields mean no
// difference.
type Shape struct {
	// Image is the name of an image in any registry. User replaces the user that the image names.
	Image, User string
	Size        Size
	// Secrets says where the values of environment variables are: "ssm:NAME" or
	// "secretsmanager:NAME", where NAME may be an ARN. ECS fetches the values with the
	// execution role when it starts a task.
	Secrets map[string]string
}

// Fleet runs boxes as Fargate tasks. It is safe for concurrent use and keeps no state.
type Fleet struct {
	cfg Config
	api awscall.Service
}

var _ fleet.Fleet = (*Fleet)(nil)

// New returns the fleet of a cluster. It makes no call. Errors: fleet.ErrInvalid for a
// Config that could never run a task.
func New(c Config) (*Fleet, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	return &Fleet{c, awscall.Service{Name: "ecs", Region: c.Region, Endpoint: c.Endpoint, Credentials: c.Credentials, Client: c.HTTPClient}}, nil
}

func (c Config) check() error {
	for what, missing := range map[string]bool{
		"Region": c.Region == "", "Endpoint": c.Endpoint == "", "Credentials": c.Credentials == nil, "Cluster": c.Cluster == "", "Subnets": len(c.Subnets) == 0,
		"SecurityGroups": len(c.SecurityGroups) == 0, "ExecutionRole": c.ExecutionRole == "", "Image": c.Image == "",
		"RunnerURL": c.RunnerURL == nil, "Inspect": c.Inspect == nil,
	} {
		if missing {
			return fmt.Errorf("%w: %s is not set", fleet.ErrInvalid, what)
		}
	}
	_, err := c.Size.Fargate()
	return err
}

// Run implements [fleet.Fleet]. It makes the id of the task from t.ClientToken, which must consist
// of letters, digits, "-", "_" and "/". Run makes one call to ECS if the task definition exists,
// and three if it has to register the definition. If [Config].Shape names an image for the task,
// Run also reads that image from its registry before it registers the definition.
//
// Errors: fleet.ErrInvalid if Fargate has no such size, if ECS refuses the contents of the
// request, or if the environment is longer than ECS accepts (8,192 characters with all other
// overrides). fleet.ErrCapacity if Fargate has no spare capacity, the account's quota is used
// up, or the rate of starts is too high. Any other failure is fleet.ErrUnavailable.
func (f *Fleet) Run(ctx context.Context, t fleet.Task) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	def, err := f.definition(t)
	if err != nil {
		return "", err
	}
	url, err := f.cfg.RunnerURL(ctx)
	if err != nil {
		return "", fmt.Errorf("%w: sign the URL of the runner: %w", fleet.ErrUnavailable, err)
	}
	in, err := f.request(t, def.Family, url)
	if err != nil {
		return "", err
	}
	err = f.run(ctx, in)
	if refused(err) {
		// The definition may not exist yet. ECS has no error code for that case alone.
		if err = f.register(ctx, def); err == nil {
			err = f.run(ctx, in)
		}
	}
	if err != nil {
		return "", classify("start the task", err)
	}
	return taskID(t.ClientToken), nil
}

// run starts one task. If the token already names a task, run starts nothing, even if that task was
// requested with other values.
func (f *Fleet) run(ctx context.Context, in runTask) error {
	var out taken
	err := f.ask(ctx, "RunTask", in, &out)
	p, answered := errors.AsType[*problem](err)
	switch {
	case answered && p.Code == "ConflictException" && len(p.Resources) > 0:
		return nil
	case err != nil:
		return err
	case len(out.Tasks) == 0:
		why := "no reason given"
		for _, f := range out.Failures {
			why = f.Reason + " " + f.Detail
		}
		return fmt.Errorf("%w: ECS could not place the task: %s", fleet.ErrCapacity, why)
	}
	return nil
}

func (f *Fleet) request(t fleet.Task, family, url string) (runTask, error) {
	overrides, err := f.overridesOf(t, url)
	if err != nil {
		return runTask{}, err
	}
	group := groupOf(t)
	if len(group) > maxGroup {
		return runTask{}, fmt.Errorf("%w: the names of box and server are too long, %d characters of a task group that may have %d",
			fleet.ErrInvalid, len(group), maxGroup)
	}
	in := runTask{
		Cluster: f.cfg.Cluster, TaskDefinition: family, ClientToken: t.ClientToken, StartedBy: t.ClientToken, Group: group, Count: 1, Overrides: overrides,
		ManagedTags: true, Tags: []tag{{"dormouse:server", tagValue(t.Server)}},
	}
	vpc := &in.Network.VPC
	vpc.Subnets, vpc.SecurityGroups, vpc.PublicIP = f.cfg.Subnets, f.cfg.SecurityGroups, "DISABLED"
	if f.cfg.PublicIP {
		vpc.PublicIP = "ENABLED"
	}
	if f.cfg.Spot {
		in.Capacity = []capacity{{"FARGATE_SPOT", 1}}
	} else {
		in.LaunchType = "FARGATE"
	}
	return in, nil
}

// tagValue returns a text as the value of a tag, in which AWS allows few characters.
func tagValue(text string) string {
	const most = 256
	allowed := func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune(" _.:/=+-@", r) {
			return r
		}
		return '_'
	}
	runes := []rune(strings.Map(allowed, text))
	return string(runes[:min(len(runes), most)])
}

func taskID(token string) string { return Place + "/" + token }

// overridesOf returns the environment variables of both containers. The runner's are those of the
// task, in sorted order. The first container's are those that its script (the constant fetch) reads.
func (f *Fleet) overridesOf(t fleet.Task, url string) (overrides, error) {
	if !isName(t.ClientToken, fleet.MaxClientToken, "_/-") {
		return overrides{}, fmt.Errorf("%w: the client token must be 1 to %d letters, digits, -, _ and /", fleet.ErrInvalid, fleet.MaxClientToken)
	}
	if err := t.Check(); err != nil {
		return overrides{}, err
	}
	env := []variable{{taskEnv, taskID(t.ClientToken)}}
	for name, value := range t.Env {
		if name != taskEnv {
			env = append(env, variable{name, value})
		}
	}
	slices.SortFunc(env, func(a, b variable) int { return strings.Compare(a.Name, b.Name) })
	all := overrides{[]override{{container, env}, {fetcher, []variable{{urlEnv, url}, {sumEnv, path.Base(f.cfg.Runner)}}}}}
	encoded, err := json.Marshal(all)
	if err != nil {
		return overrides{}, fmt.Errorf("%w: the environment cannot be encoded: %w", fleet.ErrInvalid, err)
	}
	if len(encoded) > maxOverrides {
		return overrides{}, fmt.Errorf("%w: the environment takes %d characters, ECS allows %d: make the server's env and args shorter",
			fleet.ErrInvalid, len(encoded), maxOverrides)
	}
	return all, nil
}

// isName reports whether s is not empty, has at most limit bytes, and consists of ASCII letters,
// digits and characters in marks.
func isName(s string, limit int, marks string) bool {
	return s != "" && len(s) <= limit && !strings.ContainsFunc(s, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune(marks, c)
	})
}

// groupPrefix marks the tasks of this fleet.
const groupPrefix = "dormouse:"

// groupOf encodes box and server of a task in the characters that a task group may have.
func groupOf(t fleet.Task) string {
	return groupPrefix + encode(t.Box) + ":" + encode(t.Server)
}

func encode(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }

// readGroup is the inverse of groupOf; ok is false for the group of any other task.
func readGroup(group string) (box, server string, ok bool) {
	rest, ours := strings.CutPrefix(group, groupPrefix)
	first, second, two := strings.Cut(rest, ":")
	b, err1 := base64.RawURLEncoding.DecodeString(first)
	s, err2 := base64.RawURLEncoding.DecodeString(second)
	return string(b), string(s), ours && two && err1 == nil && err2 == nil
}
