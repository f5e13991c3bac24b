package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/functions/internal/boot"
	"github.com/dormouse-mcp/dormouse/shared/backend/awscall"
)

// Values of Other, a property of the resource Custom::Tickets. It says which secret opens tickets
// in addition to the current one.
const (
	pending  = "AWSPENDING"
	previous = "AWSPREVIOUS"
)

// ticketSecrets are the secrets that encrypt tickets, which let boxes write events. Each is
// hexadecimal, at least 32 bytes. A parameter of Systems Manager has them as JSON.
type ticketSecrets struct {
	Current  string `json:"current"`
	Pending  string `json:"pending,omitempty"`
	Previous string `json:"previous,omitempty"`
}

// tickets is the handler of Custom::Tickets. It keeps the secrets in a parameter, which
// CloudFormation cannot create because it is encrypted, and returns those that the functions need
// now. If there is no parameter, tickets takes the secrets of the stack's deployed functions, whose
// tickets stay valid. In a new stack it creates a secret. The parameter outlives the stack, as does
// the table, whose data is encrypted with the secret.
func tickets(ctx context.Context, e event) (made, error) {
	var want, before struct{ Name, Function, Other string }
	if err := json.Unmarshal(e.ResourceProperties, &want); err != nil {
		return made{}, err
	}
	if e.RequestType == "Delete" {
		return made{id: e.PhysicalResourceID}, nil
	}
	if len(e.OldResourceProperties) > 0 {
		if err := json.Unmarshal(e.OldResourceProperties, &before); err != nil {
			return made{}, err
		}
	}
	kept, err := keptTickets(ctx, want.Name)
	if err != nil {
		return made{}, err
	}
	now := kept
	if now.Current == "" {
		if now, err = servedTickets(ctx, want.Function, want.Other); err != nil {
			return made{}, err
		}
	}
	if now = now.step(before.Other, want.Other); now != kept {
		if err := keepTickets(ctx, want.Name, now); err != nil {
			return made{}, err
		}
	}
	return made{want.Name, map[string]string{"Current": now.Current, "Other": now.other(want.Other)}}, nil
}

// step returns the secrets after a deployment that changes the property Other of the resource. The
// same step may be taken twice. If the deployment fails, CloudFormation takes the opposite step,
// which restores the current secret.
func (s ticketSecrets) step(from, to string) ticketSecrets {
	if s.Current == "" {
		s.Current = newSecret()
	}
	switch {
	case to == pending && from == previous && s.Previous != "":
		return ticketSecrets{Current: s.Previous, Pending: s.Current}
	case to == pending && s.Pending == "":
		return ticketSecrets{Current: s.Current, Pending: newSecret()}
	case to == previous && s.Pending != "":
		return ticketSecrets{Current: s.Pending, Previous: s.Current}
	case to == "":
		s.Pending = "" // Previous stays, so that the operator can go back to it
	}
	return s
}

// other returns the secret that opens tickets in addition to the current one, or "" for none.
func (s ticketSecrets) other(which string) string {
	return map[string]string{pending: s.Pending, previous: s.Previous}[which]
}

func newSecret() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// keptTickets reads the secrets in the parameter. The value may also be a single secret without
// JSON, for an owner who restores it by hand.
func keptTickets(ctx context.Context, name string) (s ticketSecrets, err error) {
	var answer struct{ Parameters []struct{ Value string } }
	err = ask(ctx, "AmazonSSM.GetParameters", map[string]any{"Names": []string{name}, "WithDecryption": true}, &answer)
	if err != nil || len(answer.Parameters) == 0 {
		return s, err
	}
	value := strings.TrimSpace(answer.Parameters[0].Value)
	if json.Unmarshal([]byte(value), &s) != nil {
		s = ticketSecrets{Current: value}
	}
	for _, secret := range []string{s.Current, s.Pending, s.Previous} {
		if raw, err := hex.DecodeString(secret); err != nil || secret != "" && len(raw) < 32 || s.Current == "" {
			return ticketSecrets{}, fmt.Errorf("the parameter %s holds no secret of 32 bytes or more in hexadecimal: write the one of your backup, or delete the parameter for the one that the functions have", name)
		}
	}
	return s, nil
}

func keepTickets(ctx context.Context, name string, s ticketSecrets) error {
	value, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return ask(ctx, "AmazonSSM.PutParameter", map[string]any{
		"Name": name, "Type": "SecureString", "Value": string(value), "Overwrite": true, "Description": "Seals the tickets of Dormouse",
	}, &struct{}{})
}

// servedTickets returns the secrets in the environment of a deployed function. The argument kind,
// pending or previous, says which secret [boot.EnvOtherSecret] has. If the function does not exist,
// servedTickets returns the zero value.
func servedTickets(ctx context.Context, function, kind string) (got ticketSecrets, err error) {
	s := boot.Service("lambda")
	var a awscall.Answer
	again(ctx, func() (denied bool) {
		a, err = s.Do(ctx, awscall.Request{Method: http.MethodGet, URL: s.Endpoint + "/2015-03-31/functions/" + url.PathEscape(function) + "/configuration"}, 1<<20)
		return a.Status == http.StatusForbidden
	})
	if err != nil {
		return got, err
	}
	var answer struct {
		Environment struct{ Variables map[string]string }
	}
	switch {
	case a.Status == http.StatusNotFound:
		return got, nil
	case a.Status != http.StatusOK || json.Unmarshal(a.Body, &answer) != nil:
		return got, fmt.Errorf("the secret of the function %s cannot be read: status %d", function, a.Status)
	}
	got.Current = answer.Environment.Variables[boot.EnvSecret]
	switch other := answer.Environment.Variables[boot.EnvOtherSecret]; kind {
	case pending:
		got.Pending = other
	case previous:
		got.Previous = other
	}
	return got, nil
}

// ask sends a request to Systems Manager. While AWS denies access, ask tries again.
func ask(ctx context.Context, operation string, q, answer any) (err error) {
	again(ctx, func() (denied bool) {
		var refused string
		if refused, err = boot.Ask(ctx, "ssm", operation, q, answer); refused != "" {
			err = errors.New(refused)
		}
		return strings.HasPrefix(refused, "AccessDenied")
	})
	return err
}

// again calls f until f reports that AWS did not deny access. A new role may take some seconds
// until its rights are effective.
func again(ctx context.Context, f func() (denied bool)) {
	const pause, enough = time.Second, 30 * time.Second
	for f() {
		end, ok := ctx.Deadline()
		if !ok || time.Until(end) < enough {
			return
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}
