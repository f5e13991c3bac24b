package dormouse

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/access/quota"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/config/suggest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

type quotasCommand struct {
	Show showQuotasCommand `cmd:"" default:"withargs" help:"Show the limits of tenants and what they have used."`
	Set  setQuotasCommand  `cmd:"" help:"Change limits of a tenant. The servers file needs x-dormouse.limits; {} is enough."`
}

// tenantQuotas is the JSON output about a tenant. Limits are those in force.
type tenantQuotas struct {
	quota.Report
	Limits quota.Limits `json:"limits"`
}

type showQuotasCommand struct {
	tenantFlag
	fileFlag
	keyStore
}

func (c *showQuotasCommand) Run(t *terminal) error {
	file := fileLimits(t, c.Servers)
	return c.useStore(func(ctx context.Context, store storage.Store) error {
		tenants := []string{c.Tenant}
		if c.Tenant == "" {
			var err error
			if tenants, err = tenantsOf(ctx, store); err != nil {
				return err
			}
		}
		all := []tenantQuotas{}
		for _, tenant := range tenants {
			r, err := quota.Show(ctx, store, tenant)
			if err != nil {
				return err
			}
			q, err := quotasOf(file, r)
			if err != nil {
				return err
			}
			all = append(all, q)
		}
		return c.show(t, all, func() error { return printQuotas(t.out, all) })
	})
}

// fileLimits returns the section with the limits in a servers file. If the file cannot be read, it
// only prints a warning: the stack may have been deployed from another machine.
func fileLimits(t *terminal, path string) []byte {
	servers, _, err := serversfile.Load(path, os.LookupEnv)
	if err != nil {
		_, _ = fmt.Fprintf(t.err, "The limits of the servers file are not shown: %v\n", err)
		return nil
	}
	if servers.Limits() == nil {
		_, _ = fmt.Fprintf(t.err, "No limits hold: %s has no x-dormouse.limits, where {} is enough.\n", path)
	}
	return servers.Limits()
}

// tenantsOf returns all tenants that have sessions, keys, or limits of their own.
func tenantsOf(ctx context.Context, store storage.Store) ([]string, error) {
	callers, err := callersOf(ctx, store)
	if err != nil {
		return nil, err
	}
	limited, err := quota.Limited(ctx, store)
	all := append(callers, limited...)
	slices.Sort(all)
	return slices.Compact(all), err
}

// callersOf returns the tenants that have sessions or keys.
func callersOf(ctx context.Context, store storage.Store) ([]string, error) {
	found := map[string]bool{}
	keys, err := apikey.List(ctx, store, "")
	if err != nil {
		return nil, err
	}
	for _, k := range keys {
		found[k.Tenant] = true
	}
	for s, err := range storage.AllSessions(ctx, store, "", "") {
		if err != nil {
			return nil, err
		}
		found[s.Tenant] = true
	}
	return slices.Sorted(maps.Keys(found)), nil
}

func quotasOf(file []byte, r quota.Report) (tenantQuotas, error) {
	limits, err := quota.InForce(file, r.Own)
	return tenantQuotas{r, limits}, err
}

func printQuotas(out io.Writer, all []tenantQuotas) error {
	most := func(limited bool, limit any) string {
		if !limited {
			return "–"
		}
		return fmt.Sprint(limit)
	}
	return table(out, func(say func(string, ...any)) {
		say("TENANT\tUSD OF MONTH\tLIMIT\tCALLS OF A PRINCIPAL\tAT ONCE\tBOXES\n")
		for _, q := range all {
			l := q.Limits
			say("%s\t%.4f\t%s\t%s\t%s\t%s\n", q.Tenant, q.USD, most(l.MonthUSD > 0, fmt.Sprintf("%.2f", l.MonthUSD)),
				most(!l.Principal.IsZero(), l.Principal), most(l.Concurrent > 0, l.Concurrent), most(l.Boxes > 0, l.Boxes))
		}
	})
}

type setQuotasCommand struct {
	Tenant string   `arg:"" help:"The tenant."`
	Change []string `arg:"" name:"limit" help:"KEY=VALUE: month_usd=20, principal=60/m, concurrent=4, boxes=8. off removes a limit, file gives that of the servers file back."`
	fileFlag
	keyStore
}

func (c *setQuotasCommand) Run(t *terminal) error {
	file := fileLimits(t, c.Servers)
	change, err := quota.Change(c.Change)
	if err != nil {
		return err
	}
	return c.useStore(func(ctx context.Context, store storage.Store) error {
		r, err := quota.Set(ctx, store, c.Tenant, change)
		if err != nil {
			return err
		}
		q, err := quotasOf(file, r)
		if err != nil {
			return err
		}
		callers, err := callersOf(ctx, store)
		if err != nil {
			return err
		}
		if !slices.Contains(callers, c.Tenant) {
			_, _ = fmt.Fprintf(t.err, "No key and no session is of tenant %s, so nobody is under these limits yet. %s\n", c.Tenant, instead(c.Tenant, callers))
		}
		return c.show(t, q, func() error { return printQuotas(t.out, []tenantQuotas{q}) })
	})
}

func instead(tenant string, callers []string) string {
	if near := suggest.Of(tenant, callers, 2); near != "" {
		return "Did you mean " + near + "?"
	}
	return "dormouse quotas lists the tenants."
}
