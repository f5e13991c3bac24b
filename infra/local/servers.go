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

// serversFile reads the servers file and its files of variables; nothing else in this package
// reads them. Only one goroutine at a time may call load.
type serversFile struct {
	Config
	environ environ
	others  bool            // others than the user of this machine can call, so servers without a sandbox profile are confined
	on      sandbox.Support // the sandbox features that this system has

	mu     sync.Mutex
	warned map[string]bool // warnings that load has recorded once
	fresh  []string        // warnings since the last call of the method news
	now    []string        // warnings about the file as it was last read, with the file's base name
	broken string          // why the current file is not served; "" if it is
}

func newServersFile(m *machine) *serversFile {
	return &serversFile{Config: m.cfg, environ: m.environ, others: m.cfg.HasGuests(), on: sandbox.Probe(), warned: map[string]bool{}}
}

// HasGuests reports whether [Run] confines servers that name no sandbox profile, if the system
// supports it.
func (c Config) HasGuests() bool {
	return (c.Guests || !listenersOf(c).private()) && c.Functions == nil
}

// read reads the files. If others can call and the system supports it, servers without a sandbox
// profile are confined.
func (f *serversFile) read() (*serversfile.File, []serversfile.Warning, error) {
	servers, warnings, err := f.readAs(f.others)
	if err != nil {
		return nil, warnings, err
	}
	names, lack := guests(servers), f.on.Missing(sandbox.Policy{Sockets: sandbox.InternetSockets})
	if names == nil || lack == nil {
		return servers, warnings, nil
	}
	// The file does not ask for this sandbox, so servers also run without it.
	if servers, warnings, err = f.readAs(false); err != nil {
		return nil, warnings, err
	}
	return servers, append([]serversfile.Warning{{Text: fmt.Sprintf(notConfined, strings.Join(names, ", "), lack[0].Why)}}, warnings...), nil
}

// readAs reads the files, and also checks the sections that package serversfile leaves to others.
// It rejects native servers that are not part of this program.
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

// load reads the files. It records each warning only once.
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

// notConfined is the format of the warning that servers run without a sandbox, although others can
// call.
const notConfined = "not only you can call, and this system cannot confine servers without a profile: %s have the rights of this user (%s)"

// guests returns the names of the servers that are confined although the file names no sandbox
// profile for them.
func guests(servers *serversfile.File) (names []string) {
	for _, name := range servers.Names() {
		if s, _ := servers.Server(name); s.Box.Guest && !s.Disabled {
			names = append(names, name)
		}
	}
	return names
}

func (f *serversFile) breaks(why string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.broken = why
}

// notes returns what is wrong with the current file, except for rejected servers.
func (f *serversFile) notes() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.broken != "" {
		return append([]string{f.broken}, f.now...)
	}
	return slices.Clone(f.now)
}

// news returns the warnings since the last call of news.
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
