package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local"
	"github.com/dormouse-mcp/dormouse/infra/local/bill"
	"github.com/dormouse-mcp/dormouse/shared/meter"
)

type billCommand struct {
	Data   string `default:".dormouse" type:"path" help:"Folder that dormouse run was given."`
	By     string `enum:"server,tenant,session" default:"server" help:"Whom to list: server, tenant or session."`
	Most   int    `default:"20" help:"List no more than so many, the dearest."`
	Prices string `type:"path" help:"Prices in the place of the published ones: a JSON file with a date, in the form of shared/meter/prices.json."`
	JSON   bool   `help:"Print one JSON object."`
}

// account is the JSON output of bill.
type account struct {
	Since   time.Time      `json:"since"`
	Until   time.Time      `json:"until"`
	Prices  string         `json:"prices"` // the date of the prices
	Region  string         `json:"region"`
	USD     float64        `json:"usd"`
	Charges []meter.Charge `json:"charges"`
	By      string         `json:"by"`
	Owners  []ownerCost    `json:"owners"` // the dearest first
}

// ownerCost is the cost of one server, tenant or session. Name is "" for costs
// without an owner.
type ownerCost struct {
	Name   string      `json:"name"`
	Server string      `json:"server,omitempty"` // of a session
	Tenant string      `json:"tenant,omitempty"` // of a session
	USD    float64     `json:"usd"`
	Boxes  float64     `json:"boxes_usd"` // of that, the time of boxes
	Units  meter.Units `json:"units"`
}

// Run prints what AWS would have billed for all work in this data folder.
func (c *billCommand) Run(t *terminal) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	prices := meter.Published()
	if c.Prices != "" {
		text, err := os.ReadFile(c.Prices)
		if err != nil {
			return err
		}
		if prices, err = prices.With(text); err != nil {
			return fmt.Errorf("%s: %w", c.Prices, err)
		}
	}
	b, err := local.ReadBill(ctx, c.Data)
	if err != nil {
		return err
	}
	if b.Since.IsZero() {
		return fmt.Errorf("nothing was counted in %s: name the folder that dormouse run was given with --data", c.Data)
	}
	a := accountOf(b, prices, c.By)
	if c.JSON {
		return t.printJSON(a)
	}
	return a.print(t.out, c.Most)
}

func accountOf(b bill.Bill, prices meter.Prices, by string) account {
	a := account{
		Since: b.Since.UTC(), Until: b.Until.UTC(), Prices: prices.Date, Region: prices.Region,
		USD: prices.Cost(b.Total()), Charges: prices.Bill(b.Total()), By: by,
	}
	all := map[bill.Owner]meter.Units{}
	for _, s := range b.Shares {
		o := s.Owner
		switch by {
		case "server":
			o.Tenant, o.Session = "", ""
		case "tenant":
			o.Server, o.Session = "", ""
		}
		all[o] = all[o].Plus(s.Units)
	}
	for o, u := range all {
		a.Owners = append(a.Owners, costOf(o, u, prices, by))
	}
	slices.SortFunc(a.Owners, func(x, y ownerCost) int {
		return cmp.Or(cmp.Compare(y.USD, x.USD), cmp.Compare(x.Name+x.Server, y.Name+y.Server))
	})
	return a
}

func costOf(o bill.Owner, u meter.Units, prices meter.Prices, by string) ownerCost {
	c := ownerCost{USD: prices.Cost(u), Units: u}
	c.Boxes = c.USD - prices.Cost(u.WithoutTasks())
	switch by {
	case "server":
		c.Name = o.Server
	case "tenant":
		c.Name = o.Tenant
	default:
		c.Name, c.Server, c.Tenant = o.Session, o.Server, o.Tenant
	}
	return c
}

func (a account) print(out io.Writer, most int) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }
	say("What AWS would have billed from %s to %s, at the prices of %s (%s).\n\n", a.Since.Format(time.DateTime), a.Until.Format(time.DateTime), a.Prices, a.Region)
	say("WHAT\tCOUNT\tUSD\n")
	for _, c := range a.Charges {
		say("%s\t%.6g\t%.6f\n", c.What, c.Count, c.USD)
	}
	say("together\t\t%.6f\n\n", a.USD)
	if a.By == "session" {
		say("SESSION\tSERVER\tTENANT\tINVOCATIONS\tMESSAGES\tREADS\tWRITES\tBOXES USD\tUSD\n")
	} else {
		say("%s\tINVOCATIONS\tMESSAGES\tREADS\tWRITES\tBOXES USD\tUSD\n", map[string]string{"server": "SERVER", "tenant": "TENANT"}[a.By])
	}
	rest := a.USD
	for i, o := range a.Owners {
		if i >= most {
			say("%d more\n", len(a.Owners)-i)
			break
		}
		name := cmp.Or(o.Name, "–")
		if a.By == "session" {
			name = short(name) + "\t" + cmp.Or(o.Server, "–") + "\t" + cmp.Or(o.Tenant, "–")
		}
		u := o.Units
		say("%s\t%.0f\t%.0f\t%.0f\t%.0f\t%.6f\t%.6f\n", name, u.Invocations, u.Messages, u.ReadUnits, u.WriteUnits, o.Boxes, o.USD)
	}
	for _, o := range a.Owners {
		rest -= o.USD
	}
	say("\nNot in these: %.6f, for starts of functions and open connections.\n", max(0, rest))
	return w.Flush()
}
