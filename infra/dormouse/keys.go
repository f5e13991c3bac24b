package dormouse

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local"
	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
	"github.com/dormouse-mcp/dormouse/shared/store/sqlitestore"
)

type keysCommand struct {
	Create createKeyCommand `cmd:"" help:"Make an API key and print it. It cannot be shown again."`
	List   listKeysCommand  `cmd:"" default:"withargs" help:"Show the keys."`
	Rotate rotateKeyCommand `cmd:"" help:"Replace a key. The old one ends a day later."`
	Revoke revokeKeyCommand `cmd:"" help:"Revoke a key. Every endpoint refuses it within 30 seconds; open responses go on to their end."`
}

// managed has the flags of commands that manage API keys.
type managed struct {
	placed
	printing
}

// use calls fn with a client for the endpoint or the store that has the keys.
func (m managed) use(fn func(context.Context, *client) error) error {
	return use(context.Background(), m.placed, time.Minute, fn)
}

// keyStore has the flags of commands that open the store themselves.
type keyStore struct {
	dataFlag
	storeFlag
	printing
}

// useStore opens the store, passes it to fn, and closes it. It sets k.Data to the data folder that
// it has found.
func (k *keyStore) useStore(fn func(context.Context, storage.Store) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if k.Store == "" {
		data, err := k.folder(ctx)
		if err != nil {
			return err
		}
		k.Data = data
	}
	store, err := openStore(ctx, k.Store, k.Data)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	return fn(ctx, store)
}

// openStore opens the store of this name, or if name is "", that of the data folder. AWS
// credentials come from the environment, or if it has none, from the aws command.
func openStore(ctx context.Context, name, data string) (storage.Store, error) {
	name, err := local.StoreName(name, data)
	if err != nil {
		return nil, err
	}
	getenv := os.Getenv
	if strings.HasPrefix(name, dynamodb) {
		getenv = awsCredentials(ctx, name)
	}
	if name, err = useTable(ctx, name, getenv); err != nil {
		return nil, err
	}
	return local.OpenStore(name, getenv, sessions.Limits{}, sqlitestore.Options{})
}

// awsCredentials returns os.Getenv. For a table on AWS it adds the credentials of the aws command, if the
// environment has none.
func awsCredentials(ctx context.Context, store string) func(string) string {
	if os.Getenv("AWS_ACCESS_KEY_ID") != "" || os.Getenv("AWS_ENDPOINT_URL") != "" || strings.Contains(store, "endpoint=") {
		return os.Getenv
	}
	k := signedIn(ctx)
	own := map[string]string{"AWS_ACCESS_KEY_ID": k.ID, "AWS_SECRET_ACCESS_KEY": k.Secret, "AWS_SESSION_TOKEN": k.Token}
	return func(variable string) string { return cmp.Or(own[variable], os.Getenv(variable)) }
}

type createKeyCommand struct {
	Principal  string   `arg:"" help:"The principal as whom the holder acts, and to whom the sessions belong."`
	Tenant     string   `placeholder:"TENANT" help:"The tenant of the principal, by default that of your own key, or default."`
	Server     []string `help:"Name of a server that the holder may call; may be repeated."`
	AllServers bool     `help:"The holder may call every server."`
	Role       string   `enum:"user,viewer,auditor,operator" default:"user" help:"user: call servers. viewer: see servers, processes, sessions and keys. auditor: the same, and what calls said, of servers that keep it. operator: call, see, and manage them."`
	Props      string   `placeholder:"JSON" help:"A JSON object about the principal, for your servers in Go."`
	Days       *int     `help:"The days until the key ends, by default 365; 0 for never."`
	fileFlag
	managed
}

// Validate is called by kong.
func (c *createKeyCommand) Validate() error {
	switch {
	case c.AllServers == (len(c.Server) > 0):
		return errors.New("say which servers the key is for: --server NAME, or --all-servers")
	case c.Days != nil && *c.Days < 0:
		return fmt.Errorf("--days is %d; want a number of days, or 0 for never", *c.Days)
	}
	return nil
}

func (c *createKeyCommand) Run(t *terminal) error {
	days := api.KeyDays
	if c.Days != nil {
		days = *c.Days
	}
	asked := api.NewKey{Principal: c.Principal, Tenant: c.Tenant, Servers: c.Server, Role: c.Role, Seconds: int64(days) * 24 * 60 * 60}
	if c.Props != "" {
		if !json.Valid([]byte(c.Props)) {
			return errors.New("--props is not a JSON object")
		}
		asked.Props = json.RawMessage(c.Props)
	}
	if c.AllServers {
		asked.Servers = []string{storage.EveryServer}
	}
	if err := c.makeFolder(t); err != nil {
		return err
	}
	return c.use(func(ctx context.Context, to *client) error {
		if !to.up {
			if err := c.checkServers(t); err != nil {
				return err
			}
		}
		var made api.Key
		if err := to.call(ctx, "POST", "keys", asked, &made); err != nil {
			return err
		}
		return c.show(t, made, func() error { return sayKey(t, made) })
	})
}

// makeFolder creates the data folder, because users often create keys before the first dormouse
// run. If the key is for a dormouse run that is up elsewhere, makeFolder does nothing.
func (c *createKeyCommand) makeFolder(t *terminal) error {
	if c.remote() || c.Store != "" {
		return nil
	}
	if data, err := c.elsewhere(context.Background()); err != nil || data != "" {
		return err
	}
	_, folder := os.Stat(c.folder())
	_, file := os.Stat(c.Servers)
	if errors.Is(folder, fs.ErrNotExist) && errors.Is(file, fs.ErrNotExist) {
		_, _ = fmt.Fprintf(t.err, "No dormouse run has used %s, and there is no %s: only a run with that data folder takes the key. --data names another folder.\n", c.folder(), c.Servers)
	}
	return os.MkdirAll(c.folder(), 0o700)
}

// sayKey prints a new key. Only the key goes to standard output, so that a script can read it.
func sayKey(t *terminal, made api.Key) error {
	_, err := fmt.Fprintln(t.out, made.Key)
	may := ""
	if made.Role != "user" {
		may = " with role " + made.Role
	}
	_, _ = fmt.Fprintf(t.err, "Key %s acts as %s of tenant %s%s. It is not shown again. Send it as Authorization: Bearer KEY.\n",
		made.ID, made.Principal, made.Tenant, may)
	return err
}

// checkServers returns an error for names that the servers file lacks. If it cannot read the file,
// it only prints a warning: the key may be for a stack on AWS.
func (c *createKeyCommand) checkServers(t *terminal) error {
	if len(c.Server) == 0 {
		return nil
	}
	servers, _, err := serversfile.Load(c.Servers, os.LookupEnv)
	if err != nil {
		_, _ = fmt.Fprintf(t.err, "The names of servers are not checked: %v\n", err)
		return nil
	}
	names := namesIn(servers)
	for _, name := range c.Server {
		if !slices.Contains(names, name) {
			return fmt.Errorf("%s has no server %s: %s", c.Servers, name, serversfile.Instead(name, names))
		}
	}
	return nil
}

type listKeysCommand struct {
	tenantFlag
	managed
}

func (c *listKeysCommand) Run(t *terminal) error {
	return c.use(func(ctx context.Context, to *client) error {
		all, err := to.keys(ctx, c.Tenant)
		if err != nil {
			return err
		}
		return c.show(t, all, func() error { return printKeys(t.out, all, t.now()) })
	})
}

// keys lists the keys of a tenant. For tenant "" it lists all keys that the caller may manage.
func (c *client) keys(ctx context.Context, tenant string) ([]api.Key, error) {
	answer := struct{ Keys []api.Key }{}
	err := c.call(ctx, "GET", "keys?tenant="+tenant, nil, &answer)
	return answer.Keys, err
}

func printKeys(out io.Writer, keys []api.Key, now time.Time) error {
	return table(out, func(say func(string, ...any)) {
		say("KEY\tTENANT\tPRINCIPAL\tROLE\tSERVERS\tMADE\tLAST USED\tENDS\n")
		for _, k := range keys {
			used, ends := "never", "never"
			if k.Expires != nil {
				ends = day(*k.Expires, now)
			}
			if k.LastUsed != nil {
				used = ago(now, *k.LastUsed)
			}
			if k.Revoked != nil {
				ends = "revoked " + day(*k.Revoked, now)
			}
			say("%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", k.ID, k.Tenant, k.Principal, k.Role, strings.Join(k.Servers, ","), day(k.Created, now), used, ends)
		}
	})
}

type rotateKeyCommand struct {
	Key string `arg:"" name:"who|id" help:"The id of the key, or its principal, if that has only one key."`
	tenantFlag
	managed
}

// keyOverlap is how long a replaced key stays valid.
const keyOverlap = 24 * time.Hour

// Run creates a key that replaces another one.
func (c *rotateKeyCommand) Run(t *terminal) error {
	return c.use(func(ctx context.Context, to *client) error {
		id, err := c.find(ctx, to)
		if err != nil {
			return err
		}
		var made api.Rotated
		if err := to.call(ctx, "POST", "keys/"+id+"/rotate", api.Rotate{Seconds: int64(keyOverlap.Seconds())}, &made); err != nil {
			return err
		}
		return c.show(t, made, func() error {
			err := sayKey(t, made.Key)
			_, _ = fmt.Fprintf(t.err, "It replaces key %s, which is valid until %s.\n", made.Old.ID, moment(*made.Old.Expires, t.now()))
			return err
		})
	})
}

func (c *rotateKeyCommand) find(ctx context.Context, to *client) (string, error) {
	all, err := to.keys(ctx, c.Tenant)
	if err != nil {
		return "", err
	}
	var own, names []string
	for _, k := range all {
		if k.ID == c.Key {
			return k.ID, nil
		}
		if k.Principal == c.Key && k.Revoked == nil {
			own = append(own, k.ID)
		}
		if !slices.Contains(names, k.Principal) {
			names = append(names, k.Principal)
		}
	}
	switch len(own) {
	case 0:
		return "", fmt.Errorf("no key has this id, and %w", unknown("principal", c.Key, names))
	case 1:
		return own[0], nil
	default:
		return "", fmt.Errorf("%s has several keys: name one of %s", c.Key, strings.Join(own, ", "))
	}
}

type revokeKeyCommand struct {
	Key string `arg:"" help:"The id of the key, or the key itself."`
	managed
}

func (c *revokeKeyCommand) Run(t *terminal) error {
	return c.use(func(ctx context.Context, to *client) error {
		var k api.Key
		if err := to.call(ctx, "DELETE", "keys/"+apikey.KeyID(c.Key), nil, &k); err != nil {
			return err
		}
		return c.show(t, k, func() error {
			_, err := fmt.Fprintf(t.out, "Key %s of %s, tenant %s, is revoked. Every endpoint refuses it within 30 seconds.\n", k.ID, k.Principal, k.Tenant)
			return err
		})
	})
}
