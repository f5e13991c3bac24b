package local

import (
	"errors"
	"sync"

	"github.com/dormouse-mcp/dormouse/shared/catalog"
)

// serversFile reads the servers file and its files of variables. Nothing else on this
// machine reads them. One goroutine at a time calls load.
type serversFile struct {
	Config
	environ environ

	mu     sync.Mutex
	warned map[string]bool // warnings that were given
	fresh  []string        // those that have yet to be shown to people
}

// load gives each warning once.
func (f *serversFile) load() (*catalog.Catalog, error) {
	servers, warnings, err := catalog.LoadHere(f.Servers, f.environ.lookup, f.EnvFiles...)
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
	for _, w := range warnings {
		f.warn(w.String())
	}
	for _, err := range rejected {
		f.warn(err.Error())
	}
	return servers, nil
}

// news returns the warnings since the last time.
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
