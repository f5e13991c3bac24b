package ecs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// maxAnswer bounds an answer in bytes.
const maxAnswer = 16 << 20

// ask sends a request, and reads the answer into out. It repeats a request that may succeed
// later. A repeated RunTask starts no second task, because it has the client token of the first.
//
// Errors: *problem if ECS answers with an error; otherwise the error of the connection.
func (f *Fleet) ask(ctx context.Context, action string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	for try := 1; ; try++ {
		again, err := f.send(ctx, action, body, out)
		if err == nil || !again || try == attempts {
			return err
		}
		if ended := storage.Rest(ctx, min(rand.N(time.Second<<try), maxBackoff)); ended != nil {
			return errors.Join(ended, err)
		}
	}
}

// send sends a request once. again is true if the same request may succeed later.
func (f *Fleet) send(ctx context.Context, action string, body []byte, out any) (again bool, err error) {
	a, err := f.api.JSON(ctx, "AmazonEC2ContainerServiceV20141113."+action, body, maxAnswer)
	switch {
	case err != nil:
		return ctx.Err() == nil, err
	case a.Status != http.StatusOK:
		p := &problem{Status: a.Status, Request: a.Header.Get("X-Amzn-RequestId")}
		_ = json.Unmarshal(a.Body, p) // if the body is not JSON, only the status is known
		p.Code = p.Code[strings.IndexByte(p.Code, '#')+1:]
		return p.throttles() || p.Status >= http.StatusInternalServerError, p
	}
	if err := json.Unmarshal(a.Body, out); err != nil {
		return false, fmt.Errorf("the answer of ECS to %s cannot be read: %w", action, err)
	}
	return false, nil
}

// problem is an answer of ECS that is an error.
type problem struct {
	Status    int      `json:"-"`
	Request   string   `json:"-"` // the id of the request, for AWS's support
	Code      string   `json:"__type"`
	Message   string   `json:"message"`
	Resources []string `json:"resourceIds"` // of a ConflictException: the tasks that have the client token
}

// Error implements error.
func (p *problem) Error() string {
	return fmt.Sprintf("ECS answered %d, %s: %s (request %s)", p.Status, p.Code, p.Message, p.Request)
}

// The result says whether err is an answer of ECS with one of the codes.
func is(err error, codes ...string) bool {
	p, ok := errors.AsType[*problem](err)
	return ok && slices.Contains(codes, p.Code)
}

// throttles reports whether a quota or a rate limit is used up.
func (p *problem) throttles() bool {
	switch p.Code {
	case "ThrottlingException", "ThrottledException", "Throttling", "RequestThrottled", "RequestThrottledException", "RequestLimitExceeded", "TooManyRequestsException":
		return true
	}
	return p.Status == http.StatusTooManyRequests
}

// The parts of requests and answers that a fleet uses, with the names of ECS's API.

type runTask struct {
	Cluster        string     `json:"cluster"`
	TaskDefinition string     `json:"taskDefinition"`
	ClientToken    string     `json:"clientToken"`
	StartedBy      string     `json:"startedBy"`
	Group          string     `json:"group"`
	Count          int        `json:"count"`
	LaunchType     string     `json:"launchType,omitempty"`
	Capacity       []capacity `json:"capacityProviderStrategy,omitempty"`
	Network        network    `json:"networkConfiguration"`
	Overrides      overrides  `json:"overrides"`
	ManagedTags    bool       `json:"enableECSManagedTags"` // ECS adds a tag with the name of the cluster
	Tags           []tag      `json:"tags"`
}

// tag is shown in the bill of the AWS account.
type tag struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

type capacity struct {
	Provider string `json:"capacityProvider"`
	Weight   int    `json:"weight"`
}

type network struct {
	VPC struct {
		Subnets        []string `json:"subnets"`
		SecurityGroups []string `json:"securityGroups"`
		PublicIP       string   `json:"assignPublicIp"`
	} `json:"awsvpcConfiguration"`
}

type overrides struct {
	Containers []override `json:"containerOverrides"`
}

type override struct {
	Name        string     `json:"name"`
	Environment []variable `json:"environment"`
}

type variable struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// taken is the answer to RunTask and DescribeTasks.
type taken struct {
	Tasks    []task `json:"tasks"`
	Failures []struct {
		Reason string `json:"reason"`
		Detail string `json:"detail"`
	} `json:"failures"`
}

type listTasks struct {
	Cluster   string `json:"cluster"`
	StartedBy string `json:"startedBy,omitempty"`
	Desired   string `json:"desiredStatus,omitempty"`
	Most      int    `json:"maxResults"`
	Next      string `json:"nextToken,omitempty"`
}

type listed struct {
	ARNs []string `json:"taskArns"`
	Next string   `json:"nextToken"`
}

type describeTasks struct {
	Cluster string   `json:"cluster"`
	Tasks   []string `json:"tasks"`
}

type stopTask struct {
	Cluster string `json:"cluster"`
	Task    string `json:"task"`
	Reason  string `json:"reason"`
}

type definition struct {
	Family        string            `json:"family,omitempty"`
	Compatible    []string          `json:"requiresCompatibilities"`
	NetworkMode   string            `json:"networkMode"`
	CPU           string            `json:"cpu"`
	Memory        string            `json:"memory"`
	ExecutionRole string            `json:"executionRoleArn"`
	Platform      map[string]string `json:"runtimePlatform"`
	Containers    []contents        `json:"containerDefinitions"`
	Volumes       []named           `json:"volumes"`

	own bool // the image is a server's own, not Config.Image
}

type named struct {
	Name string `json:"name"`
}

type contents struct {
	Name         string       `json:"name"`
	Image        string       `json:"image"`
	EntryPoint   []string     `json:"entryPoint"`
	Command      []string     `json:"command,omitempty"`
	Folder       string       `json:"workingDirectory,omitempty"`
	User         string       `json:"user,omitempty"`
	Essential    bool         `json:"essential"`
	CPU          int          `json:"cpu,omitempty"`
	Memory       int          `json:"memory,omitempty"`
	Reserved     int          `json:"memoryReservation"`
	StartTimeout int          `json:"startTimeout,omitempty"`
	StopTimeout  int          `json:"stopTimeout,omitempty"`
	Environment  []variable   `json:"environment,omitempty"`
	Mounts       []mount      `json:"mountPoints"`
	After        []dependency `json:"dependsOn,omitempty"`
	ReadOnly     bool         `json:"readonlyRootFilesystem,omitempty"`
	Log          *logging     `json:"logConfiguration,omitempty"`
	Secrets      []secret     `json:"secrets,omitempty"`
	Linux        linux        `json:"linuxParameters"`
}

type mount struct {
	Volume string `json:"sourceVolume"`
	Path   string `json:"containerPath"`
}

type dependency struct {
	Container string `json:"containerName"`
	Condition string `json:"condition"`
}

type logging struct {
	Driver  string            `json:"logDriver"`
	Options map[string]string `json:"options"`
}

type secret struct {
	Name string `json:"name"`
	From string `json:"valueFrom"`
}

type linux struct {
	Capabilities struct {
		Drop []string `json:"drop"`
	} `json:"capabilities"`
}
