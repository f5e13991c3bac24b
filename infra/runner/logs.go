package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"io"
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
		case filepath.Ext(e.Name()) == boardEnding && time.Since(info.ModTime()) > maxLogAge:
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
