package dormouse

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dormouse-mcp/dormouse/infra/local"
	"github.com/dormouse-mcp/dormouse/infra/local/datafolder"
	"github.com/dormouse-mcp/dormouse/infra/runner"
	"github.com/dormouse-mcp/dormouse/shared/box"
	"github.com/dormouse-mcp/dormouse/shared/box/provision"
	"github.com/dormouse-mcp/dormouse/shared/box/sandbox"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
	"github.com/dormouse-mcp/dormouse/shared/store/sqlitestore"
)

type doctorCommand struct {
	Server string `arg:"" optional:"" help:"Name of a server, which is started once in a data folder of its own; with --url it is called there."`
	fileFlag
	served
	storeFlag
	target
	printing
}

type finding struct {
	Check  string   `json:"check"`
	OK     bool     `json:"ok"`
	Says   string   `json:"says"`
	Todo   string   `json:"todo,omitempty"`        // what the user should do
	MS     float64  `json:"duration_ms,omitempty"` // duration of a step in a server's start
	Output []string `json:"output,omitempty"`      // the last lines of the server's output
}

// good returns the result of a check that has passed, and bad that of one that has failed.
func good(check, format string, args ...any) finding {
	return finding{Check: check, OK: true, Says: fmt.Sprintf(format, args...)}
}

func bad(check, says, todo string) finding { return finding{Check: check, Says: says, Todo: todo} }

// doctor is a run of the doctor command, with data that several checks use.
type doctor struct {
	*doctorCommand
	t       *terminal
	cfg     local.Config      // from the flags, with Access and Guests of the dormouse run that is up
	file    *serversfile.File // nil if it cannot be read
	wrong   []error           // mistakes in the servers file
	machine *client           // nil if no dormouse run is up
	up      api.Info          // the description of that dormouse run
	down    error             // why that dormouse run does not answer; nil if it does
}

// Run prints a line for each check, and fails if a check has failed.
func (c *doctorCommand) Run(t *terminal) error {
	ctx, stop := interruptible()
	defer stop()
	d := &doctor{doctorCommand: c, t: t, cfg: c.config(t.program, c.Servers)}
	d.cfg.Data = c.folder()
	var err error
	if d.machine, err = (target{Data: c.folder()}).open(ctx); err == nil {
		defer d.machine.end()
		if d.up, d.down = d.machine.info(ctx); d.down == nil {
			d.cfg.Access, d.cfg.Guests = d.up.Access, d.up.Guests
		}
	}
	d.file, _, d.wrong = readServers(d.cfg)
	all := d.all(ctx)
	if err := c.show(t, all, func() error { return printFindings(t, all) }); err != nil {
		return err
	}
	if slices.ContainsFunc(all, func(f finding) bool { return !f.OK }) {
		return failure{code: exitFailed}
	}
	return nil
}

func (d *doctor) all(ctx context.Context) (all []finding) {
	here := !d.elsewhere()
	if here {
		all = append(append(d.programs(ctx), d.serversFile()...), d.network(), d.ports(ctx))
		all = append(append(all, d.certificate(ctx)...), d.disk(), d.store(ctx), d.secret())
	}
	var at time.Time // the time at the endpoint of --url; zero if unknown
	if d.URL != "" {
		var f finding
		f, at = d.proxy(ctx)
		all = append(all, f)
	}
	if here {
		on := sandbox.Probe()
		if d.machine != nil {
			on.Cgroups = sandbox.CgroupsOf(datafolder.Holder(d.folder()))
		}
		all = append(all, d.sandbox(on, d.guests()))
	}
	all = append(all, d.clock(at))
	if d.Server != "" {
		all = append(all, d.server(ctx)...)
	}
	return all
}

// elsewhere reports whether only the endpoint at --url is checked, because no dormouse run is up
// here and there is no servers file.
func (d *doctor) elsewhere() bool {
	if !d.remote() || d.machine != nil {
		return false
	}
	_, err := os.Stat(d.Servers)
	return errors.Is(err, fs.ErrNotExist)
}

func printFindings(t *terminal, all []finding) error {
	return table(t.out, func(say func(string, ...any)) {
		for _, f := range all {
			mark, took := "✓", ""
			if !f.OK {
				mark = "✗"
			}
			if f.MS > 0 {
				took = ", " + time.Duration(f.MS*float64(time.Millisecond)).Round(time.Millisecond).String()
			}
			say("%s %s\t%s%s\n", mark, f.Check, f.Says, took)
			if f.Todo != "" {
				say("\t→ %s\n", f.Todo)
			}
			for _, line := range f.Output {
				say("\t| %s\n", line)
			}
		}
	})
}

// served calls fn for each enabled server that is checked.
func (d *doctor) served(fn func(serversfile.Server)) {
	if d.file == nil {
		return
	}
	for _, name := range d.file.Names() {
		if s, _ := d.file.Server(name); !s.Disabled && d.about(name) {
			fn(s)
		}
	}
}

// about reports whether a server is checked: all are, unless the user has named one.
func (d *doctor) about(name string) bool { return d.Server == "" || d.Server == name }

// look finds a program as dormouse run does: in the PATH of a server, from the server's folder.
func (d *doctor) look(s serversfile.Server, program string) (path string, err error) {
	if program == runner.Keeper && s.Command != "" {
		return runner.Find(s, os.Getenv("PATH"), serversfile.FolderOf(d.Servers))
	}
	return box.LookPath(program, cmp.Or(s.Env["PATH"], os.Getenv("PATH")), cmp.Or(s.Cwd, serversfile.FolderOf(d.Servers)))
}

// programs checks the programs that install and start servers, and those that the servers file
// names. A program that no server needs may be missing.
func (d *doctor) programs(ctx context.Context) (all []finding) {
	needs := map[string][]serversfile.Server{}               // servers by the program that they need
	usual := []string{"node", "npx", "uv", "uvx", "python3"} // these are reported even if no server needs them
	names := slices.Clone(usual)
	d.served(func(s serversfile.Server) {
		programs := []string{runner.Needs(s, os.Getenv("PATH"), serversfile.FolderOf(d.Servers))}
		switch s.Command {
		case "":
			return
		case "npx", "npm":
			programs = append(programs, "node")
		}
		for _, p := range programs {
			needs[p] = append(needs[p], s)
			if !slices.Contains(names, p) {
				names = append(names, p)
			}
		}
	})
	for _, name := range names {
		path, err := d.look(serversfile.Server{}, name)
		var lack []string // servers that cannot find the program
		for _, s := range needs[name] {
			own, wrong := d.look(s, name)
			if wrong != nil {
				lack, err = append(lack, s.Name), wrong
			} else if lack == nil {
				path, err = own, nil
			}
		}
		switch {
		case lack != nil:
			all = append(all, bad(filepath.Base(name), err.Error(), "it is for "+strings.Join(lack, ", ")))
		case err != nil:
			all = append(all, good(name, "not installed; no server of the file needs it"))
		case name == runner.Keeper:
			all = append(all, probed(ctx, path))
		case !slices.Contains(usual, name):
			all = append(all, good(filepath.Base(name), "%s", path))
		default:
			f := versioned(ctx, name, path)
			if !f.OK && needs[name] == nil {
				f = good(name, "%s; no server of the file needs it", f.Says)
			}
			all = append(all, f)
		}
	}
	return all
}

// probed checks whether dormouse-keeper works on this system.
func probed(ctx context.Context, keeper string) finding {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if out, err := exec.CommandContext(ctx, keeper, "probe").CombinedOutput(); err != nil {
		said, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
		return bad(runner.Keeper, cmp.Or(said, err.Error()), "let Docker start the server, without sealed; or use another machine")
	}
	return good(runner.Keeper, "runs servers in a kernel of their own (%s)", keeper)
}

func versioned(ctx context.Context, name, path string) finding {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return bad(name, fmt.Sprintf("%s --version fails: %v", path, err), "install it anew")
	}
	first, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	version := regexp.MustCompile(`[0-9]+(\.[0-9]+)*`).FindString(first)
	oldest := map[string]string{"node": "20", "python3": "3.10"}[name]
	if oldest != "" && version != "" && isNewer(oldest, version) {
		return bad(name, fmt.Sprintf("%s (%s), too old", version, path), "install version "+oldest+" or newer")
	}
	return good(name, "%s (%s)", cmp.Or(version, "of unknown version"), path)
}

// serversFile reports mistakes in the servers file, and variables that are not set.
func (d *doctor) serversFile() []finding {
	mistakes, lacks, all := d.wrong, []string(nil), 0
	if d.file != nil {
		mistakes, all = nil, len(namesIn(d.file))
		for _, r := range d.file.Rejected() {
			for _, e := range r.Errors {
				switch {
				case !d.about(r.Name):
				case e.Lacks == nil:
					mistakes = append(mistakes, e)
				case !slices.Contains(lacks, e.Lacks.Name+" of "+r.Name):
					lacks = append(lacks, e.Lacks.Name+" of "+r.Name)
				}
			}
		}
	}
	file := good("servers file", "%s of %s", count(all, "server"), filepath.Base(d.Servers))
	switch {
	case len(mistakes) > 0:
		file = bad(file.Check, mistakes[0].Error(), fmt.Sprintf("%s; dormouse check shows all", count(len(mistakes), "mistake")))
	case all == 0:
		file = bad(file.Check, d.Servers+" has no server", "dormouse add NAME -- COMMAND ARGS…")
	}
	variables := good("variables", "all are set")
	switch {
	case d.file == nil || d.Server != "" && !slices.Contains(namesIn(d.file), d.Server):
		return []finding{file} // no variables are known
	case lacks != nil:
		variables = bad(variables.Check, "not set: "+strings.Join(lacks, ", "), "set them in the environment, in .env beside the servers file, or with --env-file")
	case d.Server != "":
		variables = good(variables.Check, "those of %s are set", d.Server)
	}
	return []finding{file, variables}
}

// network reports which environment variables for proxies and certificates are set. It leaves out
// the URLs of proxies, which may contain passwords.
func (d *doctor) network() finding {
	const check = "network"
	var set []string
	for _, pair := range os.Environ() {
		name, value, _ := strings.Cut(pair, "=")
		if value == "" || !provision.IsNetwork(name) {
			continue
		}
		set = append(set, name)
		if !slices.Contains(provision.Certificates(), name) {
			continue
		}
		for _, path := range filepath.SplitList(value) {
			if err := unix.Access(path, unix.R_OK); err != nil {
				return bad(check, fmt.Sprintf("%s names %s: %v", name, path, err), "correct it, or unset it: installs and servers get it")
			}
		}
	}
	if set == nil {
		return good(check, "no proxy and no certificates are set")
	}
	slices.Sort(set)
	return good(check, "servers and installs get %s", strings.Join(set, ", "))
}

func (d *doctor) ports(ctx context.Context) finding {
	const check = "ports"
	if d.machine != nil {
		if d.down != nil {
			return bad(check, d.down.Error(), "start dormouse run again")
		}
		return good(check, "dormouse run is up at %s", d.up.URL)
	}
	if err := local.LookAtPorts(ctx, d.cfg.Listen, d.cfg.Sockets); err != nil {
		return bad(check, err.Error(), "name another address, for dormouse run too")
	}
	return good(check, "%s is free, and so is the port for WebSocket", d.cfg.Listen)
}

// certificate checks the certificate of dormouse run, if that is up, as its clients do.
func (d *doctor) certificate(ctx context.Context) []finding {
	const check = "certificate"
	u, err := url.Parse(d.up.URL)
	if d.up.Certificate == nil || err != nil {
		return nil
	}
	dialer := tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true, ServerName: u.Hostname()}} //nolint:gosec // this connection only reads the certificate
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "443")))
	if err != nil {
		return []finding{bad(check, err.Error(), "clients reach the endpoint as little: see --tls-cert, --tls and --public-url")}
	}
	defer func() { _ = conn.Close() }()
	chain := conn.(*tls.Conn).ConnectionState().PeerCertificates
	until := chain[0].NotAfter.In(d.t.now().Location()).Format(time.DateTime)
	var unknown x509.UnknownAuthorityError
	switch err := verified(chain, u.Hostname()); {
	case err == nil:
		return []finding{good(check, "this system trusts it, until %s", until)}
	case errors.As(err, &unknown) && chain[0].VerifyHostname(u.Hostname()) == nil:
		return []finding{good(check, "until %s; clients need its authority, which this system does not know: NODE_EXTRA_CA_CERTS, SSL_CERT_FILE", until)}
	default:
		return []finding{bad(check, err.Error(), "take another certificate, or name its host with --public-url")}
	}
}

// least is the smallest free space, in bytes, that is enough.
const least = 1 << 30

func (d *doctor) disk() finding {
	const check = "disk"
	folder, err := d.existing()
	if err != nil {
		return bad(check, err.Error(), "name another folder with --data")
	}
	var of unix.Statfs_t
	if err := unix.Statfs(folder, &of); err != nil || of.Bsize <= 0 {
		return bad(check, "the free space of "+folder+" is not known", "name another folder with --data")
	}
	free := of.Bavail * uint64(of.Bsize) // without the blocks that only root may use, as in df
	says := fmt.Sprintf("%.1f GB free for %s", float64(free)/1e9, d.folder())
	if free < least {
		return bad(check, says, "free some room, or name another folder with --data")
	}
	if err := unix.Access(folder, unix.W_OK|unix.X_OK); err != nil {
		return bad(check, fmt.Sprintf("%s cannot be written by uid %d: %v", folder, os.Getuid(), err), "make it writable, or name another folder with --data")
	}
	return good(check, "%s", says)
}

// existing returns the data folder, or if it does not exist, its nearest parent that does.
func (d *doctor) existing() (string, error) {
	folder, err := filepath.Abs(d.folder())
	for err == nil {
		var info fs.FileInfo
		info, err = os.Stat(folder)
		switch {
		case err == nil && info.IsDir():
			return folder, nil
		case err == nil:
			return "", fmt.Errorf("%s is no folder", folder)
		case errors.Is(err, fs.ErrNotExist):
			folder, err = filepath.Dir(folder), nil
		}
	}
	return "", err
}

// store checks the store. It reads a file without opening it as a store, because that could change
// the file.
func (d *doctor) store(ctx context.Context) finding {
	const check = "store"
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if d.machine != nil && d.Store == "" {
		var page api.Sessions
		if err := d.machine.call(ctx, "GET", "sessions?limit=1", nil, &page); err != nil {
			return bad(check, err.Error(), "the log of dormouse run says more: "+filepath.Join(d.folder(), local.LogFolder, local.LogFile))
		}
	}
	name, err := local.StoreName(d.Store, d.folder())
	if err != nil {
		return bad(check, err.Error(), "name a store with --store")
	}
	made, err := local.LookAtStore(ctx, name)
	if err == nil && strings.HasPrefix(name, dynamodb) {
		var s storage.Store
		if s, err = local.OpenStore(name, awsCredentials(ctx, name), sessions.Limits{}, sqlitestore.Options{}); err == nil {
			_, err = s.List(ctx, "", "", 1)
			err = errors.Join(err, s.Close())
		}
	}
	if path, file, _ := local.SQLite(d.Store, d.folder()); err == nil && made && file {
		err = sqlitestore.HasRoom(path)
	}
	switch {
	case err != nil:
		return bad(check, err.Error(), "or name another store with --store")
	case !made:
		return good(check, "none yet; dormouse run makes it")
	case d.machine != nil && d.Store == "":
		return good(check, "it answers dormouse run")
	}
	return good(check, "%s", name)
}

func (d *doctor) secret() finding {
	const check = "secret"
	_, _, err := datafolder.Control(d.folder())
	path := filepath.Join(d.folder(), datafolder.SecretFile)
	switch info, problem := os.Stat(path); {
	case datafolder.SecretLost(d.folder()):
		return bad(check, path+" is gone; if dormouse run makes a new one, "+datafolder.LostWithSecret, "restore the file from a backup, before dormouse run starts")
	case errors.Is(err, os.ErrNotExist):
		return good(check, "none yet; dormouse run makes it")
	case err != nil:
		return bad(check, err.Error(), "make the data folder readable for this user, or name another one with --data")
	case problem == nil && info.Mode().Perm()&0o077 != 0:
		return bad(check, path+" can be read by other users", "chmod 600 "+path)
	}
	return good(check, "only you can read it")
}

// guests returns the servers that dormouse run puts into a sandbox although they have no sandbox
// profile, because others than the user of this machine may call them.
func (d *doctor) guests() (names []string) {
	file, _, err := serversfile.LoadGuests(d.Servers, os.LookupEnv, d.EnvFile...)
	if !d.cfg.HasGuests() || err != nil {
		return nil
	}
	for _, name := range file.Names() {
		if s, _ := file.Server(name); s.Box.Guest && !s.Disabled && d.about(name) {
			names = append(names, name)
		}
	}
	return names
}

// sandbox compares what the system supports with what the servers of the file ask for.
func (d *doctor) sandbox(on sandbox.Support, guests []string) finding {
	const check = "sandbox"
	has, lacks := []string{}, []string{}
	for _, part := range []struct {
		text string
		has  bool
	}{
		{fmt.Sprintf("Landlock %d", on.Landlock), on.Landlock > 0},
		{"seccomp filters", on.Seccomp},
		{"users of their own", on.Users > 0},
	} {
		if part.has {
			has = append(has, part.text)
		} else {
			lacks = append(lacks, strings.TrimSuffix(part.text, " 0"))
		}
	}
	var asking []string
	d.served(func(s serversfile.Server) {
		if s.Box.Confined() {
			asking = append(asking, s.Name)
		}
	})
	says := "this system has " + cmp.Or(strings.Join(has, ", "), "none")
	if len(lacks) > 0 {
		says += "; it has no " + strings.Join(lacks, ", no ")
	}
	if on.Cgroups != "" {
		says += "; cgroups bound memory and processes"
	} else if on.Limits {
		says += "; a watch bounds memory, because no cgroup is left to it"
	}
	if asking != nil && (on.Landlock == 0 || !on.Seccomp) {
		return bad(check, says, "dormouse run refuses servers that ask for a sandbox: "+strings.Join(asking, ", ")+"; use Linux 5.13 or newer with Landlock, or the container image")
	}
	if lack := on.Missing(sandbox.Policy{Sockets: sandbox.InternetSockets}); guests != nil && lack != nil {
		return bad(check, says, fmt.Sprintf("not only you can call, and these servers have all rights of your user, because %s: %s; confine them elsewhere, or write \"profile\": \"none\"", lack[0].Why, strings.Join(guests, ", ")))
	}
	if guests != nil {
		says += "; it confines " + strings.Join(guests, ", ") + ", because not only you can call"
	}
	return good(check, "%s", says)
}

// wrongBy is the smallest difference between two clocks at which tokens and tickets may be refused.
const wrongBy = time.Minute

// clock checks the local time. The argument remote is the time of the endpoint at --url, or zero if
// unknown.
func (d *doctor) clock(remote time.Time) finding {
	const check = "clock"
	now, todo := d.t.now().UTC(), "set the clock: keys, tokens and tickets have times"
	if built, err := time.Parse(time.RFC3339, builtAs().Time); err == nil && now.Before(built) {
		return bad(check, fmt.Sprintf("it is %s here, which is before this program was built", now.Format(time.DateTime)), todo)
	}
	if off := now.Sub(remote).Abs(); !remote.IsZero() && off > wrongBy {
		return bad(check, fmt.Sprintf("this machine and %s differ by %s", d.URL, off.Round(time.Second)), todo)
	}
	return good(check, "%s UTC", now.Format(time.DateTime))
}
