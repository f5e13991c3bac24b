package snapshot

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// files describes a workspace. It maps a path to the contents of a file, to "/" for a
// folder, or to "-> target" for a link.
type files map[string]string

func (f files) put(t *testing.T, dir string) {
	t.Helper()
	for name, what := range f {
		path := filepath.Join(dir, name)
		commontest.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
		var err error
		switch {
		case what == "/":
			err = os.MkdirAll(path, 0o755)
		case len(what) > 3 && what[:3] == "-> ":
			err = os.Symlink(what[3:], path)
		default:
			err = os.WriteFile(path, []byte(what), 0o644)
		}
		commontest.OK(t, err)
	}
}

func workspace(t *testing.T, f files) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "workspace")
	commontest.OK(t, os.Mkdir(dir, 0o755))
	t.Cleanup(func() { open(dir) })
	f.put(t, dir)
	return dir
}

// open makes everything in a workspace removable.
func open(dir string) {
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, _ error) error {
		if d != nil && d.IsDir() {
			_ = os.Chmod(path, 0o700)
		}
		return nil
	})
}

func seen(t *testing.T, dir string) files {
	t.Helper()
	f := files{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if path == dir || errors.Is(err, fs.ErrPermission) {
			return nil
		}
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		switch d.Type() {
		case fs.ModeDir:
			f[name] = "/"
		case fs.ModeSymlink:
			to, err := os.Readlink(path)
			f[name] = "-> " + to
			return err
		case 0:
			text, err := os.ReadFile(path)
			f[name] = string(text)
			if errors.Is(err, fs.ErrPermission) {
				err = nil
			}
			return err
		default:
			f[name] = d.Type().String()
		}
		return nil
	})
	commontest.OK(t, err)
	return f
}

type memory struct {
	mu    sync.Mutex
	all   map[string][]byte
	saved time.Time
	puts  int
	fail  error
}

func (m *memory) Get(_ context.Context, key string) (io.ReadCloser, time.Time, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return nil, time.Time{}, m.fail
	}
	b, ok := m.all[key]
	if !ok {
		return nil, time.Time{}, fmt.Errorf("in memory: %w", ErrNone)
	}
	return io.NopCloser(bytes.NewReader(b)), m.saved, nil
}

func (m *memory) Put(_ context.Context, key string, _ int64, write func(io.Writer) error) error {
	var b bytes.Buffer
	if err := write(&b); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return m.fail
	}
	if m.all == nil {
		m.all = map[string][]byte{}
	}
	m.all[key], m.saved = b.Bytes(), time.Now()
	m.puts++
	return nil
}

func (m *memory) Delete(_ context.Context, key string, _ int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.all, key)
	return nil
}

// keeper makes a Keeper whose processes each have their own key.
func keeper(s Store, gen int64, l Limits) *Keeper {
	return NewKeeper(Config{Store: s, Generation: gen, Limits: l, Key: func(process string) string { return "box\x00" + process }})
}

// begin restores a new workspace and then stages it as a Provisioner does. It returns the
// folder, and the record of what is staged.
func (k *Keeper) begin(t *testing.T, f files) (dir, record string, err error) {
	t.Helper()
	dir = workspace(t, nil)
	names, err := k.Restore(t.Context(), "p", "p", dir)
	if err != nil {
		return dir, "", err
	}
	own, staged := map[string]bool{}, files{}
	for _, name := range names {
		own[name] = true
	}
	for name, what := range f {
		mine := own[name]
		for above := filepath.Dir(name); above != "."; above = filepath.Dir(above) {
			if info, err := os.Lstat(filepath.Join(dir, above)); err == nil && !info.IsDir() {
				mine = true
			}
		}
		if !mine {
			staged[name] = what
		}
	}
	staged.put(t, dir)
	return dir, recorded(t, dir, own), nil
}

// begins is begin where nothing fails.
func (k *Keeper) begins(t *testing.T, f files) (dir, record string) {
	t.Helper()
	dir, record, err := k.begin(t, f)
	must(t, err)
	return dir, record
}

// recorded writes down the present state of a workspace as staged, without the entries of
// the process.
func recorded(t *testing.T, dir string, own map[string]bool) string {
	t.Helper()
	type entry struct {
		Copy State `json:"c"`
	}
	all := map[string]entry{}
	for name := range own {
		all[name] = entry{}
	}
	for name := range seen(t, dir) {
		info, err := os.Lstat(filepath.Join(dir, name))
		must(t, err)
		if link, _ := os.Readlink(filepath.Join(dir, name)); !own[name] {
			all[name] = entry{StateOf(info, link)}
		}
	}
	text, err := json.Marshal(all)
	record := filepath.Join(t.TempDir(), "staged.json")
	must(t, err, os.WriteFile(record, text, 0o600))
	return record
}

// slept restores the saved workspace, stages it anew, and returns the folder.
func slept(t *testing.T, s Store, staged files) string {
	t.Helper()
	dir, _, err := keeper(s, 2, Limits{}).begin(t, staged)
	must(t, err)
	return dir
}

// lived stages a workspace, has a process work in it, and saves it.
func lived(t *testing.T, s Store, staged files, work func(dir string)) {
	t.Helper()
	k := keeper(s, 1, Limits{})
	dir, record := k.begins(t, staged)
	work(dir)
	must(t, k.Save(t.Context(), "p", "p", dir, record))
}

func must(t testing.TB, errs ...error) {
	t.Helper()
	commontest.OK(t, errors.Join(errs...))
}

// is reports an error if err is not want.
func is(t testing.TB, want, err error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
}
