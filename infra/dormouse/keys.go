package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local"
	"github.com/dormouse-mcp/dormouse/shared/auth"
	"github.com/dormouse-mcp/dormouse/shared/catalog"
	"github.com/dormouse-mcp/dormouse/shared/host"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

type keysCommand struct {
	Create createKeyCommand `cmd:"" help:"Make an API key and print it. It cannot be shown again."`
	List   listKeysCommand  `cmd:"" help:"Show the keys there are."`
	Revoke revokeKeyCommand `cmd:"" help:"End a key, everywhere within 30 seconds. What is being held at that time ends by itself; see SECURITY.md."`
}

// keyStore says where the keys are, and how to print them.
type keyStore struct {
	Data  string `default:".dormouse" type:"path" help:"Folder that dormouse run was given."`
	Store string `help:"As dormouse run was given, or dynamodb:TABLE of what is deployed, with the credentials in the environment or of the aws command."`
	JSON  bool   `help:"Print JSON."`
}

// use opens the store, calls do with it, and closes it.
func (k keyStore) use(do func(context.Context, session.Keys) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	store, err := k.open(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	return do(ctx, store)
}

func (k keyStore) open(ctx context.Context) (session.Store, error) {
	name, err := local.StoreName(k.Store, k.Data)
	if err != nil {
		return nil, err
	}
	name, more, err := useTable(ctx, name)
	if err != nil {
		return nil, err
	}
	getenv := func(variable string) string {
		for _, kv := range more {
			if v, ok := strings.CutPrefix(kv, variable+"="); ok {
				return v
			}
		}
		return os.Getenv(variable)
	}
	if strings.HasPrefix(name, dynamodb) {
		getenv = credentials(ctx, getenv)
	}
	return local.OpenStore(name, getenv, host.Limits{})
}

// credentials adds the credentials of the aws command to an environment without any.
func credentials(ctx context.Context, getenv func(string) string) func(string) string {
	if getenv("AWS_ACCESS_KEY_ID") != "" {
		return getenv
	}
	k := signedIn(ctx)
	own := map[string]string{"AWS_ACCESS_KEY_ID": k.ID, "AWS_SECRET_ACCESS_KEY": k.Secret, "AWS_SESSION_TOKEN": k.Token}
	return func(variable string) string {
		if v, ok := own[variable]; ok {
			return v
		}
		return getenv(variable)
	}
}

// keyLine is the JSON form of a key. Times are RFC 3339, UTC.
type keyLine struct {
	Key       string     `json:"key,omitempty"` // only when the command creates it
	ID        string     `json:"id"`
	Tenant    string     `json:"tenant"`
	Principal string     `json:"principal"`
	Servers   []string   `json:"servers"`
	Created   time.Time  `json:"created"`
	LastUsed  *time.Time `json:"last_used,omitempty"` // to within an hour
	Expires   *time.Time `json:"expires,omitempty"`   // for a revoked key: when the store forgets it
	Revoked   *time.Time `json:"revoked,omitempty"`
}

func lineOf(k session.Key) keyLine {
	at := func(t time.Time) *time.Time {
		if t.IsZero() {
			return nil
		}
		t = t.UTC()
		return &t
	}
	return keyLine{
		ID: k.ID, Tenant: k.Tenant, Principal: k.Principal, Servers: k.Servers,
		Created: k.Created.UTC(), LastUsed: at(k.Used), Expires: at(k.Expires), Revoked: at(k.Revoked),
	}
}

type createKeyCommand struct {
	Principal  string   `arg:"" help:"As whom the holder acts. Sessions are the principal's: a key that replaces another has the same."`
	Tenant     string   `default:"default" help:"Tenants share neither sessions nor boxes."`
	Server     []string `help:"Name of a server the key is for; may be repeated."`
	AllServers bool     `help:"The key is for every server."`
	Props      string   `help:"JSON object that your servers in Go are told of the principal, such as a plan or a name."`
	Days       int      `default:"365" help:"After so many days the key ends; 0 for never."`
	Servers    string   `default:"servers.json" type:"path" help:"The servers file, which must have each --server. Without a file the names are not checked."`
	Force      bool     `help:"Do not check the names of servers."`
	keyStore
}

// Validate checks the flags together.
func (c *createKeyCommand) Validate() error {
	switch {
	case c.AllServers == (len(c.Server) > 0):
		return errors.New("say which servers the key is for: --server NAME, or --all-servers")
	case c.Days < 0:
		return fmt.Errorf("--days is %d; want a number of days, or 0 for never", c.Days)
	}
	return nil
}

func (c *createKeyCommand) Run(t *terminal) error {
	if err := c.checkServers(t); err != nil {
		return err
	}
	grant := auth.Grant{Tenant: c.Tenant, Principal: c.Principal, Servers: c.Server, Life: time.Duration(c.Days) * 24 * time.Hour}
	if c.Props != "" {
		grant.Props = []byte(c.Props)
	}
	if c.AllServers {
		grant.Servers = []string{session.EveryServer}
	}
	return c.use(func(ctx context.Context, store session.Keys) error {
		key, record, err := auth.Create(ctx, store, grant)
		if err != nil {
			return err
		}
		if c.JSON {
			line := lineOf(record)
			line.Key = key
			return t.printJSON(line)
		}
		_, err = fmt.Fprintln(t.out, key)
		_, _ = fmt.Fprintf(t.err, "Key %s acts as %s of tenant %s. It is shown this once; send it as Authorization: Bearer KEY.\n",
			record.ID, record.Principal, record.Tenant)
		return err
	})
}

// checkServers returns an error for names that the servers file does not have. If the
// file is elsewhere, as for a stack on AWS, or cannot be read, it prints a warning.
func (c *createKeyCommand) checkServers(t *terminal) error {
	if c.Force || len(c.Server) == 0 {
		return nil
	}
	servers, _, err := catalog.Load(c.Servers, os.LookupEnv)
	if err != nil {
		_, _ = fmt.Fprintf(t.err, "The names of servers are not checked: %v\n", err)
		return nil
	}
	for _, name := range c.Server {
		if _, ok := servers.Server(name); ok || servers.Reason(name) != "" {
			continue
		}
		hint := "it has " + strings.Join(servers.Names(), ", ")
		if nearest := servers.Nearest(name); nearest != "" {
			hint = "did you mean " + nearest + "?"
		}
		return fmt.Errorf("%s has no server %s: %s (--force makes the key all the same)", c.Servers, name, hint)
	}
	return nil
}

type listKeysCommand struct {
	Tenant string `help:"Only keys of this tenant."`
	keyStore
}

func (c *listKeysCommand) Run(t *terminal) error {
	return c.use(func(ctx context.Context, store session.Keys) error {
		keys, err := auth.List(ctx, store, c.Tenant)
		if err != nil {
			return err
		}
		lines := []keyLine{}
		for _, k := range keys {
			lines = append(lines, lineOf(k))
		}
		if c.JSON {
			return t.printJSON(lines)
		}
		return printKeys(t.out, lines, t.now())
	})
}

func printKeys(out io.Writer, keys []keyLine, now time.Time) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }
	day := func(t *time.Time) string {
		if t == nil {
			return "never"
		}
		return t.Format(time.DateOnly)
	}
	say("KEY\tTENANT\tPRINCIPAL\tSERVERS\tMADE\tLAST USED\tENDS\n")
	for _, k := range keys {
		used, ends := "never", day(k.Expires)
		if k.LastUsed != nil {
			used = age(now, *k.LastUsed).Truncate(time.Minute).String() + " ago"
		}
		if k.Revoked != nil {
			ends = "revoked " + day(k.Revoked)
		}
		say("%s\t%s\t%s\t%s\t%s\t%s\t%s\n", k.ID, k.Tenant, k.Principal, strings.Join(k.Servers, ","), day(&k.Created), used, ends)
	}
	return w.Flush()
}

type revokeKeyCommand struct {
	Key string `arg:"" help:"Its id, as list shows it; or the key itself."`
	keyStore
}

func (c *revokeKeyCommand) Run(t *terminal) error {
	return c.use(func(ctx context.Context, store session.Keys) error {
		k, err := auth.Revoke(ctx, store, c.Key)
		if err != nil {
			return err
		}
		if c.JSON {
			return t.printJSON(lineOf(k))
		}
		_, err = fmt.Fprintf(t.out, "Key %s of %s, tenant %s, is revoked.\n", k.ID, k.Principal, k.Tenant)
		return err
	})
}
