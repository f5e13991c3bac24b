// Dormouse-keeper starts MCP servers from container images, each in a kernel of its own,
// without a container engine and without privileges.
//
//	dormouse-keeper pull IMAGE                 fetches an image, and says where it is
//	dormouse-keeper run [options] IMAGE [ARG]… runs it; stdio and the exit code are the server's
//	dormouse-keeper run --system [options] COMMAND [ARG]…   runs a program of this machine
//	dormouse-keeper run --control N …          runs it by orders on descriptor N; see control
//	dormouse-keeper probe                      says whether this system can run servers
//
// The command dormouse starts the keeper for servers that are sealed. See packages box and image.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/keeper/box"
	"github.com/dormouse-mcp/dormouse/infra/keeper/gate"
	"github.com/dormouse-mcp/dormouse/infra/keeper/image"
)

// failed is the exit code if the server could not be run; docker run has the same.
const failed = 125

func main() {
	box.Role()
	code, err := keeper(os.Args[1:], os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "dormouse-keeper:", err)
	}
	os.Exit(code)
}

func keeper(args []string, out io.Writer) (int, error) {
	if err := errors.Join(box.Usable(), box.Hide()); err != nil {
		return failed, err
	}
	verb := ""
	if len(args) > 0 {
		verb = args[0]
	}
	switch verb {
	case "pull":
		return pull(args[1:], out)
	case "run":
		return run(args[1:])
	case "probe":
		return probe(out)
	}
	return failed, errors.New("usage: dormouse-keeper pull IMAGE, run [options] IMAGE [ARG]…, or probe")
}

// probe writes which protections the system has, as JSON.
func probe(out io.Writer) (int, error) {
	if err := box.Probe(); err != nil {
		return failed, err
	}
	return 0, json.NewEncoder(out).Encode(struct {
		Landlock int `json:"landlock"` // version of Landlock, 0 for none
	}{box.Landlocks()})
}

func pull(args []string, out io.Writer) (int, error) {
	f := flag.NewFlagSet("pull", flag.ContinueOnError)
	store := storeFlag(f)
	if err := f.Parse(args); err != nil || f.NArg() != 1 {
		return failed, errors.Join(err, errors.New("usage: dormouse-keeper pull [--store FOLDER] IMAGE"))
	}
	images, err := kept(*store)
	if err != nil {
		return failed, err
	}
	i, err := images.Pull(context.Background(), f.Arg(0), true)
	if err != nil {
		return failed, err
	}
	defer func() { _ = i.File.Close() }() // nothing was written
	return 0, json.NewEncoder(out).Encode(struct {
		Digest string `json:"digest"`
		File   string `json:"file"`
	}{i.Digest, i.File.Name()})
}

func storeFlag(f *flag.FlagSet) *string {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	return f.String("store", filepath.Join(cache, "dormouse", "images"), "`folder` of the images")
}

// kept returns the Store in the folder dir, with the keeper's settings.
func kept(dir string) (image.Store, error) {
	init, err := box.Init()
	return image.Store{Dir: dir, Limits: image.DefaultLimits(), Nameserver: gate.Nameserver, Init: init, InitPath: box.InitPath}, err
}

// list is the value of a flag that may be given several times.
type list []string

func (l *list) String() string     { return strings.Join(*l, ",") }
func (l *list) Set(s string) error { *l = append(*l, s); return nil }

// options has the flags of dormouse-keeper run.
type options struct {
	store, pull, user, entrypoint, dir, network, written string
	env, folders, tmpfs, hosts, stable                   list
	memory, cpus, pids, tell, control                    int
	readOnly, system                                     bool
}

func (o *options) read(args []string) (ref string, rest []string, err error) {
	f := flag.NewFlagSet("run", flag.ContinueOnError)
	store := storeFlag(f)
	f.StringVar(&o.pull, "pull", "missing", "missing, or always")
	f.StringVar(&o.user, "user", "", "in place of the image's")
	f.StringVar(&o.entrypoint, "entrypoint", "", "in place of the image's, and of its command")
	f.StringVar(&o.dir, "workdir", "", "in place of the image's")
	f.StringVar(&o.network, "network", "on", "on, or off")
	f.Var(&o.hosts, "host", "`HOST` that the server may call, and no other but those of further flags: api.github.com, *.slack.com:443, or 192.168.1.10:5432")
	f.StringVar(&o.written, "written", "", "`folder` that keeps what the server writes into its root; an image with another digest begins anew")
	f.Var(&o.env, "env", "`NAME` of a variable that the server gets from the keeper's environment")
	f.Var(&o.folders, "folder", "`HOST:PATH[:ro|:fixed]`, a folder of this machine; fixed is read only, and nothing of it changes")
	f.Var(&o.tmpfs, "tmpfs", "`PATH` of a folder in memory")
	f.IntVar(&o.tell, "tell", 2, "`DESCRIPTOR` on which each refusal of --host is a line")
	f.IntVar(&o.control, "control", 0, "`DESCRIPTOR` of a socket whose other end starts, freezes and thaws the server; 0: the server starts at once")
	f.Var(&o.stable, "stable", "`NAME:DIGEST` of something that must be the same when a server thaws")
	f.IntVar(&o.memory, "memory", 0, "limit in MB, with the files that the server writes; 0: none")
	f.IntVar(&o.cpus, "cpus", 0, "processors that the server sees; 0: all")
	f.IntVar(&o.pids, "pids", 0, "limit of processes; 0: none")
	f.BoolVar(&o.readOnly, "read-only", false, "the server cannot write to its root")
	f.BoolVar(&o.system, "system", false, "there is no image: its root has the folders, each below its own path, and a command follows the options")
	if err := f.Parse(args); err != nil {
		return "", nil, err
	}
	o.store = *store
	switch {
	case f.NArg() == 0:
		return "", nil, errors.New("the name of the image, or the command, is missing")
	case o.network != "on" && o.network != "off":
		return "", nil, fmt.Errorf("--network is %q: it must be on or off", o.network)
	case o.pull != "missing" && o.pull != "always":
		return "", nil, fmt.Errorf("--pull is %q: it must be missing or always", o.pull)
	}
	if o.system {
		return "", f.Args(), nil
	}
	return f.Arg(0), f.Args()[1:], nil
}

func run(args []string) (int, error) {
	parent := os.Getppid()
	var o options
	ref, rest, err := o.read(args)
	if err != nil {
		return failed, err
	}
	for _, ours := range []int{o.tell, o.control} {
		if ours > 2 {
			syscall.CloseOnExec(ours) // so that processes of the box do not inherit it
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	images, err := kept(o.store)
	if err != nil {
		return failed, err
	}
	var i *image.Image
	if o.system {
		i, err = o.base(images)
	} else {
		i, err = images.Pull(ctx, ref, o.pull == "always")
	}
	if err != nil {
		return failed, err
	}
	spec, err := o.spec(i, rest)
	if err != nil {
		return failed, err
	}
	l := launch{spec: spec}
	if o.network == "on" {
		hosts, tell, err := o.list()
		if err != nil {
			return failed, fmt.Errorf("the network of the box: %w", err)
		}
		l.gate = gate.Open(hosts, tell)
	}
	watch := func(b *box.Box) { attend(ctx, b, o.memory, parent) }
	if o.control != 0 {
		c, err := newControl(o.control)
		if err != nil {
			return failed, err
		}
		return c.serve(ctx, l, func() (map[string]string, error) { return o.fit(i, spec) }, watch)
	}
	p := <-l.prepare()
	if p.err == nil {
		p.err = p.box.Begin()
	}
	if p.err != nil {
		return failed, p.err
	}
	go watch(p.box)
	return p.box.Wait()
}

// launch makes the boxes of a server, one at a time.
type launch struct {
	spec box.Spec
	gate *gate.Gate // nil for no network
}

type prepared struct {
	box *box.Box
	err error
}

// prepare calls [box.Prepare] in the background.
func (l launch) prepare() <-chan prepared {
	ready := make(chan prepared, 1)
	go func() {
		var p prepared
		if l.gate != nil {
			if l.spec.Link, p.err = l.gate.Link(); p.err != nil {
				p.err = fmt.Errorf("the network of the box: %w", p.err)
			}
		}
		if p.err == nil {
			p.box, p.err = box.Prepare(l.spec)
		}
		ready <- p
	}()
	return ready
}

// fit returns what the memory of a server depends on; see [box.Spec.Fit].
func (o *options) fit(i *image.Image, spec box.Spec) (map[string]string, error) {
	fit, err := spec.Fit([]any{i.Sum, o.network, o.hosts, o.stable})
	if err == nil {
		fit["image"] = cmp.Or(i.Digest, "sha256:"+i.Sum)
	}
	return fit, err
}

// list returns the hosts that the server may connect to, nil for all, and a function that writes
// the line of a refusal.
func (o *options) list() (gate.Hosts, func(string), error) {
	if o.hosts == nil {
		return nil, nil, nil
	}
	to, before := os.Stderr, "dormouse-keeper: "
	if o.tell > 2 {
		to, before = os.NewFile(uintptr(o.tell), "refusals"), ""
	}
	hosts, err := gate.ReadHosts(o.hosts)
	return hosts, func(text string) {
		_, _ = fmt.Fprintln(to, before+text) // an error is ignored, because the reader may have ended
	}, err
}

// base returns the image for a box that has only folders of this machine. base changes o.folders,
// so that each folder is mounted once, at its path without links, in the mode that allows the
// most.
func (o *options) base(images image.Store) (*image.Image, error) {
	var ways, hidden []string
	modes := map[string]string{}
	for _, text := range o.folders {
		parts := append(strings.Split(text, ":"), "")
		real, err := filepath.EvalSymlinks(parts[0])
		if err != nil {
			return nil, err
		}
		if strings.HasPrefix(parts[0], "/tmp/") && real != parts[0] { // the box has a /tmp of its own, without this link: the folder is mounted at both paths
			hidden = append(hidden, real+strings.TrimPrefix(text, parts[0]))
		}
		was, known := modes[real]
		if ways = append(ways, parts[0]); !known || was != "" && parts[2] != "fixed" { // the mode that allows the most counts: "" allows the most, "fixed" the least
			modes[real] = parts[2]
		}
	}
	o.folders = nil
	last := map[string]string{"ro": "-", "fixed": "-"} // the last folder with a mode; no path begins with "-"
	below := func(real, mode string) bool { return strings.HasPrefix(real, last[mode]+"/") }
	for _, real := range slices.Sorted(maps.Keys(modes)) {
		mode := modes[real]
		if mode != "" && (below(real, "fixed") || mode == "ro" && below(real, "ro")) {
			continue
		}
		if o.folders = append(o.folders, strings.TrimSuffix(real+":"+real+":"+mode, ":")); mode != "" {
			last[mode] = real
		}
	}
	o.folders = append(o.folders, hidden...)
	return images.Base(ways, os.Geteuid(), os.Getegid())
}

// attend looks after a running box. When ctx ends, it sends SIGTERM to the server. attend kills
// the box if the box uses more than the allowed memory (in MB, 0 for no limit), or if the process
// that has started the keeper, whose pid is parent, has ended.
func attend(ctx context.Context, b *box.Box, memory, parent int) {
	look := time.NewTicker(time.Second)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			if b.Signal(syscall.SIGTERM) != nil {
				return
			}
			ctx = context.Background()
		case <-look.C:
			if os.Getppid() != parent {
				b.End("the box was ended: whoever started it is gone")
				return
			}
			if memory == 0 {
				continue
			}
			used, err := b.Used()
			if err != nil {
				return // the box has ended
			}
			if used > uint64(memory)<<20 {
				b.End(fmt.Sprintf("the box was ended: it used %d MB with what it has written, and may use %d (memory_mb, --memory)", used>>20, memory))
				return
			}
		}
	}
}

// spec returns what the box runs, from the image, the options and the arguments.
func (o *options) spec(i *image.Image, args []string) (box.Spec, error) {
	c := i.Config
	s := box.Spec{
		Image: i.File, ReadOnly: o.readOnly, Tmpfs: o.tmpfs, MemoryMB: o.memory, CPUs: o.cpus, Pids: o.pids, Dir: cmp.Or(o.dir, c.WorkingDir),
		Stdio: [3]*os.File{os.Stdin, os.Stdout, os.Stderr},
	}
	if o.written != "" && !o.readOnly {
		var err error
		if s.Written, err = writtenTo(o.written, i.Digest); err != nil {
			return s, err
		}
	}
	s.Args = append(append([]string{}, c.Entrypoint...), args...)
	switch {
	case o.entrypoint != "":
		s.Args = append([]string{o.entrypoint}, args...)
	case len(args) == 0:
		s.Args = append(s.Args, c.Cmd...)
	}
	if len(s.Args) == 0 {
		return s, errors.New("the image has neither an entry point nor a command: give the command behind the image's name")
	}
	u, err := i.User(cmp.Or(o.user, c.User))
	if err != nil {
		return s, err
	}
	s.UID, s.GID, s.Groups = u.UID, u.GID, u.Groups
	writes := slices.ContainsFunc(o.folders, func(f string) bool { return !strings.HasSuffix(f, ":ro") && !strings.HasSuffix(f, ":fixed") })
	if me := os.Geteuid(); writes && me != 0 && o.user == "" {
		// The files that the server makes in these folders belong to its user. Only root could
		// change their owner, so the server runs as the user of the keeper.
		s.UID, s.GID, s.Groups = uint32(me), uint32(os.Getegid()), nil
	}
	s.Env = append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + u.Home}, c.Env...)
	for _, name := range o.env {
		if value, ok := os.LookupEnv(name); ok {
			s.Env = append(s.Env, name+"="+value)
		}
	}
	s.Env = last(s.Env)
	for _, text := range o.folders {
		parts := strings.Split(text, ":")
		if len(parts) < 2 || len(parts) > 3 || len(parts) == 3 && parts[2] != "ro" && parts[2] != "fixed" || !filepath.IsAbs(parts[0]) || !filepath.IsAbs(parts[1]) {
			return s, fmt.Errorf("--folder %s: it must be HOST:PATH, HOST:PATH:ro or HOST:PATH:fixed, with absolute paths", text)
		}
		s.Folders = append(s.Folders, box.Folder{Host: parts[0], Path: parts[1], ReadOnly: len(parts) == 3, Fixed: parts[len(parts)-1] == "fixed"})
	}
	return s, nil
}

// writtenTo returns the file in dir for what a server writes to its root, for an image with this
// digest. It removes the files for all other images.
func writtenTo(dir, digest string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	own := filepath.Join(dir, strings.ReplaceAll(digest, ":", "-")+".tar")
	all, err := os.ReadDir(dir)
	for _, f := range all {
		if at := filepath.Join(dir, f.Name()); at != own {
			err = errors.Join(err, os.Remove(at))
		}
	}
	return own, err
}

// last removes all but the last of the variables with the same name.
func last(env []string) []string {
	at := map[string]int{}
	var all []string
	for _, pair := range env {
		name, _, _ := strings.Cut(pair, "=")
		if n, ok := at[name]; ok {
			all[n] = pair
			continue
		}
		at[name] = len(all)
		all = append(all, pair)
	}
	return all
}
