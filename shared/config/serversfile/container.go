package serversfile

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Container says how to run a server in a container. On one machine a container engine runs it, or
// dormouse-keeper; see [Server.Sealable]. On AWS the box is the container.
type Container struct {
	Image      string
	User       string // "" for that of the image
	Entrypoint string // "" for that of the image, with its command if Args is empty
	Args       []string
	Env        map[string]string // added to the variables of the image
	Cwd        string            // "" for that of the image

	// Only [Server.Sealable] sets the fields below.

	EnvFiles []string // files of variables; Env replaces their values
	Folders  []string // absolute paths as "HOST:PATH", "HOST:PATH:ro", or "HOST:PATH:fixed" for a folder that does not change
	Tmpfs    []string // absolute paths
	Stable   []string // "NAME:DIGEST" of what the fixed folders contain
	Always   bool     // dormouse-keeper asks the registry for the image at each start
	Offline  bool
	ReadOnly bool
	MemoryMB int // 0 for no limit
	CPUs     int // how many processors, 0 for all
	Pids     int // 0 for no limit
	Platform string
}

// Container reads the command line of "docker run", or of a similar command, for a box on AWS. ok
// is false for any other command. The setting box.image replaces the image. The error names an
// option that boxes do not support.
func (s Server) Container() (c Container, ok bool, err error) {
	c, here, ok, err := s.container()
	if err == nil && here != "" {
		err = fmt.Errorf("docker run %s: a box on AWS has no such option: leave it out, or let the server run on a machine with Docker", here)
	}
	return c, ok, err
}

// Sealable returns the container that dormouse-keeper starts in place of the server.
// dormouse-keeper also follows options that a box on AWS cannot. ok is false for a server without
// an image.
func (s Server) Sealable() (c Container, ok bool, err error) {
	if c, _, ok, err = s.container(); ok || !s.Box.Sealed || s.Box.Image == "" {
		return c, ok, err
	}
	return Container{Image: s.Box.Image, Entrypoint: s.Command, Args: s.Args, Env: s.Env}, true, nil
}

// container is like Container, but also returns the first option that a box on AWS does not
// support, "" for none.
func (s Server) container() (c Container, here string, ok bool, err error) {
	if !slices.Contains(engines(), filepath.Base(s.Command)) || len(s.Args) == 0 || s.Args[0] != "run" {
		return c, "", false, nil
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
			if name == "-i" && value == "t" {
				return c, "", true, fmt.Errorf("docker run %s: a server has no terminal: write -i", word)
			}
			if joined && value != "true" {
				return c, "", true, fmt.Errorf("docker run %s: a box cannot do without it", word)
			}
			continue
		case "--read-only":
			c.ReadOnly, here = !joined || value == "true", cmp.Or(here, name)
			continue
		}
		take, known := c.options(s)[name]
		if !known {
			return c, "", true, fmt.Errorf("docker run %s: a box has no such option: leave it out, or let the server run on a machine with Docker", name)
		}
		if !joined {
			if len(args) == 0 {
				return c, "", true, fmt.Errorf("docker run %s: its value is missing", name)
			}
			value, args = args[0], args[1:]
		}
		if !take.aws {
			here = cmp.Or(here, name)
		}
		if !take.read(value) {
			return c, "", true, fmt.Errorf("docker run %s %s: a box has no such value: leave it out, or let the server run on a machine with Docker", name, value)
		}
	}
	if len(args) == 0 {
		return c, "", true, fmt.Errorf("docker run: the name of the image is missing")
	}
	c.Image, c.Args = cmp.Or(s.Box.Image, args[0]), args[1:]
	return c, here, true, nil
}

// option is an option of "docker run" that has a value.
type option struct {
	read func(value string) bool // stores the value; false if boxes do not support it
	aws  bool                    // boxes on AWS support it, too
}

func (c *Container) options(s Server) map[string]option {
	text := func(field *string) option {
		return option{func(v string) bool { *field = v; return true }, true}
	}
	nothing := text(new(string))
	env := option{func(v string) bool {
		variable, set, given := strings.Cut(v, "=")
		if !given {
			set, given = s.Env[variable]
		}
		if given {
			c.Env[variable] = set
		}
		return true
	}, true}
	folder := option{read: c.folder}
	memory := option{read: func(v string) bool { return megabytes(v, &c.MemoryMB) }}
	network := option{read: func(v string) bool {
		c.Offline = v == "none"
		return slices.Contains([]string{"none", "bridge", "default"}, v)
	}}
	return map[string]option{
		"-e": env, "--env": env, "-w": text(&c.Cwd), "--workdir": text(&c.Cwd), "-u": text(&c.User), "--user": text(&c.User), "--entrypoint": text(&c.Entrypoint),
		"--name": nothing, "-l": nothing, "--label": nothing, "--platform": text(&c.Platform),
		"--pull": {func(v string) bool { c.Always = v == "always"; return true }, true},
		"-v":     folder, "--volume": folder, "--mount": {read: c.mount}, "-m": memory, "--memory": memory, "--network": network, "--net": network,
		"--env-file": {read: func(v string) bool { c.EnvFiles = append(c.EnvFiles, v); return true }},
		"--tmpfs": {read: func(v string) bool {
			at, _, _ := strings.Cut(v, ":")
			c.Tmpfs = append(c.Tmpfs, at)
			return filepath.IsAbs(at)
		}},
		"--cpus": {read: func(v string) bool {
			n, err := strconv.ParseFloat(v, 64)
			c.CPUs = int(math.Ceil(n))
			return err == nil && n > 0 && n <= 1024
		}},
		"--pids-limit": {read: func(v string) bool {
			n, err := strconv.Atoi(v)
			c.Pids = max(n, 0)
			return err == nil
		}},
	}
}

// folder adds the folder that a value of -v mounts. It returns false for a named volume, and for other
// options than ro, rw, z and Z.
func (c *Container) folder(value string) bool {
	host, path, _ := strings.Cut(value, ":")
	path, mode, _ := strings.Cut(path, ":")
	switch mode {
	case "", "rw", "z", "Z":
		mode = ""
	case "ro", "ro,z", "ro,Z":
		mode = ":ro"
	default:
		return false
	}
	c.Folders = append(c.Folders, host+":"+path+mode)
	return filepath.IsAbs(host) && filepath.IsAbs(path)
}

func (c *Container) mount(value string) bool {
	words, err := csv.NewReader(strings.NewReader(value)).Read()
	if err != nil {
		return false
	}
	kind, host, path, mode := "volume", "", "", ""
	for _, word := range words {
		name, v, set := strings.Cut(word, "=")
		switch name {
		case "type":
			kind = v
		case "src", "source":
			host = v
		case "dst", "destination", "target":
			path = v
		case "ro", "readonly":
			if !set || v == "true" || v == "1" {
				mode = ":ro"
			}
		default:
			return false
		}
	}
	return kind == "bind" && !strings.Contains(host+path, ":") && c.folder(host+":"+path+mode)
}

// megabytes reads a size as docker does, such as 512m; it is at least 1 MB.
func megabytes(text string, mb *int) bool {
	text = strings.TrimSuffix(strings.ToLower(text), "b")
	scale := map[string]float64{"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}[text[max(len(text)-1, 0):]]
	if scale != 0 {
		text = text[:len(text)-1]
	}
	n, err := strconv.ParseFloat(text, 64)
	n *= max(scale, 1)
	*mb = int(n / (1 << 20))
	return err == nil && n >= 1<<20 && n < 1<<50
}

func engines() []string { return []string{"docker", "podman", "nerdctl"} }
