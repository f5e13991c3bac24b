package dormouse

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// A repository is added at its newest commit, or at the one that is named; what it lacks is
// built. A failure leaves no clone behind.
func TestARepositoryIsAddedAtOneCommit(t *testing.T) {
	program, err := exec.LookPath("git")
	commontest.OK(t, err)
	t.Setenv("GIT_CONFIG_GLOBAL", os.DevNull)
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), program, append([]string{"-C", "origin", "-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "init.defaultBranch=main", "-c", "uploadpack.allowAnySHA1InWant=true"}, args...)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return strings.TrimSpace(string(out))
	}
	d := newDesk(t, `-- origin/package.json --
{"name": "tides", "main": "dist/index.js", "scripts": {"build": "build"}}
`)
	url := "git+file://" + filepath.Join(d.dir, "origin")
	if printed, code := d.run("add " + url); code != exitFailed || !strings.Contains(printed, "install git") {
		t.Errorf("without git: %d %s", code, printed)
	}
	if err := os.WriteFile("bin/npm", []byte("#!/bin/sh\n[ \"$1\" = run ] || exit 0\n/bin/mkdir dist && : >dist/index.js\n"), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	git("init", "-q")
	git("add", ".")
	git("commit", "-qm", "one")
	git("tag", "v1")
	first := git("rev-parse", "HEAD")[:12]
	d.file("origin/bin/broken", "#!/bin/sh\n", 0o700)
	d.file("origin/package.json", `{"name": "tides", "main": "dist/index.js", "scripts": {}}`, 0o600)
	git("add", ".")
	git("commit", "-qm", "two")
	second := git("rev-parse", "HEAD")[:12]
	commontest.OK(t, os.Symlink(program, filepath.Join("bin", "git")))
	home := fetched(repositories, filepath.Join(d.dir, "servers.json"), "")
	folders := func() []string {
		all, err := filepath.Glob(filepath.Join(home, "*"))
		commontest.OK(t, err)
		return all
	}
	if printed, code := d.run("add tides " + url + "#v1"); code != 0 || printed != "added tides "+first+": 4 tools in 3.2 s\n" {
		t.Errorf("%d %s", code, printed)
	}
	for line, want := range map[string]string{
		"add " + url:                        "names no program",
		"add broken " + url + "#v1":         "", // the folder of tides stays
		"add deep " + url + "#main:x":       "x",
		"add " + url + "-that-is-not-there": "fatal",
		"add up -- " + url + "#nowhere":     "nowhere",
		"add broken " + url + "#" + second:  "names no program",
	} {
		t.Run(line, func(t *testing.T) {
			if printed, code := d.run(line); code != exitFailed || !strings.Contains(printed, want) {
				t.Errorf("%s: %d %s", line, code, printed)
			}
		})
	}
	commontest.Same(t, []string{filepath.Join(home, "origin-"+first)}, folders())
	text, _ := d.run("cat servers.json")
	if want := strings.ReplaceAll(home, d.dir, "DIR") + "/origin-" + first + `/dist/index.js"`; !strings.Contains(text, want) || strings.Contains(text, "broken") {
		t.Error(text)
	}
	// Another servers file has a clone of its own. The last server of a file takes its clone away.
	for _, step := range []struct {
		line  string
		stays int
	}{{"add tides --servers other.json " + url + "#v1", 1}, {"add more " + url + "#v1", 1}, {"remove tides", 1}, {"remove more", 0}} {
		t.Run(step.line, func(t *testing.T) {
			if printed, code := d.run(step.line); code != 0 || len(folders()) != step.stays || strings.Contains(printed, "had fetched") != (step.stays == 0) {
				t.Errorf("%s: %d %s, %v stay", step.line, code, printed, folders())
			}
		})
	}
	commontest.EqualIn(t, "the clone of the other servers file is there", true, exists(filepath.Join(fetched(repositories, filepath.Join(d.dir, "other.json"), ""), "origin-"+first)))
}

// bundleOf writes a bundle of a server that asks for a key, and returns its hash.
func (d *desk) bundleOf(t *testing.T, file, name string) string {
	t.Helper()
	var out bytes.Buffer
	z := zip.NewWriter(&out)
	for path, text := range map[string]string{"manifest.json": `{"manifest_version": "0.3", "name": "` + name + `", "version": "2.0.0", "server": {"type": "python", "entry_point": "main.py", "mcp_config":
		{"command": "python3", "args": ["${__dirname}/main.py", "${user_config.folder}"], "env": {"KEY": "${user_config.key}", "TITLE": "${user_config.title}", "LIMIT": "${user_config.limit}"}}},
		"user_config": {"key": {"type": "string", "title": "Key", "description": "From your account.", "sensitive": true, "required": true}, "title": {"type": "string", "title": "Title"},
		"limit": {"type": "number", "title": "Limit", "default": 10, "max": 20}, "folder": {"type": "directory", "title": "Folder", "default": "${HOME}", "required": true}}}`, "main.py": ""} {
		w, err := z.Create(path)
		if err == nil {
			_, err = w.Write([]byte(text))
		}
		commontest.OK(t, err)
	}
	commontest.OK(t, z.Close())
	d.file(file, out.String(), 0o600)
	sum := sha256.Sum256(out.Bytes())
	return hex.EncodeToString(sum[:])
}

func TestABundleAsksForItsConfiguration(t *testing.T) {
	d := newDesk(t, "")
	hash := d.bundleOf(t, "notes.mcpb", "mcp-notes")
	d.bundleOf(t, "broken.mcpb", "broken")
	// Nobody is there to ask.
	printed, code := d.run("add notes.mcpb -e title=x")
	if want := "notes was not added: it needs key: dormouse add notes.mcpb -e key=… -e title=…"; code != exitFailed || !strings.Contains(printed, want) {
		t.Errorf("%d %s", code, printed)
	}
	if printed, code = d.run("add notes.mcpb -e key=hunter2 -e limit=21"); code != exitFailed || !strings.Contains(printed, "limit must be a number of 20 at most") {
		t.Errorf("%d %s", code, printed)
	}
	if printed, code = d.run("add broken.mcpb -e key=hunter2"); code != exitFailed || strings.Contains(printed, "hunter2") {
		t.Errorf("%d %s", code, printed)
	}
	if left, err := filepath.Glob(".local/share/dormouse/bundles/*/*"); err != nil || left != nil || exists("servers.json") || exists(".env") {
		t.Error(left, err)
	}
	var questions *[]string
	d.ask, questions = answering(map[string]string{"notes needs Folder [${HOME}]: ": "", "notes needs Key (From your account): ": "hunter2", "notes needs Title, or nothing: ": "a ${HOME} b"})
	printed, code = d.run("add notes.mcpb -e limit=5 -e OTHER=1")
	if want := "NOTES_KEY, NOTES_TITLE, OTHER of notes: in .env, which only you can read\nadded notes 2.0.0: 4 tools in 3.2 s\n"; code != 0 || printed != want {
		t.Errorf("%d %s", code, printed)
	}
	commontest.Same(t, []string{"notes needs Folder [${HOME}]: ", "notes needs Key (From your account): *", "notes needs Title, or nothing: "}, *questions)
	text, _ := d.run("cat servers.json")
	text = strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "[ ", "[")
	dir := strings.ReplaceAll(fetched(bundles, filepath.Join(d.dir, "servers.json"), ""), d.dir, "DIR") + "/notes-" + hash[:12]
	for _, want := range []string{`["` + dir + `/main.py", "${HOME}" ]`, `"KEY": "${NOTES_KEY}"`, `"LIMIT": "5"`, `"TITLE": "${NOTES_TITLE}"`, `"OTHER": "${OTHER}"`, `"cwd": "` + dir + `"`, `"secrets": ["KEY"]`} {
		commontest.Contains(t, "", want, text)
	}
	if text, _ := d.run("cat .env"); text != "-rw-------\nNOTES_KEY=hunter2\nNOTES_TITLE='a ${HOME} b'\nOTHER=1\n" {
		t.Error(text)
	}
	// The files are there once, for each name under which the bundle is added.
	d.ask = nil
	if printed, code := d.run("add again notes.mcpb -e key=hunter3 -e title=x"); code != 0 {
		t.Error(printed)
	}
	if all, err := filepath.Glob(".local/share/dormouse/bundles/*/*"); err != nil || len(all) != 1 {
		t.Error(all, err)
	}
	if printed, code := d.run("remove notes again"); code != 0 || !strings.Contains(printed, "removed what add had fetched: "+dir+"\n") {
		t.Errorf("%d %s", code, printed)
	}
	if all, err := filepath.Glob(".local/share/dormouse/bundles/*"); err != nil || all != nil {
		t.Error(all, err)
	}
}

// The bundle that a server.json names must be the one that was published.
func TestABundleOfTheRegistryHasItsHash(t *testing.T) {
	d := newDesk(t, "")
	hash := d.bundleOf(t, "notes.mcpb", "notes")
	published := hash
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/notes.mcpb":
			http.ServeFile(w, r, "notes.mcpb")
		case "/v0.1/servers/io.github.ada/notes/versions/latest":
			_, _ = fmt.Fprintf(w, `{"server": {"name": "io.github.ada/notes", "version": "2.0.0", "packages": [{"registryType": "mcpb", "identifier": "http://%s/notes.mcpb", "fileSha256": "%s", "transport": {"type": "stdio"}}]}}`, r.Host, published)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer server.Close()
	line := "add io.github.ada/notes -e key=hunter2 --registry " + server.URL
	published = strings.Repeat("0", 64)
	if printed, code := d.run(line); code != exitFailed || !strings.Contains(printed, "it is not what was published") {
		t.Errorf("%d %s", code, printed)
	}
	published = hash
	if printed, code := d.run(line); code != 0 || !strings.Contains(printed, "added notes 2.0.0: 4 tools") {
		t.Errorf("%d %s", code, printed)
	}
}

func TestAddSaysWhatIsWrongWithWhatWasPasted(t *testing.T) {
	d := newDesk(t, "")
	for line, want := range map[string]string{
		"add --transport http far https://mcp.example.com/mcp": "add needs no --transport: leave it out, with its value",
		"add mine npx -y x":         "put the command of the server after --",
		"add gone.py":               "there is no DIR/gone.py",
		"add src/gone.js":           "there is no DIR/src/gone.js",
		"add server.json":           "there is no DIR/server.json",
		"add io.github.ada/some.js": "registry",
	} {
		if printed, code := d.run(line); code == 0 || !strings.Contains(printed, want) {
			t.Errorf("%s: %d %s", line, code, printed)
		}
	}
}
