package dormouse

import (
	"errors"
	"fmt"
	"os"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
)

type envCommand struct {
	Set envSetCommand `cmd:"" help:"Set a variable in .env, beside the servers file."`
}

type envSetCommand struct {
	Name  string  `arg:"" help:"Name of the variable."`
	Value *string `arg:"" optional:"" help:"Its value. Without it, the value is asked for, or read from standard input: so it is in no history of a shell."`
	dataFlag
	fileFlag
}

// Run sets the variable. If dormouse run is up, it uses the new value at once.
func (c *envSetCommand) Run(t *terminal) error {
	value, err := c.value(t)
	if err != nil {
		return err
	}
	env, err := openVariables(c.Servers)
	if err != nil {
		return err
	}
	if err := env.Set(c.Name, value); err != nil {
		return err
	}
	if err := env.save(); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(t.out, "%s is set in .env, which only you can read\n", c.Name); err != nil {
		return err
	}
	if now, ok := os.LookupEnv(c.Name); ok && now != value {
		_, _ = fmt.Fprintf(t.err, "the environment of this shell has another value of %s, which wins in a dormouse run that has it\n", c.Name)
	}
	return takenAtOnce(c.Data, nil)
}

func (c *envSetCommand) value(t *terminal) (string, error) {
	switch {
	case !serversfile.IsVariable(c.Name):
		return "", errors.New("a variable has a name of letters, digits and _: dormouse env set NAME")
	case c.Value != nil:
		return *c.Value, nil
	}
	return t.secret(c.Name+": ", serversfile.MaxFile)
}
