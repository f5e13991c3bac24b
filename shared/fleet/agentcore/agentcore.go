// Package agentcore is the fleet whose boxes are sessions of an AgentCore runtime. A task
// is one session, which AgentCore runs in a virtual machine of its own. The package hides
// the requests to AgentCore. It makes no runtime and keeps no state. It follows the API
// model of the service; it was never tested on an account.
//
// # What AgentCore promises
//
// AgentCore does not list sessions. It stops them, and ends each after 8 hours. A session
// is known by an id that the caller chooses, so a second request for it reaches the same
// virtual machine. Its runner answers both requests alike.
//
// # Secrets
//
// The request that begins a session holds the box's name, its generation and the one-time
// token. It also holds the relay's address and a pass for its gateway. The servers'
// secrets come with the relay's welcome. A server can read the credentials of the
// runtime's role. So the role may only pull the image and write its log.
package agentcore

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/dormouse-mcp/dormouse/shared/fleet"
)

// Place is the place in the ids of this fleet's tasks.
const Place = "agentcore"

const (
	lifetime = 8 * time.Hour
	// idle is short because AgentCore bills the memory of a box that waits, and longer
	// than on Lambda because a second costs less.
	idle         = time.Minute
	startTimeout = 75 * time.Second
	// callTimeout is longer than AgentCore takes to restore a virtual machine.
	callTimeout   = 20 * time.Second
	maxAnswer     = 64 << 10
	sessionHeader = "X-Amzn-Bedrock-AgentCore-Runtime-Session-Id"
)

// Config says which runtime runs boxes. Region, Credentials, Endpoint and Runtime are
// required.
type Config struct {
	Region      string
	Credentials aws.CredentialsProvider
	// Endpoint is the address of AgentCore's API, without a slash at its end.
	Endpoint   string
	Runtime    string       // the ARN of the runtime, whose container is the boxes' image
	HTTPClient *http.Client // nil for one of its own
	// Disabled makes Run fail at once with fleet.ErrDisabled.
	Disabled bool
}

// Fleet runs boxes on AgentCore. It is safe for concurrent use.
type Fleet struct{ cfg Config }

var _ fleet.Fleet = (*Fleet)(nil)

// New returns a fleet. It makes no call. Errors: fleet.ErrInvalid for a Config that could
// never run a task.
func New(c Config) (*Fleet, error) {
	if c.Region == "" || c.Credentials == nil || c.Endpoint == "" || !strings.HasPrefix(c.Runtime, "arn:") {
		return nil, fmt.Errorf("%w: region, credentials, endpoint and the ARN of a runtime for boxes are needed; the ARN is %q", fleet.ErrInvalid, c.Runtime)
	}
	c.HTTPClient = cmp.Or(c.HTTPClient, &http.Client{})
	return &Fleet{c}, nil
}

// Traits implements [fleet.Fleet].
func (f *Fleet) Traits(string) fleet.Traits {
	return fleet.Traits{Lifetime: lifetime, Stops: true, Invites: true, Idle: idle, StartTimeout: startTimeout}
}

// Tasks implements [fleet.Fleet]. It fails with fleet.ErrUnlisted.
func (f *Fleet) Tasks(ctx context.Context) ([]fleet.Status, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return nil, fleet.ErrUnlisted
}

// Run implements [fleet.Fleet]. The id is made of t.ClientToken, and so is the session. Run
// makes one call, which the runner answers when it has begun.
//
// Errors: fleet.ErrInvalid also if AgentCore refuses the request; fleet.ErrDisabled, without
// a call; fleet.ErrCapacity if AgentCore throttles or a quota is used up;
// fleet.ErrUnavailable otherwise.
func (f *Fleet) Run(ctx context.Context, t fleet.Task) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	if f.cfg.Disabled {
		return "", fleet.ErrDisabled
	}
	id, event, err := t.Invite(Place)
	if err != nil {
		return "", err
	}
	_, err = f.call(ctx, "invocations", t.ClientToken, event)
	return id, err
}

// Stop implements [fleet.Fleet]. AgentCore keeps no reason.
func (f *Fleet) Stop(ctx context.Context, id, _ string) error {
	token, ok := strings.CutPrefix(id, Place+"/")
	if err := ctx.Err(); err != nil || !ok {
		return err
	}
	status, err := f.call(ctx, "stopruntimesession", token, []byte("{}"))
	if status == http.StatusNotFound || status == http.StatusConflict {
		return nil // it has ended, or ends
	}
	return err
}

// session returns the id of a task's session. AgentCore takes 33 to 256 characters.
func session(token string) string {
	sum := sha256.Sum256([]byte("session\x00" + token))
	return hex.EncodeToString(sum[:])
}

// call sends a request about a session. It returns the status of the answer, 0 for none.
func (f *Fleet) call(ctx context.Context, operation, token string, body []byte) (status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	target := f.cfg.Endpoint + "/runtimes/" + url.PathEscape(f.cfg.Runtime) + "/" + operation
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(body))
	if err != nil {
		return 0, fmt.Errorf("%w: call the runtime of the boxes: %w", fleet.ErrInvalid, err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set(sessionHeader, session(token))
	creds, err := f.cfg.Credentials.Retrieve(ctx)
	if err != nil {
		return 0, fmt.Errorf("%w: credentials for the runtime of the boxes: %w", fleet.ErrUnavailable, err)
	}
	sum := sha256.Sum256(body)
	if err := v4.NewSigner().SignHTTP(ctx, creds, r, hex.EncodeToString(sum[:]), "bedrock-agentcore", f.cfg.Region, time.Now()); err != nil {
		return 0, fmt.Errorf("%w: sign a call of the runtime of the boxes: %w", fleet.ErrUnavailable, err)
	}
	res, err := f.cfg.HTTPClient.Do(r)
	if err != nil {
		return 0, fmt.Errorf("%w: call the runtime of the boxes: %w", fleet.ErrUnavailable, err)
	}
	defer func() { _ = res.Body.Close() }()
	answer, _ := io.ReadAll(io.LimitReader(res.Body, maxAnswer)) // the status says enough
	if res.StatusCode == http.StatusOK {
		return res.StatusCode, nil
	}
	return res.StatusCode, fmt.Errorf("%w: call the runtime of the boxes: status %d %s: %s", kindOf(res.StatusCode), res.StatusCode, res.Header.Get("X-Amzn-Errortype"), answer)
}

// kindOf returns the fleet's error for a status of AgentCore.
func kindOf(status int) error {
	switch status {
	case http.StatusTooManyRequests, http.StatusPaymentRequired: // a rate, or a quota
		return fleet.ErrCapacity
	case http.StatusBadRequest, http.StatusNotFound:
		return fleet.ErrInvalid
	default:
		return fleet.ErrUnavailable
	}
}
