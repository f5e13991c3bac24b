// Command deploy creates or updates the stack of template.yaml on AWS, deletes it,
// restores its table, and follows its logs, for make deploy, make delete, make restore and
// make logs. To deploy, it checks what would fail, builds, and runs sam deploy at the
// user's terminal. It pushes the image of the boxes under a tag that never stands for another
// image, and prints the next steps. make doctor only makes the checks, with rights to read.
//
// It calls the commands aws, sam and make, which use their usual region and credentials.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/term"
)

// command is a program to run. With Show the user sees its output and, at a terminal, answers
// its questions; otherwise the output is returned.
type command struct {
	Name  string
	Args  []string
	Stdin string
	Show  bool
}

type program struct {
	do     func(context.Context, command) (string, error)
	out    io.Writer
	in     io.Reader // where a user answers; nil without a terminal
	config settings
	arch   string            // the architecture that the user has chosen, "" for the stack's
	sam    string            // the sam command, a name or a path
	given  map[string]string // parameters of the template that the user has given
	native string            // the folder of the program with servers in Go, "" for none
	force  bool              // deploy although the doctor says that it would fail
	purge  bool              // delete the table and the bucket too
	yes    bool              // do not ask the user for confirmation
}

func main() {
	p := program{do: execute, out: os.Stdout}
	if term.IsTerminal(int(os.Stdin.Fd())) { //nolint:gosec // a descriptor is small
		p.in = os.Stdin
	}
	section := flag.String("config", "default", "section of samconfig.toml")
	flag.StringVar(&p.arch, "arch", "", "processor of functions and boxes: arm64 or x86_64; without it what the stack has, arm64 for a new one")
	flag.StringVar(&p.sam, "sam", "sam", "the sam command")
	flag.StringVar(&p.native, "go-servers", "", "folder of the program with servers in Go")
	flag.BoolVar(&p.force, "force", false, "deploy although the doctor says that it would fail")
	flag.BoolVar(&p.purge, "purge", false, "down: delete table and bucket too, with all sessions")
	flag.BoolVar(&p.yes, "yes", false, "ask for no confirmation")
	flag.Parse()
	if err := p.run(context.Background(), *section, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "deploy:", err)
		os.Exit(1)
	}
}

func (p *program) run(ctx context.Context, section string, args []string) error {
	if len(args) == 0 {
		return errors.New("want up, doctor or down, then NAME=VALUE for parameters of template.yaml; or restore, then AT=TIME; or boxes, or logs")
	}
	text, err := os.ReadFile("samconfig.toml")
	if err != nil {
		return err
	}
	if p.config, err = readSettings(string(text), section); err != nil {
		return fmt.Errorf("samconfig.toml: %w", err)
	}
	if region := p.config.region; region != "" { // for the aws command; sam reads samconfig.toml itself
		if err := errors.Join(os.Setenv("AWS_REGION", region), os.Setenv("AWS_DEFAULT_REGION", region)); err != nil {
			return err
		}
	}
	if p.given, err = overrides(strings.Join(args[1:], " ")); err != nil {
		return err
	}
	switch args[0] {
	case "up":
		return p.up(ctx)
	case "down":
		return p.down(ctx)
	case "restore":
		return p.restore(ctx, p.given["AT"])
	case "doctor":
		s, err := p.current(ctx)
		if err == nil {
			_, err = p.doctor(ctx, s)
		}
		if err == nil {
			p.say("nothing was found that would fail")
		}
		return err
	case "boxes":
		return p.boxes(ctx)
	case "logs":
		return p.logs(ctx)
	}
	return fmt.Errorf("%q is neither up, doctor, boxes, down, restore nor logs", args[0])
}

// aws runs the aws command and returns its output without white space at the ends.
func (p *program) aws(ctx context.Context, args ...string) (string, error) {
	out, err := p.do(ctx, command{Name: "aws", Args: args})
	return strings.TrimSpace(out), err
}

func (p *program) say(format string, args ...any) { _, _ = fmt.Fprintf(p.out, format+"\n", args...) }

// execute runs a command. Its error includes the command's stderr, unless the user has seen it.
func execute(ctx context.Context, c command) (string, error) {
	cmd := exec.CommandContext(ctx, c.Name, c.Args...)
	var out, said bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(c.Stdin), &out, &said
	if c.Show {
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if c.Stdin == "" {
			cmd.Stdin = os.Stdin
		}
	}
	err := cmd.Run()
	if errors.Is(err, exec.ErrNotFound) {
		return "", fmt.Errorf("the command %s is not on the PATH: install it (https://aws.amazon.com/cli for aws)", c.Name)
	}
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", c.Name, strings.Join(c.Args[:min(2, len(c.Args))], " "), err, strings.TrimSpace(said.String()))
	}
	return out.String(), nil
}
