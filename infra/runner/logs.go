package runner

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// What is kept of the stderr of a server's processes: the end of what each said, of
// the newest ones, for as long as somebody may come and ask.
const (
	maxLogHalf  = 64 << 10 // bytes; a process has two files of it, the older one whole
	maxLogs     = 64       // processes of a server
	maxLogAge   = 7 * 24 * time.Hour
	logEnding   = ".log"
	olderEnding = ".old"
)

// logFiles keeps what the processes of one server say on stderr in files, which are
// there when the process and the runner are gone: SESSION.NANOSECONDS.log, and
// .log.old for what was before. They are for dormouse logs, and for its user alone.
type logFiles struct {
	folder string
	log    *slog.Logger
}

// open makes the file of one process.
func (l logFiles) open(session string) io.WriteCloser {
	if err := os.MkdirAll(l.folder, 0o700); err != nil {
		l.log.Warn("the stderr of processes is not kept", "error", err)
		return nil
	}
	l.prune()
	name := fileName(session) + "." + strconv.FormatInt(time.Now().UnixNano(), 10) + logEnding
	return &logFile{path: filepath.Join(l.folder, name)}
}

// sharedEnding is that of a file beside the logs of a process that several sessions
// share: PROCESS.sessions, with a line for each.
const sharedEnding = ".sessions"

// maxShared bounds such a file, in bytes; over it the older half goes.
const maxShared = 64 << 10

// sharing notes which sessions share a process, so that its logs are found by each. A
// nil sharing notes nothing. One goroutine uses it.
type sharing struct {
	folder string
	log    *slog.Logger
	known  map[string]bool // sessions, by process
}

// note says that a session has a process.
func (s *sharing) note(process, session string) {
	if s == nil || process == session || s.known[process+"\x00"+session] {
		return
	}
	if len(s.known) >= maxShared {
		clear(s.known) // a line twice does no harm
	}
	s.known[process+"\x00"+session] = true
	if err := s.write(filepath.Join(s.folder, fileName(process)+sharedEnding), fileName(session)); err != nil {
		s.log.Warn("logs will not be found by a session that shares a process", "session_id", session, "error", err)
	}
}

func (s *sharing) write(path, session string) error {
	if err := os.MkdirAll(s.folder, 0o700); err != nil {
		return err
	}
	lines, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(lines) > maxShared {
		lines = lines[len(lines)/2:]
		lines = lines[bytes.IndexByte(lines, '\n')+1:]
	}
	// Another runner of the box may do the same, and a line be lost: it is only for who
	// looks for logs.
	temp := path + ".new"
	if err := os.WriteFile(temp, append(lines, session+"\n"...), 0o600); err != nil {
		return err
	}
	return os.Rename(temp, path)
}

// fileName is the session, or its digest if it could mean another file.
func fileName(session string) string {
	plain := func(c rune) bool {
		return c == '-' || c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
	}
	if session != "" && len(session) <= 128 && !strings.ContainsFunc(session, func(c rune) bool { return !plain(c) }) {
		return session
	}
	sum := sha256.Sum256([]byte(session))
	return hex.EncodeToString(sum[:16])
}

// prune removes the files of the oldest processes. Other runners do so too.
func (l logFiles) prune() {
	entries, err := os.ReadDir(l.folder)
	if err != nil {
		return
	}
	type file struct {
		name string
		used time.Time
	}
	var files []file
	for _, e := range entries {
		info, err := e.Info()
		switch {
		case err != nil:
		case filepath.Ext(e.Name()) == logEnding:
			files = append(files, file{e.Name(), info.ModTime()})
		case filepath.Ext(e.Name()) == sharedEnding && time.Since(info.ModTime()) > maxLogAge:
			_ = os.Remove(filepath.Join(l.folder, e.Name())) // as old as all the logs it is for
		case filepath.Ext(e.Name()) == statusEnding && time.Since(info.ModTime()) > maxLogAge:
			_ = os.Remove(filepath.Join(l.folder, e.Name())) // of a runner that was killed
		}
	}
	slices.SortFunc(files, func(a, b file) int { return cmp.Or(b.used.Compare(a.used), cmp.Compare(b.name, a.name)) })
	for i, f := range files {
		if i >= maxLogs-1 || time.Since(f.used) > maxLogAge {
			path := filepath.Join(l.folder, f.name)
			_ = os.Remove(path + olderEnding) // if not now, then by the next
			_ = os.Remove(path)
		}
	}
}

// logFile holds the end of what is written to it.
type logFile struct {
	path string
	f    *os.File
	left int
}

// Write begins a new file when one is full, in the place of the one before that.
func (l *logFile) Write(p []byte) (int, error) {
	if len(p) > l.left {
		if l.f != nil {
			_ = l.f.Close() // what is lost of it is lost
			_ = os.Rename(l.path, l.path+olderEnding)
		}
		f, err := os.OpenFile(l.path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
		if err != nil {
			l.f, l.left = nil, 0
			return 0, err
		}
		l.f, l.left = f, maxLogHalf
	}
	end := p[max(0, len(p)-l.left):]
	l.left -= len(end)
	if _, err := l.f.Write(end); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Close leaves the files where they are.
func (l *logFile) Close() error {
	if l.f == nil {
		return nil
	}
	return l.f.Close()
}
