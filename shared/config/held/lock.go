package held

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/dormouse-mcp/dormouse/shared/core/durable"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// Lock is the lock file of a servers file: the accepted tools of its servers, in a form that
// people review and keep beside it. It is safe for concurrent use in one process.
type Lock struct {
	path   string
	writer bool

	mu   sync.Mutex
	info fs.FileInfo // of the file as it was read; nil: there is none
	read bool
	file lockFile
}

type lockFile struct {
	Version int               `json:"version"`
	Tools   map[string]locked `json:"tools"` // by server
}

type locked struct {
	Source string            `json:"source"`
	Tools  []json.RawMessage `json:"tools"`
	tools  []tool            // the same tools, each on one line of JSON
}

const lockVersion = 1

// LockOf returns the lock of a servers file: servers.lock.json beside servers.json. The lock file
// need not exist. If writer is set, a Keeper also writes newly accepted tools to the lock file, if it
// can.
func LockOf(servers string, writer bool) *Lock {
	return &Lock{path: strings.TrimSuffix(servers, filepath.Ext(servers)) + ".lock.json", writer: writer}
}

// Path returns where the file is, or would be.
func (l *Lock) Path() string { return l.path }

// entry returns what the file has about a server. It reads the file again if the file has changed.
func (l *Lock) entry(server string) (e locked, ok bool, err error) {
	if l == nil {
		return e, false, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.load(); err != nil {
		return e, false, err
	}
	e, ok = l.file.Tools[server]
	return e, ok, nil
}

// load reads the file if it has changed. The caller holds mu.
func (l *Lock) load() error {
	info, err := os.Stat(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		l.info, l.file, l.read = nil, lockFile{}, true
		return nil
	}
	if err == nil && l.read && l.info != nil && os.SameFile(l.info, info) && l.info.Size() == info.Size() && l.info.ModTime().Equal(info.ModTime()) {
		return nil
	}
	var text []byte
	if err == nil {
		text, err = os.ReadFile(l.path)
	}
	file := lockFile{}
	if err == nil {
		err = json.Unmarshal(text, &file)
	}
	if err == nil && file.Version != lockVersion {
		err = errors.New("this release cannot read its version")
	}
	if err != nil {
		if file, ok := errors.AsType[*fs.PathError](err); ok {
			err = file.Err // clients get the text
		}
		return storage.Errorf(storage.Invalid, "%s cannot be read (%v), so no tool is known to be accepted; mend it, or remove it and the store's list counts", filepath.Base(l.path), err)
	}
	for name, e := range file.Tools {
		e.tools = []tool{}
		for _, t := range e.Tools {
			e.tools = append(e.tools, string(wire.Compact(t)))
		}
		file.Tools[name] = e
	}
	l.info, l.file, l.read = info, file, true
	return nil
}

func (l *Lock) writes() bool { return l != nil && l.writer }

func (l *Lock) put(server string, e locked) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.load(); err != nil {
		return err
	}
	for _, t := range e.tools {
		e.Tools = append(e.Tools, json.RawMessage(t))
	}
	file := lockFile{Version: lockVersion, Tools: map[string]locked{server: e}}
	for name, other := range l.file.Tools {
		if name != server {
			file.Tools[name] = other
		}
	}
	var text bytes.Buffer
	out := json.NewEncoder(&text)
	out.SetEscapeHTML(false)
	out.SetIndent("", "  ")
	if err := out.Encode(file); err != nil {
		return err
	}
	l.read = false
	return durable.WriteFile(l.path, text.Bytes(), 0o644)
}
