package runner

import (
	"bytes"
	"cmp"
	"errors"
	"io"
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

// Limits of the logs with the stderr of a server's processes.
const (
	maxLogHalf  = 64 << 10           // bytes; a process has up to two files, and the older one is full
	maxLogs     = 64                 // how many logs are kept for each server
	pruneEach   = 16                 // old logs are removed at each 16th start of a process
	maxLogAge   = 7 * 24 * time.Hour // older logs are removed
	logEnding   = ".log"
	olderEnding = ".old"
)

// logFiles stores the stderr of one server's processes in files that remain after the process and
// the runner have ended: NAME.NANOSECONDS.log, and .log.old for the output before it. NAME is the
// result of [proc.LogName]. Only the user of the runner can read the files.
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

// sharedEnding is the suffix of a file beside the logs of a process: NAME.served. The first line
// is the name of the process, and the other lines are the sessions that share it.
const sharedEnding = ".served"

// maxShared is how many bytes a file with sharedEnding may have. When it gets longer, it
// begins anew.
const maxShared = 64 << 10

// sharing records which sessions share a process, so that dormouse logs finds the logs of a
// process by each of its sessions. A nil sharing records nothing. Only one goroutine may use it.
type sharing struct {
	folder string
	log    *slog.Logger
	known  map[string]bool // the pairs of process and session that were recorded
}

func (s *sharing) note(process, session string) {
	if s == nil || process == session || s.known[process+"\x00"+session] {
		return
	}
	if len(s.known) >= maxShared {
		clear(s.known) // sessions may now be written to the file again, which does no harm
	}
	s.known[process+"\x00"+session] = true
	if err := note(served(s.folder, process), process, session); err != nil {
		s.log.Warn("logs will not be found by a session that shares a process", "session_id", session, "error", err)
	}
}

func served(folder, process string) string {
	return filepath.Join(folder, proc.LogName(process)+sharedEnding)
}

// note records in the file at path that a session shares a process. If the file is empty, note first
// writes the name of the process into it. If session is "", note writes only that name.
func note(path, process, session string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	mode := os.O_CREATE | os.O_WRONLY | os.O_APPEND
	info, err := os.Stat(path)
	text := ""
	if err != nil || info.Size() == 0 || info.Size() > maxShared {
		mode, text = mode|os.O_TRUNC, oneLine(process)+"\n"
	}
	if session != "" {
		text += oneLine(session) + "\n"
	}
	f, err := os.OpenFile(path, mode, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// oneLine returns the name of a process or session, or its digest if the name has other characters
// than letters, digits, "-" and "_".
func oneLine(name string) string {
	plain := func(c rune) bool {
		return c == '-' || c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
	}
	if name != "" && len(name) <= 128 && !strings.ContainsFunc(name, func(c rune) bool { return !plain(c) }) {
		return name
	}
	return proc.LogName(name)
}

// prune removes the logs of all but the newest processes, and logs that are older than maxLogAge. It
// also removes files that belong to no log or runner any more.
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
	logs := map[string]int{} // the number of logs, by the name of their process
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
		case filepath.Ext(e.Name()) == sharedEnding && time.Since(info.ModTime()) > maxLogAge && logs[name] == 0:
			_ = os.Remove(filepath.Join(l.folder, e.Name())) // there are no logs of this process any more
		case filepath.Ext(e.Name()) == statusEnding && time.Since(info.ModTime()) > maxLogAge:
			_ = os.Remove(filepath.Join(l.folder, e.Name())) // the file of a runner that was killed
		}
	}
	slices.SortFunc(files, func(a, b file) int { return cmp.Or(b.used.Compare(a.used), cmp.Compare(b.name, a.name)) })
	for i, f := range files {
		if i >= maxLogs-1 || time.Since(f.used) > maxLogAge {
			path := filepath.Join(l.folder, f.name)
			_ = os.Remove(path + olderEnding) // after an error, the next prune tries again
			_ = os.Remove(path)
			name, _, _ := strings.Cut(f.name, ".")
			if logs[name]--; logs[name] == 0 {
				l.forget(name)
			}
		}
	}
}

// forget removes the file NAME.served of a process whose logs were all removed. forget keeps a
// file that lists sessions, for the next log of the process.
func (l *logFiles) forget(name string) {
	path := filepath.Join(l.folder, name+sharedEnding)
	if lines, err := os.ReadFile(path); err == nil && bytes.Count(lines, []byte("\n")) < 2 {
		_ = os.Remove(path)
	}
}

// logFile stores the end of what is written to it.
type logFile struct {
	path    string
	process string
	f       *os.File
	left    int
}

// Write writes p. If the present file is full, Write renames it to the older file, and begins a
// new one.
func (l *logFile) Write(p []byte) (int, error) {
	if len(p) > l.left {
		if l.f != nil {
			_ = l.f.Close() // an error does not matter, this is only a log
			_ = os.Rename(l.path, l.path+olderEnding)
		}
		_ = note(served(filepath.Dir(l.path), l.process), l.process, "") // after an error, dormouse logs finds the log only by the name of its server
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

func (l *logFile) Close() error {
	if l.f == nil {
		return nil
	}
	return l.f.Close()
}
