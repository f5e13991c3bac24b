package runner

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/proc"
)

// Limits of the stderr logs of a server's processes. The ends of the newest logs are
// kept while an operator may still ask for them.
const (
	maxLogHalf  = 64 << 10 // bytes; a process has two such files, and the older one is full
	maxLogs     = 64       // processes of a server
	pruneEach   = 16       // processes, of which the older ones may be more than maxLogs
	maxLogAge   = 7 * 24 * time.Hour
	logEnding   = ".log"
	olderEnding = ".old"
)

// logFiles keeps the stderr of one server's processes in files that outlive the process
// and the runner: NAME.NANOSECONDS.log, and .log.old for the part before. NAME is that of
// [proc.LogName]. The command dormouse logs reads them. Only the user of the runner can read
// them.
type logFiles struct {
	folder string
	log    *slog.Logger
	opened atomic.Int64
}

func (l *logFiles) open(session string) io.WriteCloser {
	if err := os.MkdirAll(l.folder, 0o700); err != nil {
		l.log.Warn("the stderr of processes is not kept", "error", err)
		return nil
	}
	if l.opened.Add(1)%pruneEach == 1 {
		l.prune()
	}
	name := proc.LogName(session) + "." + strconv.FormatInt(time.Now().UnixNano(), 10) + logEnding
	return &logFile{path: filepath.Join(l.folder, name), process: session}
}

// sharedEnding is the ending of a file beside the logs of a process: NAME.served. Its first
// line is the process, and the others are the sessions that share it, if several do.
const sharedEnding = ".served"

// maxShared limits a file with sharedEnding, in bytes. A longer file loses its older
// half.
const maxShared = 64 << 10

// sharing records which sessions share a process, so that dormouse logs finds the logs
// by each of them. A nil sharing records nothing. Only one goroutine may use it.
type sharing struct {
	folder string
	log    *slog.Logger
	known  map[string]bool // sessions, by process
}

func (s *sharing) note(process, session string) {
	if s == nil || process == session || s.known[process+"\x00"+session] {
		return
	}
	if len(s.known) >= maxShared {
		clear(s.known) // a repeated line does no harm
	}
	s.known[process+"\x00"+session] = true
	if err := note(served(s.folder, process), process, session); err != nil {
		s.log.Warn("logs will not be found by a session that shares a process", "session_id", session, "error", err)
	}
}

func served(folder, process string) string {
	return filepath.Join(folder, proc.LogName(process)+sharedEnding)
}

// note writes the name of a process to the file at path, if it is new, and a session that
// shares the process, unless it is "".
func note(path, process, session string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if session == "" {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		if err == nil {
			_, err = f.WriteString(oneLine(process) + "\n")
			err = errors.Join(err, f.Close())
		}
		return err
	}
	lines, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(lines) == 0 {
		lines = []byte(oneLine(process) + "\n")
	}
	if len(lines) > maxShared {
		head, rest := lines[:bytes.IndexByte(lines, '\n')+1], lines[len(lines)/2:]
		lines = slices.Concat(head, rest[bytes.IndexByte(rest, '\n')+1:])
	}
	lines = append(lines, oneLine(session)+"\n"...)
	// Another runner of the box may write at the same time, so a line may be lost. Then
	// only the search for logs misses a session.
	temp := path + ".new"
	if err := os.WriteFile(temp, lines, 0o600); err != nil {
		return err
	}
	return os.Rename(temp, path)
}

// oneLine returns the name of a process or session, or its digest if it is not plain.
func oneLine(name string) string {
	plain := func(c rune) bool {
		return c == '-' || c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
	}
	if name != "" && len(name) <= 128 && !strings.ContainsFunc(name, func(c rune) bool { return !plain(c) }) {
		return name
	}
	return proc.LogName(name)
}

// prune removes the files of the oldest processes. Other runners may do so at the same
// time.
func (l *logFiles) prune() {
	entries, err := os.ReadDir(l.folder)
	if err != nil {
		return
	}
	type file struct {
		name string
		used time.Time
	}
	var files []file
	logs := map[string]int{} // how many logs there are, by the name of their process
	for _, e := range entries {
		if name, rest, _ := strings.Cut(e.Name(), "."); strings.HasSuffix(rest, logEnding) {
			logs[name]++
		}
	}
	for _, e := range entries {
		name, _, _ := strings.Cut(e.Name(), ".")
		info, err := e.Info()
		switch {
		case err != nil:
		case filepath.Ext(e.Name()) == logEnding:
			files = append(files, file{e.Name(), info.ModTime()})
		case slices.Contains([]string{sharedEnding, ".sessions"}, filepath.Ext(e.Name())) && time.Since(info.ModTime()) > maxLogAge && logs[name] == 0:
			_ = os.Remove(filepath.Join(l.folder, e.Name())) // the logs that it belongs to are gone; older releases wrote .sessions
		case filepath.Ext(e.Name()) == statusEnding && time.Since(info.ModTime()) > maxLogAge:
			_ = os.Remove(filepath.Join(l.folder, e.Name())) // a runner that was killed has left it
		}
	}
	slices.SortFunc(files, func(a, b file) int { return cmp.Or(b.used.Compare(a.used), cmp.Compare(b.name, a.name)) })
	for i, f := range files {
		if i >= maxLogs-1 || time.Since(f.used) > maxLogAge {
			path := filepath.Join(l.folder, f.name)
			_ = os.Remove(path + olderEnding) // the next prune tries again
			_ = os.Remove(path)
			name, _, _ := strings.Cut(f.name, ".")
			if logs[name]--; logs[name] == 0 {
				l.forget(name)
			}
		}
	}
}

// forget removes the file that says whose logs have a name, unless sessions share the
// process: they may need it for its next log.
func (l *logFiles) forget(name string) {
	path := filepath.Join(l.folder, name+sharedEnding)
	if lines, err := os.ReadFile(path); err == nil && bytes.Count(lines, []byte("\n")) < 2 {
		_ = os.Remove(path)
	}
}

// logFile keeps the end of what is written to it.
type logFile struct {
	path    string
	process string
	f       *os.File
	left    int
}

// Write begins a new file when the present one is full, and keeps the full one as the
// older file.
func (l *logFile) Write(p []byte) (int, error) {
	if len(p) > l.left {
		if l.f != nil {
			_ = l.f.Close() // an error is ignored
			_ = os.Rename(l.path, l.path+olderEnding)
		}
		_ = note(served(filepath.Dir(l.path), l.process), l.process, "") // if the note fails, the log is still found by the name of its server
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

// Close closes the file and keeps it.
func (l *logFile) Close() error {
	if l.f == nil {
		return nil
	}
	return l.f.Close()
}
