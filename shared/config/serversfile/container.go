package serversfile

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// Container is a server that the file starts by "docker run". On one machine Docker runs it.
// On AWS there is no Docker, and the box is the container.
type Container struct {
	Image      string
	User       string // "" for that of the image
	Entrypoint string // "" for that of the image, with its command if Args is empty
	Args       []string
	Env        map[string]string // added to that of the image
	Cwd        string            // "" for that of the image
}

// Container reads the command line of "docker run" and its like. ok is false for any other
// command. The setting box.image takes the place of the image: a copy of it, for example. The
// error names an option that a box cannot follow.
func (s Server) Container() (c Container, ok bool, err error) {
	if !slices.Contains(engines(), filepath.Base(s.Command)) || len(s.Args) == 0 || s.Args[0] != "run" {
		return c, false, nil
	}
	args := s.Args[1:]
	c.Env = map[string]string{}
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		word := args[0]
		args = args[1:]
		if word == "--" {
			break
		}
		name, value, joined := strings.Cut(word, "=")
		if !strings.HasPrefix(word, "--") && len(word) > 2 { // -eNAME=VALUE
			name, value, joined = word[:2], strings.TrimPrefix(word[2:], "="), true
		}
		switch name {
		case "-i", "--interactive", "--rm", "--init":
			if joined && value != "true" {
				return c, true, fmt.Errorf("docker run %s: a box on AWS cannot do without it", word)
			}
			continue
		case "-e", "--env", "-w", "--workdir", "-u", "--user", "--entrypoint", "--name", "--pull", "--platform", "-l", "--label":
		default:
			return c, true, fmt.Errorf("docker run %s: a box on AWS has no such option: leave it out, or let the server run on a machine with Docker", name)
		}
		if !joined {
			if len(args) == 0 {
				return c, true, fmt.Errorf("docker run %s: its value is missing", name)
			}
			value, args = args[0], args[1:]
		}
		switch name {
		case "-e", "--env":
			variable, set, given := strings.Cut(value, "=")
			if !given {
				set, given = s.Env[variable]
			}
			if given {
				c.Env[variable] = set
			}
		case "-w", "--workdir":
			c.Cwd = value
		case "-u", "--user":
			c.User = value
		case "--entrypoint":
			c.Entrypoint = value
		}
	}
	if len(args) == 0 {
		return c, true, fmt.Errorf("docker run: the name of the image is missing")
	}
	c.Image, c.Args = cmp.Or(s.Box.Image, args[0]), args[1:]
	return c, true, nil
}

func engines() []string { return []string{"docker", "podman", "nerdctl"} }
