package dormouse

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/operate/api"
	"github.com/dormouse-mcp/dormouse/shared/store/meter"
)

type billCommand struct {
	By string `enum:"server,tenant,principal,tool,session,day" default:"server" help:"The rows: one for each server, tenant, principal, tool, session or day."`
	sinceFlag
	mostFlag
	target
	printing
}

// account is the JSON output of dormouse bill.
type account struct {
	Since   time.Time      `json:"since"`
	Until   time.Time      `json:"until"`
	Prices  string         `json:"prices"` // date of the prices
	Region  string         `json:"region"`
	USD     float64        `json:"usd"`
	Charges []meter.Charge `json:"charges"`
	By      string         `json:"by"`
	Owners  []ownerCost    `json:"owners"` // the largest cost first; by day, the newest first
}

// ownerCost is the cost of one server, tenant, principal, tool, session or day. Name is "" for
// costs that belong to none.
type ownerCost struct {
	Name   string      `json:"name"`
	Server string      `json:"server,omitempty"` // server of a session or tool
	Tenant string      `json:"tenant,omitempty"` // tenant of a session
	USD    float64     `json:"usd"`
	Boxes  float64     `json:"boxes_usd"` // part of USD for the time in which boxes (sandboxes of servers) ran
	Units  meter.Units `json:"units"`
}

// Run prints what AWS would have billed for all work in the data folder.
func (c *billCommand) Run(t *terminal) error {
	b, err := c.read()
	if err != nil {
		return err
	}
	if b.Since.IsZero() {
		return fmt.Errorf("no use was counted in %s; name the data folder of dormouse run with --data", c.folder())
	}
	a := accountOf(b, meter.Published(), c.By)
	most, shown := cmp.Or(c.Most, 20), a
	shown.Owners = a.Owners[:min(most, len(a.Owners))]
	return c.show(t, shown, func() error { return a.print(t.out, most) })
}

// read gets the bill since the time of --since. Without --since it gets the whole bill; with
// --by day or --by tool, it gets only the last 90 days.
func (c *billCommand) read() (b api.Bill, err error) {
	query := ""
	if c.Since != "" || c.By == "day" || c.By == "tool" {
		d, err := daysOf(cmp.Or(c.Since, "90d"))
		if err != nil {
			return b, err
		}
		query = "?since=" + d.String()
	}
	err = use(context.Background(), placed{target: c.target}, patience, func(ctx context.Context, to *client) error {
		return to.call(ctx, "GET", "bill"+query, nil, &b)
	})
	return b, err
}

// daysOf parses a duration such as 12h or 30d.
func daysOf(text string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.Atoi(days); err == nil && n > 0 {
			return time.Duration(n) * 24 * time.Hour, nil
		}
	}
	if d, err := time.ParseDuration(text); err == nil && d > 0 {
		return d, nil
	}
	return 0, failure{exitUsage, fmt.Errorf("--since is %q; want a time such as 12h or 30d", text)}
}

// Validate is called by kong.
func (c *billCommand) Validate() error {
	if c.By == "session" && c.Since != "" {
		return errors.New("the use of a session is not counted by day; leave out --since, or use another --by")
	}
	return nil
}

func total(b api.Bill) (u meter.Units) {
	for _, s := range b.Shares {
		u = u.Plus(s.Units)
	}
	return u
}

func accountOf(b api.Bill, prices meter.Prices, by string) account {
	a := account{
		Since: b.Since.UTC(), Until: b.Until.UTC(), Prices: prices.Date, Region: prices.Region,
		USD: prices.Cost(total(b)), Charges: prices.Bill(total(b)), By: by,
	}
	all := map[ownerCost]meter.Units{}
	for _, s := range b.Shares {
		var o ownerCost
		switch by {
		case "server":
			o.Name = s.Server
		case "tenant":
			o.Name = s.Tenant
		case "principal":
			o.Name = s.Principal
		case "tool":
			if o.Name = s.Tool; s.Tool != "" {
				o.Server = s.Server
			}
		case "day":
			o.Name = s.Day
		default:
			o.Name, o.Server, o.Tenant = s.Session, s.Server, s.Tenant
		}
		all[o] = all[o].Plus(s.Units)
	}
	for o, u := range all {
		o.USD, o.Units = prices.Cost(u), u
		o.Boxes = o.USD - prices.Cost(u.WithoutTasks())
		a.Owners = append(a.Owners, o)
	}
	slices.SortFunc(a.Owners, func(x, y ownerCost) int {
		if by == "day" {
			return cmp.Compare(y.Name, x.Name)
		}
		return cmp.Or(cmp.Compare(y.USD, x.USD), cmp.Compare(x.Name+x.Server, y.Name+y.Server))
	})
	return a
}

func (a account) print(out io.Writer, most int) error {
	return table(out, func(say func(string, ...any)) {
		say("What AWS would have billed from %s to %s UTC, at the prices of %s (%s).\n\n", a.Since.Format(time.DateTime), a.Until.Format(time.DateTime), a.Prices, a.Region)
		say("WHAT\tCOUNT\tUSD\n")
		for _, c := range a.Charges {
			say("%s\t%.6g\t%.6f\n", c.What, c.Count, c.USD)
		}
		say("total\t\t%.6f\n\n", a.USD)
		rest := a.USD
		for _, o := range a.Owners {
			rest -= o.USD
		}
		a.printOwners(say, most)
		say("\nNot in these rows: %.6f, for starts of functions and open connections.\n", max(0, rest))
	})
}

func (a account) printOwners(say func(string, ...any), most int) {
	switch a.By {
	case "session":
		say("SESSION\tSERVER\tTENANT\tINVOCATIONS\tMESSAGES\tREADS\tWRITES\tBOXES USD\tUSD\n")
	case "tool":
		say("TOOL\tSERVER\tINVOCATIONS\tMESSAGES\tREADS\tWRITES\tBOXES USD\tUSD\n")
	default:
		say("%s\tINVOCATIONS\tMESSAGES\tREADS\tWRITES\tBOXES USD\tUSD\n", strings.ToUpper(a.By))
	}
	for i, o := range a.Owners {
		if i >= most {
			say("%d more\n", len(a.Owners)-i)
			break
		}
		cells := []any{cmp.Or(o.Name, "–")}
		switch a.By {
		case "session":
			cells = []any{short(cmp.Or(o.Name, "–")), cmp.Or(o.Server, "–"), cmp.Or(o.Tenant, "–")}
		case "tool":
			cells = append(cells, cmp.Or(o.Server, "–"))
		}
		names, u := strings.Repeat("%s\t", len(cells)), o.Units
		say(names+"%.0f\t%.0f\t%.0f\t%.0f\t%.6f\t%.6f\n", append(cells, u.Invocations, u.Messages, u.ReadUnits, u.WriteUnits, o.Boxes, o.USD)...)
	}
}
