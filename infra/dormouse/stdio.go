package dormouse

import (
	"os"
	"path/filepath"

	"github.com/dormouse-mcp/dormouse/infra/dormouse/pipe"
)

type stdioCommand struct {
	URL      string `arg:"" name:"url" help:"The endpoint, such as https://mcp.example.com/github/mcp."`
	Key      string `env:"DORMOUSE_KEY" placeholder:"KEY" help:"API key of the endpoint, sent as a bearer token. Without one you sign in with your browser if the endpoint asks for that. Other users of this machine see a key of the command line in ps; set DORMOUSE_KEY instead."`
	ClientID string `name:"client-id" placeholder:"ID" help:"Sign in as this OAuth client, or as that of the metadata document at an https URL, instead of registering one."`
}

// Run passes messages between stdin, stdout and the endpoint.
func (c *stdioCommand) Run(t *terminal) error {
	ctx, stop := interruptible()
	defer stop()
	folder, err := os.UserConfigDir()
	if err != nil {
		return err
	}
	return pipe.Run(ctx, pipe.Config{
		URL: c.URL, Key: c.Key, ClientID: c.ClientID, Tokens: filepath.Join(folder, "dormouse", "tokens"), Browse: browse,
		In: t.in, Out: raw(t.out), Log: t.err,
	})
}
