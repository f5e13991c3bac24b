package dormouse

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/dormouse-mcp/dormouse/infra/local"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

// hangups returns a channel that receives the SIGHUP signals by which users and service managers
// ask for a reload. When a SIGHUP means that this program's terminal was closed, hangups calls
// onClosed.
func hangups(onClosed func()) chan os.Signal {
	signals, reload := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP)
	had := hasTerminal()
	go func() {
		for s := range signals {
			if had && !hasTerminal() {
				onClosed()
				return
			}
			select {
			case reload <- s:
			default: // a signal is waiting already
			}
		}
	}()
	return reload
}

// terms returns a channel that is closed at the first SIGTERM. At the second SIGTERM, it calls
// onSecond.
func terms(onSecond func()) <-chan struct{} {
	signals, first := make(chan os.Signal, 2), make(chan struct{})
	signal.Notify(signals, syscall.SIGTERM)
	go func() {
		<-signals
		close(first)
		<-signals
		onSecond()
	}()
	return first
}

// hasTerminal reports whether this program has a controlling terminal.
func hasTerminal() bool {
	f, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	return f.Close() == nil
}

type reloadCommand struct {
	target
	printing
}

// Run tells dormouse run to read its servers file, and prints what has changed.
func (c *reloadCommand) Run(t *terminal) error {
	return use(context.Background(), c, patience, func(ctx context.Context, to *client) error {
		taken, err := to.reload(ctx, nil)
		if err != nil {
			return err
		}
		err = c.show(t, taken, func() (err error) {
			if taken.Error == "" {
				_, err = fmt.Fprintln(t.out, cmp.Or(taken.Changes, "nothing has changed"))
			}
			return err
		})
		switch {
		case err != nil || taken.Error == "":
			return err
		case c.JSON:
			return failure{code: exitFailed}
		}
		return fmt.Errorf("%s\nwhat was there before is still served", taken.Error)
	})
}

// reload tells dormouse run to read its servers file at once, and to forget the stored answers of
// these servers. nil stands for all servers.
func (c *client) reload(ctx context.Context, servers []string) (taken api.Reloaded, err error) {
	err = c.call(ctx, "POST", "reload", api.Reload{Forget: servers}, &taken)
	return taken, err
}

// takenAtOnce tells the dormouse run of a data folder to read its servers file now, so that the
// next call uses what this command has changed. dormouse run also forgets the stored answers of the
// changed servers. If none is up, takenAtOnce does nothing.
func takenAtOnce(data string, changed []string) error {
	err := use(context.Background(), target{Data: data}, patience, func(ctx context.Context, to *client) error {
		taken, err := to.reload(ctx, append([]string{}, changed...))
		if err == nil && taken.Error != "" {
			err = fmt.Errorf("dormouse run does not take the servers file: %s", taken.Error)
		}
		return err
	})
	if isNotUp(err) {
		return nil
	}
	return err
}

type checkCommand struct {
	File string `arg:"" optional:"" default:"servers.json" type:"path" help:"The servers file. By default servers.json in this folder."`
	served
	printing
}

type checked struct {
	Servers  []string `json:"servers"`  // those that can be served
	Mistakes []remark `json:"mistakes"` // each keeps its server, or the whole file, from being served
	Warnings []remark `json:"warnings"`
}

// remark is a mistake or warning, with its place in the servers file if it has one.
type remark struct {
	File   string `json:"file,omitempty"`
	Line   int    `json:"line,omitempty"`
	Column int    `json:"column,omitempty"`
	Text   string `json:"text"`
}

func (r remark) String() string {
	if r.File == "" {
		return r.Text
	}
	return fmt.Sprintf("%s:%d:%d: %s", r.File, r.Line, r.Column, r.Text)
}

func remarkAt(p serversfile.Position, text string) remark {
	return remark{p.File, p.Line, p.Column, text}
}

// Run prints all mistakes, and fails if there are any.
func (c *checkCommand) Run(t *terminal) error {
	found := check(c.config(t.program, c.File))
	if c.JSON {
		if err := t.printJSON(found); err != nil {
			return err
		}
	} else {
		for _, m := range found.Mistakes {
			_, _ = fmt.Fprintln(t.out, m)
		}
		for _, w := range found.Warnings {
			_, _ = fmt.Fprintf(t.out, "warning: %s\n", w)
		}
		if len(found.Servers) == 0 {
			found.Servers = []string{"no server"}
		}
		_, _ = fmt.Fprintf(t.out, "can be hosted: %s\n", strings.Join(found.Servers, ", "))
	}
	if len(found.Mistakes) > 0 {
		return failure{code: exitFailed}
	}
	return nil
}

// check finds out what dormouse run would do with a servers file.
func check(cfg local.Config) checked {
	found := checked{Servers: []string{}, Mistakes: []remark{}, Warnings: []remark{}}
	c, warnings, mistakes := readServers(cfg)
	for _, w := range warnings {
		found.Warnings = append(found.Warnings, remarkAt(w.Position, w.Text))
	}
	if c != nil {
		found.Servers = enabled(c)
	}
	for _, err := range mistakes {
		if e, ok := errors.AsType[*serversfile.Error](err); ok {
			found.Mistakes = append(found.Mistakes, remarkAt(e.Position, e.Reason))
		} else {
			found.Mistakes = append(found.Mistakes, remark{Text: err.Error()})
		}
	}
	return found
}

// readServers reads a servers file as dormouse run does. The mistakes are those of the whole file
// and of single servers. The result c is nil if dormouse run would not start.
func readServers(cfg local.Config) (c *serversfile.File, warnings []serversfile.Warning, mistakes []error) {
	read := local.Check(cfg)
	switch joined, ok := read.Wrong.(interface{ Unwrap() []error }); {
	case ok:
		return nil, read.Warnings, joined.Unwrap()
	case read.Wrong != nil:
		return nil, read.Warnings, []error{read.Wrong}
	}
	for _, rejected := range read.Servers.Rejected() {
		for _, e := range rejected.Errors {
			mistakes = append(mistakes, e)
		}
	}
	return read.Servers, read.Warnings, mistakes
}
