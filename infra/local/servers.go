package local

import (
	"errors"
	"path/filepath"
	"slices"
	"sync"

	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/shared/catalog"
)

// serversFile reads the servers file and its files of variables. Nothing else on this
// machine reads them. One goroutine at a time calls load.
type serversFile struct {
	Config
	environ environ

	mu     sync.Mutex
	warned map[string]bool // warnings that were given
	fresh  []string        // warnings that were not shown to people yet
	now    []string        // short warnings about the file as it was last read
	broken string          // why the file as it is now is not served, "" if it is
}

// load reads the files. It records a warning only the first time that it occurs.
func (f *serversFile) load() (*catalog.Catalog, error) {
	servers, warnings, err := catalog.LoadHere(f.Servers, f.environ.lookup, f.EnvFiles...)
	if err == nil {
		err = wiring.CheckSections(servers, f.environ.get)
	}
	if err != nil {
		return nil, err
	}
	var rejected []error
	for _, r := range servers.Rejected() {
		rejected = append(rejected, errors.New(r.String()))
	}
	if f.Strict && rejected != nil {
		return nil, errors.Join(rejected...)
	}
	var now []string
	for _, w := range warnings {
		f.warn(w.String())
		w.File = filepath.Base(w.File)
		now = append(now, w.String())
	}
	f.mu.Lock()
	f.now = now
	f.mu.Unlock()
	for _, err := range rejected {
		f.warn(err.Error())
	}
	return servers, nil
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
