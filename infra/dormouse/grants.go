package dormouse

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/access/authserver"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

type grantsCommand struct {
	List   listGrantsCommand  `cmd:"" default:"withargs" help:"List the grants: which client may call which server in whose name."`
	Revoke revokeGrantCommand `cmd:"" help:"Revoke a grant. Its tokens are refused within 30 seconds."`
}

// grantLine is a grant in JSON output. Times are RFC 3339 in UTC.
type grantLine struct {
	ID        string    `json:"id"`
	Tenant    string    `json:"tenant"`
	Principal string    `json:"principal"`
	Server    string    `json:"server"`
	Scopes    []string  `json:"scopes"`
	Client    string    `json:"client"` // the name that the client gave at its registration
	Host      string    `json:"host"`   // host that the user's browser was redirected to
	Created   time.Time `json:"created"`
	Expires   time.Time `json:"expires"`
	Revoked   time.Time `json:"revoked,omitzero"`
}

func lineOfGrant(g storage.Grant) grantLine {
	return grantLine{
		ID: g.ID, Tenant: g.Tenant, Principal: g.Principal, Server: g.Server, Scopes: g.Scopes, Client: g.Name, Host: g.Host,
		Created: g.Created.UTC(), Expires: g.Expires.UTC(), Revoked: g.Revoked.UTC(),
	}
}

type listGrantsCommand struct {
	tenantFlag
	keyStore
}

func (c *listGrantsCommand) Run(t *terminal) error {
	return c.useStore(func(ctx context.Context, store storage.Store) error {
		lines := []grantLine{}
		for g, err := range storage.All(ctx, store.Grants(), storage.GrantKind(), c.Tenant) {
			if err != nil {
				return err
			}
			lines = append(lines, lineOfGrant(g))
		}
		return c.show(t, lines, func() error { return printGrants(t.out, lines, t.now()) })
	})
}

func printGrants(out io.Writer, lines []grantLine, now time.Time) error {
	return table(out, func(say func(string, ...any)) {
		say("GRANT\tTENANT\tPRINCIPAL\tSERVER\tSCOPES\tCLIENT\tHOST\tENDS\n")
		for _, g := range lines {
			ends := day(g.Expires, now)
			if !g.Revoked.IsZero() {
				ends = "revoked " + day(g.Revoked, now)
			}
			say("%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", g.ID, g.Tenant, g.Principal, g.Server, strings.Join(g.Scopes, ","), g.Client, g.Host, ends)
		}
	})
}

type revokeGrantCommand struct {
	Grant string `arg:"" help:"The id of the grant."`
	keyStore
}

func (c *revokeGrantCommand) Run(t *terminal) error {
	return c.useStore(func(ctx context.Context, store storage.Store) error {
		g, err := authserver.Revoke(ctx, store, c.Grant)
		if errors.Is(err, storage.NotFound) {
			return fmt.Errorf("there is no grant %s; grants list prints the ids", c.Grant)
		}
		if err != nil {
			return err
		}
		return c.show(t, lineOfGrant(g), func() error {
			_, err := fmt.Fprintf(t.out, "Grant %s of %s, tenant %s, is revoked.\n", g.ID, g.Principal, g.Tenant)
			return err
		})
	})
}
