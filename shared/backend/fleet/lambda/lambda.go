// Package lambda is the fleet whose boxes are invocations of Lambda functions. A task is one
// asynchronous invocation, which holds its response open for the life of the box.
//
// The stack's template makes the functions, roles and log groups. The package keeps no state.
//
// # What Lambda promises
//
// Lambda neither lists nor stops invocations, and ends each after 15 minutes. Nothing reports the
// end of an invocation. An event may come twice, or up to a minute late. The host accepts one
// runner with the one-time token of an event, and fences any other.
//
// # Tenants
//
// Each invocation names a tenant, which is a hash of the box. Lambda never gives an execution
// environment of one tenant to another. An environment, with its /tmp and what an earlier
// runner left there, therefore belongs to one box.
//
// # Secrets
//
// The event holds the box's name, its generation, the one-time token, a pass for the
// relay's gateway and the address of the relay. Lambda copies the event and the response
// into its reports. The servers' secrets come with the relay's welcome.
package lambda

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/dormouse-mcp/dormouse/shared/backend/awscall"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Place is the name of Lambda as a place where boxes can run.
const Place = "lambda"

const (
	// lifetime is the longest life of an invocation on AWS.
	lifetime = 15 * time.Minute
	// startTimeout is the age at which Lambda drops an event that it could not handle, plus some
	// time for the start itself.
	startTimeout = 75 * time.Second
	// idle is short: on Lambda an idle box costs more than on Fargate, and waking it costs less.
	idle        = 4 * time.Second
	callTimeout = 10 * time.Second
	// Lambda makes a function inactive that nobody has invoked for weeks. Lambda refuses the
	// next invocation, and takes some seconds to make the function active again.
	readyWithin = 30 * time.Second // leaves the box time for its hello within startTimeout
	readyPause  = time.Second
	maxAnswer   = 64 << 10
)

// Size is one Lambda function that runs boxes, and the memory that it has.
type Size struct {
	MemoryMB int    `json:"memoryMb"`
	Function string `json:"function"` // its name or ARN
}

// Config says which functions run boxes. Region, Credentials, Endpoint and Sizes are
// required.
type Config struct {
	Region      string
	Credentials aws.CredentialsProvider
	// Endpoint is the address of Lambda's API, without a slash at its end.
	Endpoint   string
	HTTPClient *http.Client // may be nil
	Sizes      []Size
	// Memory returns how much memory a task needs in MiB; 0 for the smallest size. If
	// Memory is nil, every task gets the smallest size.
	Memory func(fleet.Task) int
	// Lifetime is the timeout of the functions. 0 means 15 minutes.
	Lifetime time.Duration
}

// ParseSizes reads Sizes from the form that template.yaml writes: a JSON array of objects with the
// keys "memoryMb" and "function". Errors: fleet.ErrInvalid.
func ParseSizes(text string) ([]Size, error) {
	var sizes []Size
	if err := json.Unmarshal([]byte(text), &sizes); err != nil {
		return nil, fmt.Errorf("%w: the functions for boxes are not as the template writes them: %w", fleet.ErrInvalid, err)
	}
	return sizes, nil
}

// Fleet runs boxes on Lambda. It is safe for concurrent use.
type Fleet struct {
	cfg Config
	api awscall.Service
}

var _ fleet.Fleet = (*Fleet)(nil)

// New returns a fleet. It makes no call. Errors: fleet.ErrInvalid for a Config that could
// never run a task.
func New(c Config) (*Fleet, error) {
	if c.Region == "" || c.Credentials == nil || c.Endpoint == "" || len(c.Sizes) == 0 {
		return nil, fmt.Errorf("%w: region, credentials, endpoint and sizes of functions for boxes are needed", fleet.ErrInvalid)
	}
	for _, s := range c.Sizes {
		if s.MemoryMB <= 0 || s.Function == "" {
			return nil, fmt.Errorf("%w: a function for boxes has %d MB and the name %q", fleet.ErrInvalid, s.MemoryMB, s.Function)
		}
	}
	c.Sizes = slices.Clone(c.Sizes)
	slices.SortFunc(c.Sizes, func(a, b Size) int { return a.MemoryMB - b.MemoryMB })
	if c.Lifetime == 0 {
		c.Lifetime = lifetime
	}
	return &Fleet{c, awscall.Service{Name: "lambda", Region: c.Region, Endpoint: c.Endpoint, Credentials: c.Credentials, Client: c.HTTPClient}}, nil
}

// Traits implements [fleet.Fleet].
func (f *Fleet) Traits(string) fleet.Traits {
	return fleet.Traits{Lifetime: f.cfg.Lifetime, Invites: true, Idle: idle, StartTimeout: startTimeout}
}

// Stop implements [fleet.Fleet]. It does nothing.
func (f *Fleet) Stop(ctx context.Context, _, _ string) error { return ctx.Err() }

// Tasks implements [fleet.Fleet]. It fails with fleet.ErrUnlisted.
func (f *Fleet) Tasks(ctx context.Context) ([]fleet.Status, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return nil, fleet.ErrUnlisted
}

// Run implements [fleet.Fleet]. Lambda answers before the task begins. While Lambda makes the
// function ready, Run calls again each second, for half a minute at most.
//
// Errors: fleet.ErrInvalid also if Lambda refuses the request; fleet.ErrCapacity if Lambda
// throttles; fleet.ErrUnavailable otherwise.
func (f *Fleet) Run(ctx context.Context, t fleet.Task) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	function, err := f.function(t)
	if err != nil {
		return "", err
	}
	id, event, err := t.Invite(Place)
	if err != nil {
		return "", err
	}
	until := time.Now().Add(readyWithin)
	if end, ok := ctx.Deadline(); ok && end.Add(-callTimeout).Before(until) {
		until = end.Add(-callTimeout) // the rest is for the fleet of another place, which is tried next
	}
	for {
		notReady, err := f.invoke(ctx, function, tenant(t.Box), event)
		if !notReady || time.Until(until) < readyPause {
			return id, err
		}
		if storage.Rest(ctx, readyPause) != nil {
			return id, err
		}
	}
}

// function returns the name or ARN of the smallest Lambda function with enough memory for a task.
func (f *Fleet) function(t fleet.Task) (string, error) {
	need := 0
	if f.cfg.Memory != nil {
		need = f.cfg.Memory(t)
	}
	for _, s := range f.cfg.Sizes {
		if s.MemoryMB >= need {
			return s.Function, nil
		}
	}
	return "", fmt.Errorf("%w: no function for boxes has %d MB of memory", fleet.ErrInvalid, need)
}

func tenant(box string) string {
	sum := sha256.Sum256([]byte("box\x00" + box))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// invoke sends an event to a function. If notReady is true, Lambda has refused the event
// because the function is not active yet.
func (f *Fleet) invoke(ctx context.Context, function, tenant string, event []byte) (notReady bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	target := f.cfg.Endpoint + "/2015-03-31/functions/" + url.PathEscape(function) + "/invocations"
	a, err := f.api.Do(ctx, awscall.Request{
		Method: http.MethodPost, URL: target, Body: event,
		Header: http.Header{"Content-Type": {"application/json"}, "X-Amz-Invocation-Type": {"Event"}, "X-Amz-Tenant-Id": {tenant}},
	}, maxAnswer)
	switch a.Status {
	case 0:
		return false, fmt.Errorf("%w: invoke the function %q: %w", fleet.ErrUnavailable, function, err)
	case http.StatusAccepted: // the invocation is accepted, even if err says that the body broke off
		return false, nil
	}
	kind, fault := fleet.ErrUnavailable, a.Header.Get("X-Amzn-Errortype")
	fault, _, _ = strings.Cut(fault, ":") // a URL may follow
	switch {
	case fault == "ResourceConflictException" || fault == "ResourceNotReadyException" || fault == "CodeArtifactUserPendingException":
		notReady = true
	case a.Status == http.StatusTooManyRequests:
		kind = fleet.ErrCapacity
	case a.Status >= 400 && a.Status < 500 && a.Status != http.StatusForbidden:
		kind = fleet.ErrInvalid
	}
	return notReady, fmt.Errorf("%w: invoke the function %q: status %d %s: %s", kind, function, a.Status, fault, a.Body)
}
