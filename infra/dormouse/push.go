package dormouse

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

type pushCommand struct {
	placed
	printing
	File     string `arg:"" optional:"" default:"servers.json" type:"path" help:"The servers file. By default servers.json in this folder."`
	Withdraw bool   `help:"Go back to the file that was deployed."`
}

// Run pushes the servers file to a stack, and prints its new version.
func (c *pushCommand) Run(t *terminal) error {
	push := api.Push{Name: filepath.Base(c.File), Withdraw: c.Withdraw}
	if !c.Withdraw {
		text, err := serversfile.ReadFile(c.File, serversfile.MaxFile)
		if err != nil {
			return err
		}
		push.Text = string(text)
	}
	return use(context.Background(), c, patience, func(ctx context.Context, to *client) error {
		var pushed api.Pushed
		if err := to.call(ctx, "PUT", "servers", push, &pushed); err != nil {
			return err
		}
		return c.show(t, pushed, func() error {
			_, err := fmt.Fprintf(t.out, "Version %d of the servers file is in the table. Functions take it within 30 seconds.\n", pushed.Version)
			return err
		})
	})
}
