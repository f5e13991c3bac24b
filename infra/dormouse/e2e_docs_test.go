//go:build e2e

package dormouse_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

var (
	// runBlock matches a block of commands that this test runs. The block follows a
	// comment "run", or is inside one if a reader of the page has done it already.
	runBlock = regexp.MustCompile("(?m)^<!-- run -->\n```sh\n((?s:.*?))\n```$|^<!-- run\n((?s:.*?))\n-->$")
	// expected matches the end of a line's comment: a text that the line's output
	// contains.
	expected = regexp.MustCompile(`#.*⇒ (.*)$`)
	// hostsHere matches a line that starts dormouse run. A reader types it in a second
	// terminal.
	hostsHere = regexp.MustCompile(`^(pkill -9 dormouse; )?dormouse run\b([^#]*)`)
)

// walk is a reader who types the commands of a page, in an empty folder.
type walk struct {
	*machine
	folder, home string
	address      string // of dormouse run, once it is up
}

// Each page of the documents is read from its top to its end, in a folder of its own. A line
// that fails, or whose output lacks what its comment expects, fails the test.
func TestE2EBlocksOfTheDocumentsRun(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	names := []string{"README.md"}
	err := filepath.WalkDir(filepath.Join(root, "docs"), func(path string, _ fs.DirEntry, err error) error {
		if name, _ := filepath.Rel(root, path); filepath.Ext(name) == ".md" {
			names = append(names, filepath.ToSlash(name))
		}
		return err
	})
	commontest.OK(t, err)
	walked := 0
	for _, name := range names {
		var lines []string
		for _, block := range runBlock.FindAllStringSubmatch(read(t, filepath.Join(root, name)), -1) {
			lines = append(lines, commands(block[1]+block[2])...)
		}
		if len(lines) == 0 {
			continue
		}
		walked++
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWalk(t)
			for _, line := range lines {
				w.types(line)
			}
		})
	}
	if walked < 2 {
		t.Errorf("only %d pages have blocks that run", walked)
	}
}

// commands returns the commands of a block: its lines. A line that ends in a backslash
// continues on the next one. A here-document (<<'END') belongs to the line before it.
func commands(block string) (all []string) {
	inside := false
	for line := range strings.SplitSeq(strings.ReplaceAll(block, "\\\n", " "), "\n") {
		if inside {
			all[len(all)-1] += "\n" + line
			inside = line != "END"
			continue
		}
		all = append(all, line)
		inside = strings.Contains(line, "<<'END'")
	}
	return all
}

func newWalk(t *testing.T) *walk {
	t.Helper()
	// npm's cache stays, so that nothing is fetched twice.
	cache, err := exec.CommandContext(t.Context(), "npm", "config", "get", "cache").Output()
	commontest.OK(t, err)
	w := &walk{machine: &machine{t: t, tmp: t.TempDir(), programs: os.Getenv(functionsVariable) == "process"}, folder: t.TempDir(), home: t.TempDir()}
	w.data = filepath.Join(w.folder, ".dormouse")
	w.env = []string{
		"HOME=" + w.home, "PATH=" + programs + ":" + os.Getenv("PATH"), "npm_config_cache=" + strings.TrimSpace(string(cache)),
		"TMPDIR=" + w.tmp, "DORMOUSE_CACHE=" + filepath.Join(stdioFolder, "cache"), "DISPLAY=", "WAYLAND_DISPLAY=",
	}
	t.Cleanup(w.end)
	return w
}

// types has a shell execute a line.
func (w *walk) types(line string) {
	w.t.Helper()
	if strings.TrimSpace(line) == "" {
		return
	}
	if run := hostsHere.FindStringSubmatch(line); run != nil {
		if run[1] != "" {
			w.killAll() // not the machines of other tests
		}
		w.hosts(run[2])
		return
	}
	if w.address != "" {
		line = strings.ReplaceAll(line, "127.0.0.1:8787", w.address)
	}
	out, err := w.shell(line).CombinedOutput()
	if err != nil {
		w.t.Fatalf("%s: %v\n%s", line, err, out)
	}
	if want := expected.FindStringSubmatch(line); want != nil && !strings.Contains(string(out), want[1]) {
		w.t.Fatalf("%s: the output lacks %q:\n%s", line, want[1], out)
	}
}

func (w *walk) shell(line string) *exec.Cmd {
	cmd := exec.Command("bash", "-euc", line) //nolint:noctx // ended by end
	cmd.Dir, cmd.Env = w.folder, append(os.Environ(), w.env...)
	return cmd
}

// hosts starts dormouse run on a free port, and returns when it has said that it is up.
func (w *walk) hosts(flags string) {
	w.t.Helper()
	w.execute(w.shell("exec dormouse run --listen 127.0.0.1:0 " + flags))
	w.awaitLine(w.log, patience, "dormouse run is up", func(line string) bool { return strings.HasPrefix(line, "Nothing ") })
	lines, _ := w.log.lines()
	i := slices.IndexFunc(lines, func(line string) bool { return strings.Contains(line, "http://127.0.0.1:") })
	if i < 0 {
		w.t.Fatalf("dormouse run names no address:\n%s", w.log.tail(20))
	}
	_, address, _ := strings.Cut(lines[i], "http://")
	w.address, _, _ = strings.Cut(address, "/")
}
