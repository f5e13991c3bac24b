package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/dormouse-mcp/dormouse/shared/auth"
	"github.com/dormouse-mcp/dormouse/shared/catalog"
	"github.com/dormouse-mcp/dormouse/shared/nearest"
	"github.com/dormouse-mcp/dormouse/shared/quota"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

type quotasCommand struct {
	Show showQuotasCommand `cmd:"" default:"withargs" help:"Show the limits of tenants and what they have used."`
	Set  setQuotasCommand  `cmd:"" help:"Change limits of a tenant, everywhere within 30 seconds."`
}

// tenantQuotas is the JSON form of a tenant. Limits are the ones that apply now.
type tenantQuotas struct {
	quota.Report
	Limits quota.Settings `json:"limits"`
	USD    float64        `json:"usd"` // used in the month
}

type showQuotasCommand struct {
	Tenant  string `placeholder:"TENANT" help:"Only this tenant. Without it, all that have sessions, keys or limits of their own."`
	Servers string `default:"servers.json" type:"path" help:"The servers file, whose limits hold for tenants without their own."`
	keyStore
}

func (c *showQuotasCommand) Run(t *terminal) error {
	file := fileLimits(t, c.Servers)
	return c.useStore(func(ctx context.Context, store session.Store) error {
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

// fileLimits returns the limits of a servers file. If it cannot be read, as on another
// machine than that of a stack, it prints a warning.
func fileLimits(t *terminal, path string) quota.Sections {
	servers, _, err := catalog.Load(path, os.LookupEnv)
	if err != nil {
		_, _ = fmt.Fprintf(t.err, "The limits of the servers file are not shown: %v\n", err)
		return quota.Sections{}
	}
	file, of := servers.Limits()
	if file == nil && len(of) == 0 {
		_, _ = fmt.Fprintf(t.err, "No limits hold: %s has no x-dormouse.limits, where {} is enough.\n", path)
	}
	return quota.Sections{File: file, Servers: of}
}

// tenantsOf returns all tenants that have sessions, keys or limits of their own.
func tenantsOf(ctx context.Context, store session.Store) ([]string, error) {
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
func callersOf(ctx context.Context, store session.Store) ([]string, error) {
	const page = 1000
	found := map[string]bool{}
	keys, err := auth.List(ctx, store, "")
	if err != nil {
		return nil, err
	}
	for _, k := range keys {
		found[k.Tenant] = true
	}
	for after := session.ID(""); ; {
		sessions, err := store.List(ctx, "", after, page)
		if err != nil {
			return nil, err
		}
		for _, s := range sessions {
			found[s.Tenant] = true
			after = s.ID
		}
		if len(sessions) < page {
			return slices.Sorted(maps.Keys(found)), nil
		}
	}
}

func quotasOf(file quota.Sections, r quota.Report) (tenantQuotas, error) {
	limits, err := quota.InForce(file, r.Own)
	return tenantQuotas{Report: r, Limits: limits, USD: float64(r.Used.Nanos[""]) / 1e9}, err
}

func printQuotas(out io.Writer, all []tenantQuotas) error {
	most := func(format string, n float64) string {
		if n == 0 {
			return "–"
		}
		return fmt.Sprintf(format, n)
	}
	return table(out, func(say func(string, ...any)) {
		say("TENANT\tSERVER OR PRINCIPAL\tUSD OF MONTH\tLIMIT\tGB\tLIMIT\tCALLS TODAY\tLIMIT\tRATES\n")
		for _, q := range all {
			servers := []string{""}
			servers = append(servers, slices.Sorted(maps.Keys(q.Limits.Servers))...)
			for _, server := range servers {
				limits, name := q.Limits.Limits, "all"
				if server != "" {
					limits, name = q.Limits.Servers[server], server
				}
				say("%s\t%s\t%.4f\t%s\t%.3f\t%s\t%d\t%s\t%s\n", q.Tenant, name,
					float64(q.Used.Nanos[server])/1e9, most("%.2f", limits.MonthUSD),
					float64(q.Used.Bytes[server])/(1<<30), most("%g", limits.MonthGB),
					q.Used.Calls[server], most("%.0f", float64(limits.Day)), cmp.Or(ratesOf(limits), "–"))
			}
			usd, gb := most("%.2f", q.Limits.PrincipalUSD), most("%g", q.Limits.PrincipalGB)
			if q.Limits.PrincipalUSD > 0 || q.Limits.PrincipalGB > 0 {
				say("%s\teach principal\t–\t%s\t–\t%s\t–\t–\t–\n", q.Tenant, usd, gb)
			}
			for _, principal := range slices.Sorted(maps.Keys(q.Used.Principals)) {
				share := q.Used.Principals[principal]
				say("%s\t%s\t%.4f\t%s\t%.3f\t%s\t–\t–\t–\n", q.Tenant, principal, float64(share.Nanos)/1e9, usd, float64(share.Bytes)/(1<<30), gb)
			}
		}
	})
}

// ratesOf describes the rates of limits in one line.
func ratesOf(l quota.Limits) (text string) {
	add := func(name, value string) {
		if text != "" {
			text += ", "
		}
		text += name + " " + value
	}
	for _, of := range []struct {
		name string
		rate quota.Rate
	}{{"principal", l.Principal}, {"tenant", l.Tenant}, {"server", l.Server}} {
		if !of.rate.IsZero() {
			add(of.name, of.rate.String())
		}
	}
	for _, tool := range slices.Sorted(maps.Keys(l.Tools)) {
		add(tool, l.Tools[tool].String())
	}
	if l.Concurrent > 0 {
		add("concurrent", fmt.Sprint(l.Concurrent))
	}
	if l.Boxes > 0 {
		add("boxes", fmt.Sprint(l.Boxes))
	}
	return text
}

type setQuotasCommand struct {
	Tenant  string   `arg:"" help:"The tenant. Others keep the limits of the servers file."`
	Change  []string `arg:"" name:"limit" help:"KEY=VALUE, as under x-dormouse.limits: month_usd=20, principal_month_usd=2, day=5000, principal=60/m, and for a server tools.NAME=5/m. off removes a limit, file gives that of the servers file back."`
	Server  string   `help:"Name of a server: limits of its callers only."`
	Servers string   `default:"servers.json" type:"path" help:"As for show. Limits hold only where the servers file has x-dormouse.limits; {} is enough."`
	keyStore
}

func (c *setQuotasCommand) Run(t *terminal) error {
	file := fileLimits(t, c.Servers)
	change, err := quota.Change(c.Server, c.Change)
	if err != nil {
		return err
	}
	return c.useStore(func(ctx context.Context, store session.Store) error {
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

// instead says which tenant somebody may have meant.
func instead(tenant string, callers []string) string {
	if near := nearest.Of(tenant, callers, 2); near != "" {
		return "Did you mean " + near + "?"
	}
	return "dormouse quotas lists the tenants."
}
