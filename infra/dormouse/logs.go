package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/dormouse-mcp/dormouse/infra/local"
)

type logsCommand struct {
	Of    string `arg:"" name:"server|session" help:"Name of a server, or a session: the beginning of its id, as ps shows it, is enough."`
	Data  string `default:".dormouse" type:"path" help:"Folder that dormouse run was given."`
	Lines int    `short:"n" help:"Only so many of the last lines of each process."`
}

// Run prints the stderr output of processes, even after they and dormouse run have
// ended. The values of secret variables are hidden in it.
func (c *logsCommand) Run(t *terminal) error {
	return c.print(t.out, filepath.Join(c.Data, local.LogFolder))
}

func (c *logsCommand) print(out io.Writer, folder string) error {
	kept, err := keptLogs(folder, c.Of)
	if err != nil {
		return err
	}
	if len(kept) == 0 {
		return fmt.Errorf("nothing is kept of a server or session %s: it has not run lately, or with another --data folder", c.Of)
	}
	for _, k := range kept {
		text, err := k.text()
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(out, "==> %s, %s\n%s", k.server, k.whose(), lastLines(text, c.Lines)); err != nil {
			return err
		}
	}
	return nil
}

// keptLog is the kept output of one process.
type keptLog struct {
	server, path string
	process      string // its session, or the name of those that share it
	began        int64  // nanoseconds
}

// is reports whether a process serves the session whose id begins with session, alone
// or shared.
func (k keptLog) is(session string) bool {
	if strings.HasPrefix(k.process, session) {
		return true
	}
	text, err := os.ReadFile(filepath.Join(filepath.Dir(k.path), k.process+".sessions"))
	return err == nil && strings.Contains("\n"+string(text), "\n"+session)
}

// keptLogs returns the logs of a server or, if none has this name, of a session,
// oldest first.
func keptLogs(folder, of string) ([]keptLog, error) {
	var all []keptLog
	files, err := filepath.Glob(filepath.Join(folder, "*", "*.log"))
	if err != nil {
		return nil, err
	}
	for _, path := range files {
		process, at, ok := strings.Cut(strings.TrimSuffix(filepath.Base(path), ".log"), ".")
		began, err := strconv.ParseInt(at, 10, 64)
		if ok && err == nil {
			all = append(all, keptLog{filepath.Base(filepath.Dir(path)), path, process, began})
		}
	}
	match := func(k keptLog) bool { return k.server == of }
	if !slices.ContainsFunc(all, match) {
		match = func(k keptLog) bool { return k.is(of) }
	}
	all = slices.DeleteFunc(all, func(k keptLog) bool { return !match(k) })
	slices.SortFunc(all, func(a, b keptLog) int { return cmp.Compare(a.began, b.began) })
	return all, nil
}

// whose returns a title with the session, or the sessions, of a process.
func (k keptLog) whose() string {
	if k.process == "shared" || strings.HasPrefix(k.process, "principal-") {
		return "process " + k.process
	}
	return "session " + k.process
}

// text returns the whole kept output: the full file, and the one after it.
func (k keptLog) text() (string, error) {
	var text strings.Builder
	for _, path := range []string{k.path + ".old", k.path} {
		part, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		text.Write(part)
	}
	if s := text.String(); s != "" && !strings.HasSuffix(s, "\n") {
		text.WriteString("\n")
	}
	return text.String(), nil
}

// lastLines returns the last n lines of a text that ends with a newline, or all lines
// if n is zero.
func lastLines(text string, n int) string {
	if n <= 0 {
		return text
	}
	lines := strings.SplitAfter(text, "\n")
	lines = lines[:len(lines)-1]
	return strings.Join(lines[max(0, len(lines)-n):], "")
}
