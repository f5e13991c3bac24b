package local

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/functions/wiring/endpoints"
	"github.com/dormouse-mcp/dormouse/shared/box/sandbox"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
)

// serversFile reads the servers file and its files of variables. Nothing else on this
// machine reads them. One goroutine at a time calls load.
type serversFile struct {
	Config
	environ environ
	others  bool            // not only the user of this machine can call, so servers are guests
	on      sandbox.Support // what the system offers to confine guests

	mu     sync.Mutex
	warned map[string]bool // warnings that were given
	fresh  []string        // warnings that were not shown to people yet
	now    []string        // short warnings about the file as it was last read
	broken string          // why the present text of the file is not served, "" if it is
}

func newServersFile(m *machine) *serversFile {
	return &serversFile{Config: m.cfg, environ: m.environ, others: m.cfg.HasGuests(), on: sandbox.Probe(), warned: map[string]bool{}}
}

// HasGuests reports whether [Run] confines servers without a profile, if the system can. It
// does that where not only the user of this machine can call.
func (c Config) HasGuests() bool {
	return (c.Guests || !listenersOf(c).private()) && c.Functions == nil
}

// read reads the files, with servers as guests if others may call and the system can confine
// them.
func (f *serversFile) read() (*serversfile.File, []serversfile.Warning, error) {
	servers, warnings, err := f.readAs(f.others)
	if err != nil {
		return nil, warnings, err
	}
	names, lack := guests(servers), f.on.Missing(sandbox.Policy{Sockets: sandbox.InternetSockets})
	if names == nil || lack == nil {
		return servers, warnings, nil
	}
	// Nobody has asked for a sandbox, so its lack stops no server.
	if servers, warnings, err = f.readAs(false); err != nil {
		return nil, warnings, err
	}
	return servers, append([]serversfile.Warning{{Text: fmt.Sprintf(notConfined, strings.Join(names, ", "), lack[0].Why)}}, warnings...), nil
}

// readAs reads the files, and checks the sections that package serversfile does not read. It
// rejects servers in Go that this program does not have.
func (f *serversFile) readAs(guests bool) (*serversfile.File, []serversfile.Warning, error) {
	load := serversfile.LoadHere
	if guests {
		load = serversfile.LoadGuests
	}
	servers, warnings, err := load(f.Servers, f.environ.lookup, f.EnvFiles...)
	if err == nil {
		err = wiring.CheckSections(servers)
	}
	if err != nil || f.Functions != nil {
		return servers, warnings, err
	}
	for _, name := range servers.Names() {
		s, _ := servers.Server(name)
		if err := endpoints.CheckNative(s, f.Native); err != nil {
			servers.Reject(name, servers.Mistake(name, "native", "", err.Error()))
		}
	}
	return servers, warnings, nil
}

// load reads the files. It records a warning only the first time that it occurs.
func (f *serversFile) load() (*serversfile.File, error) {
	servers, warnings, err := f.read()
	if err != nil {
		return nil, err
	}
	var now []string
	for _, w := range warnings {
		if w.File == "" {
			f.warn(w.Text)
			continue
		}
		f.warn(w.String())
		w.File = filepath.Base(w.File)
		now = append(now, w.String())
	}
	f.mu.Lock()
	f.now = now
	f.mu.Unlock()
	for _, r := range servers.Rejected() {
		f.warn(r.String())
	}
	return servers, nil
}

// notConfined is the warning about guests on a system that cannot confine them.
const notConfined = "not only you can call, and this system cannot confine servers without a profile: %s have the rights of this user (%s)"

// guests returns the names of the servers that are confined although the file does not ask
// for it.
func guests(servers *serversfile.File) (names []string) {
	for _, name := range servers.Names() {
		if s, _ := servers.Server(name); s.Box.Guest && !s.Disabled {
			names = append(names, name)
		}
	}
	return names
}

// breaks records why the file as it is now cannot be served; "" means that it can.
func (f *serversFile) breaks(why string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.broken = why
}

// notes returns what is wrong with the file as it is now. It leaves out rejected servers.
func (f *serversFile) notes() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.broken != "" {
		return append([]string{f.broken}, f.now...)
	}
	return slices.Clone(f.now)
}

// news returns the warnings since its last call.
func (f *serversFile) news() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	fresh := f.fresh
	f.fresh = nil
	return fresh
}

func (f *serversFile) warn(text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.warned[text] {
		f.warned[text] = true
		f.fresh = append(f.fresh, text)
	}
}
