package dormouse

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/datafolder"
	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/access/credentials"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

type secretsCommand struct {
	Set    setSecretCommand    `cmd:"" help:"Set what ${principal:NAME} stands for. The value is read from standard input."`
	List   listSecretsCommand  `cmd:"" default:"withargs" help:"List what principals have, without the values."`
	Remove removeSecretCommand `cmd:"" help:"Remove what a principal has at a third party."`
}

type ofPrincipal struct {
	Principal string `placeholder:"WHO" required:"" help:"The principal of a key, or of a user, such as okta:00u1ab."`
	Tenant    string `default:"default" help:"The principal's tenant."`
}

type setSecretCommand struct {
	Name string `arg:"" help:"The name in ${principal:NAME}."`
	ofPrincipal
	keyStore
}

// Run stores a value that the user types, or that standard input has.
func (c *setSecretCommand) Run(t *terminal) error {
	value, err := t.secret("Value: ", credentials.MaxSecret)
	if err != nil {
		return err
	}
	return c.useStore(func(ctx context.Context, store storage.Store) error {
		secret, err := c.sealing()
		if err != nil {
			return err
		}
		v, err := credentials.New(credentials.Config{Store: store, Secret: secret})
		if err == nil {
			err = v.Put(ctx, c.Tenant, c.Principal, c.Name, strings.TrimSpace(value))
		}
		if err != nil {
			return err
		}
		if known, err := c.known(ctx, store); err == nil && !known {
			t.sayStrange(c.Tenant, c.Principal)
		}
		return c.show(t, secretLine{Name: c.Name, Tenant: c.Tenant, Principal: c.Principal}, func() error {
			_, err := fmt.Fprintf(t.out, "%s of %s, tenant %s, is set. Processes get it with their next call.\n", c.Name, c.Principal, c.Tenant)
			return err
		})
	})
}

// mostSearched is how many sessions are searched for a principal, which takes ten reads of the store.
const mostSearched = 10_000

// known reports whether there is a key or a session of the principal. It also reports
// true if there are more sessions than mostSearched.
func (p ofPrincipal) known(ctx context.Context, store storage.Store) (bool, error) {
	keys, err := apikey.List(ctx, store, p.Tenant)
	if err != nil || slices.ContainsFunc(keys, func(k storage.Key) bool { return k.Principal == p.Principal }) {
		return err == nil, err
	}
	searched := 0
	for s, err := range storage.AllSessions(ctx, store, p.Tenant, "") {
		if searched++; err != nil || s.Principal == p.Principal || searched > mostSearched {
			return err == nil, err
		}
	}
	return false, nil
}

// sayStrange warns that a principal may be mistyped. It is no error, because users who sign in have
// no key, and no session before their first call.
func (t *terminal) sayStrange(tenant, principal string) {
	_, _ = fmt.Fprintf(t.err, "tenant %s has no key and no session of %s: is it mistyped?\n", tenant, principal)
}

// sealing returns the key that encrypts values in the store: that in the environment variable
// secretEnv, or else that of the data folder. For a stack, secretEnv must be set.
func (k keyStore) sealing() ([]byte, error) {
	text := os.Getenv(secretEnv)
	switch {
	case text != "":
		secret, err := hex.DecodeString(text)
		if err != nil {
			return nil, errors.New(secretEnv + " is not hexadecimal")
		}
		return secret, nil
	case strings.HasPrefix(k.Store, dynamodb):
		return nil, errors.New("set " + secretEnv + " to the secret of the stack: it seals what is stored")
	}
	return datafolder.Secret(k.Data)
}

// secretEnv is the environment variable with the secret of a stack on AWS, in hexadecimal.
const secretEnv = "DORMOUSE_SECRET" //nolint:gosec // the name of a variable

// secretLine is a key or token of a principal in JSON output. Times are RFC 3339 in UTC.
type secretLine struct {
	Name      string    `json:"name"`
	Tenant    string    `json:"tenant"`
	Principal string    `json:"principal"`
	Changed   time.Time `json:"changed,omitzero"`
	Until     time.Time `json:"until,omitzero"` // when the value expires; absent if it does not
	Refused   bool      `json:"refused,omitempty"`
}

type listSecretsCommand struct {
	principalFlag
	tenantFlag
	keyStore
}

// Run lists the keys and tokens that principals have, without their values.
func (c *listSecretsCommand) Run(t *terminal) error {
	return c.useStore(func(ctx context.Context, store storage.Store) error {
		lines := []secretLine{}
		for r, err := range storage.All(ctx, store.UpstreamTokens(), storage.UpstreamTokenKind(), c.Tenant) {
			if err != nil {
				return err
			}
			if c.Principal == "" || c.Principal == r.Principal {
				lines = append(lines, secretLine{
					Name: r.Provider, Tenant: r.Tenant, Principal: r.Principal, Changed: r.Changed.UTC(), Until: r.Until.UTC(), Refused: r.Sealed == "",
				})
			}
		}
		return c.show(t, lines, func() error {
			return table(t.out, func(say func(string, ...any)) {
				say("NAME\tTENANT\tPRINCIPAL\tCHANGED\tENDS\n")
				for _, l := range lines {
					ends := "never"
					switch {
					case l.Refused:
						ends = "refused"
					case !l.Until.IsZero():
						ends = moment(l.Until, t.now())
					}
					say("%s\t%s\t%s\t%s\t%s\n", l.Name, l.Tenant, l.Principal, day(l.Changed, t.now()), ends)
				}
			})
		})
	})
}

type removeSecretCommand struct {
	Name string `arg:"" help:"The name in ${principal:NAME}."`
	ofPrincipal
	keyStore
}

func (c *removeSecretCommand) Run(t *terminal) error {
	return c.useStore(func(ctx context.Context, store storage.Store) error {
		there, err := credentials.Remove(ctx, store, c.Tenant, c.Principal, c.Name)
		if err != nil {
			return err
		}
		if !there {
			return fmt.Errorf("%s of tenant %s has no %s; secrets list prints what there is", c.Principal, c.Tenant, c.Name)
		}
		return c.show(t, secretLine{Name: c.Name, Tenant: c.Tenant, Principal: c.Principal}, func() error {
			_, err := fmt.Fprintf(t.out, "%s of %s, tenant %s, is removed.\n", c.Name, c.Principal, c.Tenant)
			return err
		})
	})
}
