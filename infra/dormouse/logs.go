package dormouse

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

type logsCommand struct {
	Of     string `arg:"" optional:"" name:"server|session" help:"Name of a server, or the beginning of a session's id. By default all servers."`
	Follow bool   `short:"f" help:"Go on with new output until Ctrl-C."`
	Lines  int    `short:"n" help:"Only the last lines; with --follow, first those of each process."`
	sinceFlag
	placed
	printing
}

// Run prints what processes have written to stderr, even if they and dormouse run have ended.
// Values of secret variables are hidden.
func (c *logsCommand) Run(t *terminal) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	query, err := c.query()
	if err != nil {
		return err
	}
	said, none := false, error(nil)
	err = use(ctx, c, 0, func(ctx context.Context, to *client) error {
		body, err := to.stream(ctx, "GET", "logs?"+query.Encode(), nil)
		if err != nil {
			return err
		}
		defer func() { _ = body.Close() }()
		if said, err = c.print(t, json.NewDecoder(body)); errors.Is(err, io.EOF) && !said {
			none = c.none(ctx, to)
		}
		return err
	})
	switch {
	case ctx.Err() != nil || errors.Is(err, io.EOF) && said:
		return nil
	case !errors.Is(err, io.EOF):
		return err
	default:
		return none
	}
}

// none returns the error if there is no output, with the reason as far as it is known.
func (c *logsCommand) none(ctx context.Context, to *client) error {
	if c.Of == "" {
		return errors.New("no output is kept: no server has run lately, or it ran with another --data folder")
	}
	all, err := to.servers(ctx)
	if err != nil { // dormouse run is not up, so the names of servers are not known
		return fmt.Errorf("no output of a server or session %s is kept: it has not run lately, or it ran with another --data folder", c.Of)
	}
	var names []string
	for _, s := range all {
		switch names = append(names, s.Name); {
		case s.Name != c.Of:
		case s.Why != "" && s.Path == "":
			return fmt.Errorf("%s has no output: it is %s: %s", s.Name, s.State, s.Why)
		case s.State == api.Remote:
			return fmt.Errorf("%s has no output here: it is a remote server. dormouse calls %s shows its calls, and dormouse doctor %s whether it answers", s.Name, s.Name, s.Name)
		default:
			return fmt.Errorf("%s has no output: it has not run lately, or is in Go: then what it prints is in the output of dormouse run", s.Name)
		}
	}
	return fmt.Errorf("no output of a session %s is kept, and there is %w", c.Of, unknown("server", c.Of, names))
}

func (c *logsCommand) query() (url.Values, error) {
	query := url.Values{"of": {c.Of}}
	if c.Lines > 0 {
		query.Set("lines", strconv.Itoa(c.Lines))
	}
	if c.Since != "" {
		since, err := daysOf(c.Since)
		if err != nil {
			return nil, err
		}
		query.Set("since", since.String())
	}
	if c.Follow {
		query.Set("follow", "true")
	}
	return query, nil
}

// print prints output until there is no more. The result said is true if there was any. If the user
// has named a server or a session, it prints a title before the output of each process. Otherwise
// each line begins with the name of its server.
func (c *logsCommand) print(t *terminal, from *json.Decoder) (said bool, err error) {
	last, out, zone := "", colored(t.out), t.now().Location()
	next := func() (o api.Output, err error) { return o, from.Decode(&o) }
	if c.Lines > 0 && !c.Follow {
		next = lastOf(next, c.Lines)
	}
	for {
		o, err := next()
		if err != nil {
			return said, err
		}
		said = true
		if !c.JSON {
			o.Text = noted.ReplaceAllStringFunc(o.Text, func(note string) string {
				at, err := time.Parse(time.RFC3339Nano, strings.TrimPrefix(note, "--- "))
				if err != nil {
					return note
				}
				return "--- " + at.In(zone).Format(time.DateTime)
			})
		}
		switch {
		case c.JSON:
			err = printJSON(t.out, o, "")
		case c.Of == "":
			for line := range strings.Lines(o.Text) {
				_, err = fmt.Fprintf(out, "%s  %s", o.Server, line)
			}
		default:
			if name := o.Process + o.Began.String(); name != last {
				last = name
				o.Text = fmt.Sprintf("==> %s, %s\n", o.Server, whose(o.Process)) + o.Text
			}
			_, err = io.WriteString(out, o.Text)
		}
		if err != nil {
			return said, err
		}
	}
}

// noted matches the time in a line that dormouse has added to the output of a process. The time is
// in UTC.
var noted = regexp.MustCompile(`(?m)^--- \d{4}-\d\d-\d\dT[\d:.]+Z`)

// lastOf reads all outputs from next. The function that it returns is like next, for the last lines
// only.
func lastOf(next func() (api.Output, error), lines int) func() (api.Output, error) {
	var all []api.Output
	o, end := next()
	for ; end == nil; o, end = next() {
		all = append(all, o)
	}
	first := len(all)
	for ; first > 0 && lines > 0; first-- {
		each := strings.SplitAfter(strings.TrimSuffix(all[first-1].Text, "\n"), "\n")
		each = each[max(0, len(each)-lines):]
		all[first-1].Text, lines = strings.Join(each, "")+"\n", lines-len(each)
	}
	all = all[first:]
	return func() (o api.Output, err error) {
		if len(all) == 0 {
			return o, end
		}
		o, all = all[0], all[1:]
		return o, nil
	}
}

// whose returns the title of a process for the user. It names the process if several sessions share
// the process, and the session if not.
func whose(process string) string {
	if process == "shared" || strings.HasPrefix(process, "principal-") {
		return "process " + process
	}
	return "session " + process
}
