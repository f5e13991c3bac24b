package local

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/journal"
	"github.com/dormouse-mcp/dormouse/infra/local/watch"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
)

// lookAtSources is the time between two looks at a server's source files.
const lookAtSources = 300 * time.Millisecond

// watchSources begins to watch the source files of those servers that Config.Watch selects. When a
// file is saved, the server is started anew.
func (r *reloader) watchSources(names []string) {
	in, ok := r.m.functions.(*inprocess)
	if r.m.cfg.Watch == nil || !ok {
		return
	}
	for _, name := range names {
		if r.watched[name] || !r.m.cfg.Watch(name) {
			continue
		}
		if r.watched == nil {
			r.watched = map[string]bool{}
		}
		r.watched[name] = true
		sources := func() []string {
			s, ok := r.m.servers.Load().Server(name)
			if !ok || s.Disabled {
				return nil
			}
			return s.Sources()
		}
		seen, end := watch.Look(sources()), func() {}
		in.work.Go(func() {
			watch.Files(in.ctx, lookAtSources, seen, sources, func() {
				end() // stops the start that the previous save has begun, if it still goes on
				var ctx context.Context
				ctx, end = context.WithCancel(in.ctx)
				in.work.Go(func() { r.saved(ctx, in, name) })
			})
			end()
		})
	}
}

// watchedOf returns the names of the servers whose source files are watched.
func watchedOf(m *machine) (names []string) {
	for _, name := range m.served() {
		if s, _ := m.servers.Load().Server(name); m.cfg.Watch != nil && m.cfg.Watch(name) && s.Folder() != "" {
			names = append(names, name)
		}
	}
	return names
}

// saved is called after a source file of a server was saved. It ends the server's processes once
// their calls have ended, and starts a process from the new files. It tells the server's clients to
// read its lists again.
func (r *reloader) saved(ctx context.Context, in *inprocess, server string) {
	r.m.recorder.Record(journal.Event{Kind: journal.ServerSaved, Name: server})
	r.halt([]string{server}, "the save of a file of the server")
	r.forget(r.m.servers.Load(), []string{server})
	in.prepare(ctx, server, &preparation{over: make(chan struct{})})
}

// mostPlaces is how many source lines the terminal shows for one error.
const mostPlaces = 5

// place matches a file name with a line number, as in a Python traceback or a compiler's error.
var place = regexp.MustCompile(`File "([^"]+)", line (\d+)|((?:file://)?[^\s:("'<>=]+\.\w+)[:(](\d+)`)

// placesOf returns the lines in a server's source files that the last output of a process names,
// each as "main.py:3: import nothere".
func placesOf(m *machine, server, process string) []string {
	s, ok := m.servers.Load().Server(server)
	if !ok || m.cfg.Watch == nil {
		return nil
	}
	logs, err := keptLogs(m.folder.File(LogFolder), server)
	if err != nil {
		return nil
	}
	for _, k := range slices.Backward(logs) {
		if k.process != process {
			continue
		}
		text, err := os.ReadFile(k.path)
		if err != nil {
			return nil
		}
		return places(s, string(text[max(0, len(text)-maxOutput):]))
	}
	return nil
}

// maxOutput is how many bytes at the end of a process's output are searched.
const maxOutput = 16 << 10

// places returns the source lines of a server that the output of its process names. If there are more
// than mostPlaces, it returns the last ones.
func places(s serversfile.Server, output string) (all []string) {
	folder := s.Folder()
	for line := range strings.Lines(output) {
		for _, at := range place.FindAllStringSubmatch(line, -1) {
			file, number := ownFile(s, folder, strings.TrimPrefix(cmp.Or(at[1], at[3]), "file://")), cmp.Or(at[2], at[4])
			if file == "" {
				continue
			}
			all = append(all, strings.TrimSuffix(fmt.Sprintf("%s:%s: %s", file, number, lineOf(filepath.Join(folder, file), number)), ": "))
		}
	}
	for i := len(all) - 1; i >= 0; i-- { // of equal entries only the last one stays
		if slices.Contains(all[i+1:], all[i]) {
			all = slices.Delete(all, i, i+1)
		}
	}
	return all[max(0, len(all)-mostPlaces):]
}

// ownFile returns the path, relative to the server's folder, of a source file that a process
// names. If path is not a source file of the server, it returns "". A server with a host path runs
// a copy in its workspace, and so names that copy.
func ownFile(s serversfile.Server, folder, path string) string {
	if _, copied, ok := strings.Cut(path, "/workspace/"); ok && s.Box.HostPath != "" {
		path = filepath.Join(folder, copied)
	} else if !filepath.IsAbs(path) {
		path = filepath.Join(cmp.Or(s.Cwd, folder), path)
	}
	file, err := filepath.Rel(folder, path)
	if info, gone := os.Stat(path); err != nil || !filepath.IsLocal(file) || gone != nil || !info.Mode().IsRegular() ||
		slices.ContainsFunc(strings.Split(filepath.Dir(file), "/"), func(part string) bool { return part != "." && serversfile.IsBuilt(part) }) {
		return ""
	}
	return file
}

// lineOf returns a line of a file without the spaces around it, or "" if there is no such line.
func lineOf(path, number string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	n := 0
	if _, err := fmt.Sscan(number, &n); err != nil || n < 1 {
		return ""
	}
	lines := strings.Split(string(text), "\n")
	if n > len(lines) {
		return ""
	}
	return strings.TrimSpace(lines[n-1])
}
