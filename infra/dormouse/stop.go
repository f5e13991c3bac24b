package dormouse

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

type stopCommand struct {
	Of  string `arg:"" optional:"" name:"server|session" help:"Name of a server, or the beginning of a session's id."`
	All bool   `help:"Stop the processes of all servers."`
	Now bool   `help:"End calls in flight at once. Otherwise they get 30 seconds."`
	target
	printing
}

// Validate is called by kong.
func (c *stopCommand) Validate() error {
	if c.All == (c.Of != "") {
		return errors.New("say what to stop: a server, a session, or --all")
	}
	return nil
}

// Run tells the processes of servers to stop, and does not wait for their end. The sessions stay.
func (c *stopCommand) Run(t *terminal) error {
	return use(context.Background(), c, patience, func(ctx context.Context, to *client) error {
		told, err := c.stop(ctx, to)
		if err != nil {
			return err
		}
		return c.show(t, told, func() (err error) {
			if len(told.Boxes) == 0 {
				_, err = fmt.Fprintln(t.err, cmp.Or(told.Why, "Nothing was running."))
			}
			return err
		})
	})
}

func (c *stopCommand) stop(ctx context.Context, to *client) (told api.Stopped, err error) {
	order := api.Stop{Now: c.Now}
	if c.All {
		return told, to.call(ctx, http.MethodPost, "stop", order, &told)
	}
	all, err := to.servers(ctx)
	if err != nil {
		return told, err
	}
	_, unknown := serverOf(all, c.Of)
	if unknown == nil {
		return told, to.call(ctx, http.MethodPost, "servers/"+c.Of+"/stop", order, &told)
	}
	err = to.call(ctx, http.MethodPost, "sessions/"+c.Of+"/stop", order, &told)
	if isCode(err, "not_found") {
		return told, fmt.Errorf("no session %s, and %w", c.Of, unknown)
	}
	return told, err
}

type giveCommand struct {
	Session   string `arg:"" help:"The beginning of the session's id."`
	Principal string `arg:"" help:"Who gets it, as in the output of dormouse keys list."`
	target
	printing
}

// Run hands a session over to another principal.
func (c *giveCommand) Run(t *terminal) error {
	return use(context.Background(), c, patience, func(ctx context.Context, to *client) error {
		// Only a caller who may list keys and sessions learns that the principal may be mistyped.
		keys, lacks := to.keys(ctx, "")
		of, _, lost := to.sessions(ctx, url.Values{"principal": {c.Principal}}, false)
		var given api.Session
		if err := to.call(ctx, http.MethodPost, "sessions/"+strings.TrimSpace(c.Session)+"/give", api.Give{Principal: c.Principal}, &given); err != nil {
			return err
		}
		if cmp.Or(lacks, lost) == nil && !slices.ContainsFunc(of, func(s api.Session) bool { return s.Tenant == given.Tenant }) &&
			!slices.ContainsFunc(keys, func(k api.Key) bool { return k.Tenant == given.Tenant && k.Principal == c.Principal }) {
			t.sayStrange(given.Tenant, given.Principal)
		}
		return c.show(t, given, func() error {
			_, err := fmt.Fprintf(t.out, "%s of %s is now of %s\n", short(given.ID), given.Server, given.Principal)
			return err
		})
	})
}

type endCommand struct {
	Session string `arg:"" help:"The beginning of the session's id."`
	target
	printing
}

// Run ends a session for good.
func (c *endCommand) Run(t *terminal) error {
	return use(context.Background(), c, patience, func(ctx context.Context, to *client) error {
		var ended api.Session
		if err := to.call(ctx, http.MethodDelete, "sessions/"+strings.TrimSpace(c.Session), nil, &ended); err != nil {
			return err
		}
		return c.show(t, ended, func() error { return nil })
	})
}
