package local

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

// lookAgain is the time between two looks for new output in files.
const lookAgain = 250 * time.Millisecond

// keptOutput returns the function that reads the output that processes have written to files in
// folder; see [api.Options].Output.
func keptOutput(folder string) func(context.Context, api.Outputs, func(api.Output) error) error {
	return func(ctx context.Context, of api.Outputs, emit func(api.Output) error) error {
		read := map[string]int64{} // how many bytes of each file were passed on, by path
		for first := true; ; first = false {
			logs, err := keptLogs(folder, of.Of)
			if err != nil {
				return err
			}
			for _, k := range logs {
				text, err := k.unread(read, first)
				if err != nil {
					return err
				}
				if of.Since > 0 && time.Since(k.wrote) > of.Since {
					continue
				}
				if first && of.Lines > 0 {
					lines := slices.Collect(strings.Lines(text))
					text = strings.Join(lines[max(0, len(lines)-of.Lines):], "")
				}
				if text == "" {
					continue
				}
				if err := emit(api.Output{Server: k.server, Process: k.process, Shared: k.sessions, Began: k.began, Text: text}); err != nil {
					return err
				}
			}
			if !of.Follow || storage.Rest(ctx, lookAgain) != nil {
				return nil
			}
		}
	}
}

// keptLog is the saved output of one process. When the file at path is full, the runner renames it
// to path + ".old" and begins a new one.
type keptLog struct {
	server, path string
	process      string   // id of the process's session; if several sessions share the process, a name for all of them
	sessions     []string // ids of sessions that the process has served
	began, wrote time.Time
	size         int64
}

// keptLogs returns the logs of the server called wanted. If there is none, it returns the logs of
// the sessions whose ids begin with wanted. If wanted is "", it returns all logs. The logs are in
// the order in which their processes were started.
func keptLogs(folder, wanted string) ([]keptLog, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*", "*.log"))
	if err != nil {
		return nil, err
	}
	var all []keptLog
	for _, path := range files {
		name, at, ok := strings.Cut(strings.TrimSuffix(filepath.Base(path), ".log"), ".")
		began, err := strconv.ParseInt(at, 10, 64)
		info, gone := os.Stat(path)
		if ok && err == nil && gone == nil {
			process, sessions := served(filepath.Dir(path), name)
			all = append(all, keptLog{filepath.Base(filepath.Dir(path)), path, process, sessions, time.Unix(0, began).UTC(), info.ModTime(), info.Size()})
		}
	}
	match := func(k keptLog) bool { return wanted == "" || k.server == wanted }
	if !slices.ContainsFunc(all, match) {
		match = func(k keptLog) bool { return k.is(wanted) }
	}
	all = slices.DeleteFunc(all, func(k keptLog) bool { return !match(k) })
	slices.SortFunc(all, func(a, b keptLog) int { return cmp.Or(a.began.Compare(b.began), cmp.Compare(a.path, b.path)) })
	return all, nil
}

// is reports whether the process serves a session whose id begins with session.
func (k keptLog) is(session string) bool {
	return strings.HasPrefix(k.process, session) || slices.ContainsFunc(k.sessions, func(s string) bool {
		return strings.HasPrefix(s, session)
	})
}

// unread returns the whole lines that were written since the last call, and notes in passed how many
// bytes of the log's file it has returned so far. On the first call for a log, and after the runner
// has begun a new file, the lines of the .old file are included. If first is set, unread also returns
// an unfinished last line.
func (k keptLog) unread(passed map[string]int64, first bool) (string, error) {
	seen, known := passed[k.path]
	if known && k.size == seen {
		return "", nil
	}
	text, err := os.ReadFile(k.path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil // it was removed meanwhile
	}
	if err != nil {
		return "", err
	}
	older := []byte(nil)
	if !known || int64(len(text)) < seen { // the runner has renamed the file, so seen counts bytes of the .old file
		if older, err = os.ReadFile(k.path + ".old"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		older = older[min(int64(len(older)), seen):]
		seen = 0
	}
	fresh := string(text[seen:])
	if end := strings.LastIndexByte(fresh, '\n') + 1; !first {
		fresh = fresh[:end]
	}
	passed[k.path] = seen + int64(len(fresh))
	fresh = string(older) + fresh
	if fresh != "" && !strings.HasSuffix(fresh, "\n") {
		fresh += "\n"
	}
	return fresh, nil
}

// served returns the process that wrote the files called name, and the sessions that it has served.
// Older releases wrote no file NAME.served: there, name is the id of the process and of its only
// session.
func served(folder, name string) (process string, sessions []string) {
	text, _ := os.ReadFile(filepath.Join(folder, name+".served")) // it may be missing
	lines := strings.Fields(string(text))
	switch len(lines) {
	case 0:
		return name, []string{name}
	case 1:
		return lines[0], lines
	default:
		return lines[0], lines[1:]
	}
}
