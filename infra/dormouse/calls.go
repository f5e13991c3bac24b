package dormouse

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

type callsCommand struct {
	Server string `arg:"" optional:"" help:"Only calls of this server."`
	Tool   string `placeholder:"NAME" help:"Only calls of this tool."`
	principalFlag
	Failed bool `xor:"bodies" help:"Only calls that failed."`
	Bodies bool `xor:"bodies" help:"Print what the calls said, a line of JSON for each, if their servers keep that for the role of your key."`
	sinceFlag
	mostFlag
	placed
	printing
}

// Run prints the calls that have ended, the newest first.
func (c *callsCommand) Run(t *terminal) error {
	query, err := c.query()
	if err != nil {
		return err
	}
	return use(context.Background(), c, patience, func(ctx context.Context, to *client) error {
		if c.Bodies {
			query.Set("limit", strconv.Itoa(min(cmp.Or(c.Most, 50), mostOnAPage)))
			lines, err := to.stream(ctx, "GET", "bodies?"+query.Encode(), nil)
			if err != nil {
				return err
			}
			defer func() { _ = lines.Close() }() // nothing was written to it
			n, err := io.Copy(t.out, lines)
			if err == nil && n == 0 {
				if err = to.mistyped(ctx, c.Server, 0); err == nil {
					_, err = fmt.Fprintln(t.err, "No call whose arguments and results are kept for your role.")
				}
			}
			return err
		}
		all, err := to.calls(ctx, query, cmp.Or(c.Most, 50))
		if err != nil {
			return err
		}
		if err := to.mistyped(ctx, c.Server, len(all)); err != nil {
			return err
		}
		return c.show(t, all, func() error { return printCalls(t.out, all, t.now()) })
	})
}

func (c *callsCommand) query() (url.Values, error) {
	since, err := daysOf(cmp.Or(c.Since, "24h"))
	if err != nil {
		return nil, err
	}
	query := url.Values{"since": {since.String()}}
	for name, value := range map[string]string{"server": c.Server, "tool": c.Tool, "principal": c.Principal} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if c.Failed {
		query.Set("failed", "true")
	}
	return query, nil
}

// mostOnAPage is the largest number of records in one response of the API.
const mostOnAPage = 1000

// calls returns the newest calls, but no more than atMost.
func (c *client) calls(ctx context.Context, query url.Values, atMost int) ([]api.Call, error) {
	all := []api.Call{}
	for len(all) < atMost {
		query.Set("limit", strconv.Itoa(min(atMost-len(all), mostOnAPage)))
		var page api.Calls
		if err := c.call(ctx, "GET", "calls?"+query.Encode(), nil, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Calls...)
		if page.Next == "" {
			break
		}
		query.Set("after", page.Next)
	}
	return all, nil
}

func printCalls(out io.Writer, all []api.Call, now time.Time) error {
	if len(all) == 0 {
		_, err := fmt.Fprintln(out, "No call.")
		return err
	}
	return table(out, func(say func(string, ...any)) {
		say("ENDED\tWHO\tSERVER\tTOOL\tCLIENT\tTOOK\tOUTCOME\n")
		for _, c := range all {
			outcome := "done"
			switch {
			case c.Failed:
				outcome = clip(c.Reason, 100)
			case c.Refusal != "":
				outcome = refused(c)
			}
			say("%s\t%s\t%s\t%s\t%s\t%s\t%s\n", moment(c.Time, now), cmp.Or(c.Principal, "–"), cmp.Or(c.Server, "–"), cmp.Or(c.Tool, "–"), cmp.Or(c.Client, "–"), took(c.MS), outcome)
		}
	})
}

// refused says why a request was refused, and who sent it.
func refused(c api.Call) string {
	text, sep := "refused: "+clip(cmp.Or(c.Reason, c.Refusal), 100), " ("
	for _, of := range [][2]string{{"tenant ", c.Tenant}, {"key ", c.Key}, {"from ", c.Address}} {
		if of[1] != "" {
			text, sep = text+sep+of[0]+of[1], ", "
		}
	}
	if sep == ", " {
		text += ")"
	}
	return text
}

// moment formats a time in the zone of now.
func moment(t, now time.Time) string { return t.In(now.Location()).Format(time.DateTime) }

// day formats a date in the zone of now.
func day(t, now time.Time) string { return t.In(now.Location()).Format(time.DateOnly) }

func took(ms float64) string {
	if ms < 10_000 {
		return strconv.FormatFloat(ms, 'f', -1, 64) + " ms"
	}
	return strconv.FormatFloat(ms/1000, 'f', 1, 64) + " s"
}
