package sqlitestore

import (
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"unsafe"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// disk stands between SQLite and the files of one folder. It sees every write and
// every sync, and can refuse or delay them.
type disk struct {
	mu    sync.Mutex
	calls []diskCall

	// before is called before each call. If it returns anything but 0, that is the
	// result of the call.
	before func(c diskCall) (code int32)
	lax    bool // the disk does not record calls
}

type diskCall struct {
	do   diskVerb
	file string // base name
	data []byte // of a write
	at   int64  // offset of a write, size of a truncate
}

type diskVerb string

const (
	diskWrite    diskVerb = "write"
	diskTruncate diskVerb = "truncate"
	diskSync     diskVerb = "sync"
	diskDelete   diskVerb = "delete"
)

// diskVFS is SQLite's name for all disks.
const diskVFS = "dormouse-test"

var disks struct {
	once    sync.Once
	mu      sync.Mutex
	real    uintptr // SQLite's own VFS
	folders map[string]*disk
	files   map[uintptr]openFile
	methods map[uintptr]uintptr // ours by SQLite's own
}

type openFile struct {
	disk *disk
	name string
	own  uintptr // SQLite's methods
}

// newDisk returns a disk for a folder. Open stores there with its options.
func newDisk(t testing.TB, dir string) (*disk, Options) {
	t.Helper()
	disks.once.Do(registerDisks)
	dir, err := filepath.EvalSymlinks(dir)
	commontest.OK(t, err)
	d := &disk{}
	disks.mu.Lock()
	defer disks.mu.Unlock()
	disks.folders[dir] = d
	t.Cleanup(func() {
		disks.mu.Lock()
		defer disks.mu.Unlock()
		delete(disks.folders, dir)
	})
	return d, Options{vfs: diskVFS, sync: func() error {
		if code := d.do(diskCall{do: diskSync, file: "store.db-wal"}, nil); code != sqlite3.SQLITE_OK {
			return unsynced{fmt.Errorf("the disk returns %d", code)}
		}
		return nil
	}}
}

// setBefore changes before while the disk is in use.
func (d *disk) setBefore(before func(c diskCall) int32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.before = before
}

func (d *disk) done() []diskCall {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.calls[:len(d.calls):len(d.calls)]
}

func (d *disk) do(c diskCall, run func() int32) int32 {
	if d == nil {
		return run()
	}
	d.mu.Lock()
	before := d.before
	d.mu.Unlock()
	if before != nil {
		if code := before(c); code != sqlite3.SQLITE_OK {
			return code
		}
	}
	code := int32(sqlite3.SQLITE_OK)
	if c.do != diskSync { // this machine stays up
		code = run()
	}
	if code == sqlite3.SQLITE_OK && !d.lax {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.calls = append(d.calls, c)
	}
	return code
}

// Code transpiled from C refers to functions and structures by numbers.

func pointer(p uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&p)) }

func number(f any) uintptr { return (*[2]uintptr)(unsafe.Pointer(&f))[1] }

func function[F any](n uintptr) F { return *(*F)(unsafe.Pointer(&struct{ uintptr }{n})) }

// copied returns a copy of a structure in memory outside Go's heap.
func copied[T any](tls *libc.TLS, from uintptr) uintptr {
	var size T
	to := libc.Xmalloc(tls, libc.Tsize_t(unsafe.Sizeof(size)))
	*(*T)(pointer(to)) = *(*T)(pointer(from))
	return to
}

func methods(p uintptr) *sqlite3.Tsqlite3_io_methods {
	return (*sqlite3.Tsqlite3_io_methods)(pointer(p))
}

func registerDisks() {
	tls := libc.NewTLS()
	sqlite3.Xsqlite3_initialize(tls)
	disks.folders, disks.files, disks.methods = map[string]*disk{}, map[uintptr]openFile{}, map[uintptr]uintptr{}
	disks.real = sqlite3.Xsqlite3_vfs_find(tls, 0)
	address := copied[sqlite3.Tsqlite3_vfs](tls, disks.real)
	own := (*sqlite3.Tsqlite3_vfs)(pointer(address))
	name, err := libc.CString(diskVFS)
	if err != nil {
		panic(err)
	}
	own.FzName, own.FpNext = name, 0
	own.FxOpen, own.FxDelete = number(diskOpenFile), number(diskDeleteFile)
	if code := sqlite3.Xsqlite3_vfs_register(tls, address, 0); code != sqlite3.SQLITE_OK {
		panic(code)
	}
}

func diskOpenFile(tls *libc.TLS, _, name, file uintptr, flags int32, out uintptr) int32 {
	own := (*sqlite3.Tsqlite3_vfs)(pointer(disks.real))
	code := function[func(*libc.TLS, uintptr, uintptr, uintptr, int32, uintptr) int32](own.FxOpen)(tls, disks.real, name, file, flags, out)
	if code != sqlite3.SQLITE_OK || name == 0 {
		return code
	}
	path := libc.GoString(name)
	disks.mu.Lock()
	defer disks.mu.Unlock()
	table := (*uintptr)(pointer(file)) // the first field of every file
	disks.files[file] = openFile{disks.folders[filepath.Dir(path)], filepath.Base(path), *table}
	if disks.methods[*table] == 0 {
		address := copied[sqlite3.Tsqlite3_io_methods](tls, *table)
		m := methods(address)
		m.FxWrite, m.FxTruncate, m.FxSync, m.FxClose = number(diskWriteFile), number(diskTruncateFile), number(diskSyncFile), number(diskCloseFile)
		disks.methods[*table] = address
	}
	*table = disks.methods[*table]
	return code
}

func fileOf(file uintptr) openFile {
	disks.mu.Lock()
	defer disks.mu.Unlock()
	return disks.files[file]
}

func diskCloseFile(tls *libc.TLS, file uintptr) int32 {
	f := fileOf(file)
	disks.mu.Lock()
	delete(disks.files, file)
	disks.mu.Unlock()
	return function[func(*libc.TLS, uintptr) int32](methods(f.own).FxClose)(tls, file)
}

func diskWriteFile(tls *libc.TLS, file, data uintptr, n int32, at int64) int32 {
	f := fileOf(file)
	c := diskCall{do: diskWrite, file: f.name, data: append([]byte(nil), unsafe.Slice((*byte)(pointer(data)), n)...), at: at}
	return f.disk.do(c, func() int32 {
		return function[func(*libc.TLS, uintptr, uintptr, int32, int64) int32](methods(f.own).FxWrite)(tls, file, data, n, at)
	})
}

func diskTruncateFile(tls *libc.TLS, file uintptr, size int64) int32 {
	f := fileOf(file)
	return f.disk.do(diskCall{do: diskTruncate, file: f.name, at: size}, func() int32 {
		return function[func(*libc.TLS, uintptr, int64) int32](methods(f.own).FxTruncate)(tls, file, size)
	})
}

func diskSyncFile(tls *libc.TLS, file uintptr, flags int32) int32 {
	f := fileOf(file)
	return f.disk.do(diskCall{do: diskSync, file: f.name}, func() int32 {
		return function[func(*libc.TLS, uintptr, int32) int32](methods(f.own).FxSync)(tls, file, flags)
	})
}

func diskDeleteFile(tls *libc.TLS, _, name uintptr, sync int32) int32 {
	path := libc.GoString(name)
	disks.mu.Lock()
	d := disks.folders[filepath.Dir(path)]
	disks.mu.Unlock()
	own := (*sqlite3.Tsqlite3_vfs)(pointer(disks.real))
	return d.do(diskCall{do: diskDelete, file: filepath.Base(path)}, func() int32 {
		return function[func(*libc.TLS, uintptr, uintptr, int32) int32](own.FxDelete)(tls, disks.real, name, sync)
	})
}
