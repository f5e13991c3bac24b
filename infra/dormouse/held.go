package dormouse

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/config/held"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

type acceptCommand struct {
	Server string   `arg:"" help:"Name of a server."`
	Tools  []string `arg:"" optional:"" name:"tool" help:"Names of tools. Without one, all that are held back."`
	target
	printing
}

// Run accepts tools that are held back from clients, and prints how they differ from the ones
// accepted before.
func (c *acceptCommand) Run(t *terminal) error {
	return use(context.Background(), c, patience, func(ctx context.Context, to *client) error {
		taken, err := to.accept(ctx, c.Server, c.Tools)
		if err != nil {
			return err
		}
		return c.show(t, taken, func() error {
			if len(taken.Tools) == 0 {
				_, err := fmt.Fprintf(t.err, "No tool of %s is held back.\n", c.Server)
				return err
			}
			if err := printHeld(t.out, taken.Tools); err != nil {
				return err
			}
			_, err := fmt.Fprintf(t.out, "%s: accepted %s\n", c.Server, count(len(taken.Tools), "tool"))
			return err
		})
	})
}

// accept accepts tools of a server that the endpoint holds back from clients: the named ones, or
// all.
func (c *client) accept(ctx context.Context, server string, tools []string) (taken api.Accepted, err error) {
	state, err := c.held(ctx, server)
	if err != nil {
		return taken, err
	}
	order := api.Accept{Tools: map[string]string{}}
	var names []string
	for _, tool := range state.Held {
		names = append(names, tool.Name)
		order.Tools[tool.Name] = tool.Hash
	}
	if len(tools) > 0 {
		of := order.Tools
		order.Tools = map[string]string{}
		for _, name := range tools {
			if of[name] == "" {
				return taken, unknown("held tool", name, names)
			}
			order.Tools[name] = of[name]
		}
	}
	if len(order.Tools) > 0 {
		err = c.call(ctx, http.MethodPost, "servers/"+server+"/accept", order, &taken)
	}
	return taken, err
}

func (c *client) held(ctx context.Context, server string) (state held.Server, err error) {
	return state, c.call(ctx, http.MethodGet, "servers/"+server+"/held", nil, &state)
}

// printHeldOf lists, for each server, the tools that are held back until the user accepts them,
// and the command that accepts them.
func printHeldOf(ctx context.Context, out io.Writer, to *client, all []api.Server) error {
	for _, s := range all {
		if s.Held == 0 {
			continue
		}
		state, err := to.held(ctx, s.Name)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(out, "\n%s: %s held back; take with: dormouse accept %s\n", s.Name, count(len(state.Held), "tool"), s.Name); err != nil {
			return err
		}
		if err := printHeld(out, state.Held); err != nil {
			return err
		}
	}
	return nil
}

func printHeld(out io.Writer, tools []held.Tool) error {
	for _, tool := range tools {
		if _, err := fmt.Fprintf(out, "  %s\n", strings.Join(tool.Lines(), "\n  ")); err != nil {
			return err
		}
	}
	return nil
}
