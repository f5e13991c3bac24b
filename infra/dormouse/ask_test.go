package dormouse

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// answering returns an asker that gives these answers by question, and a list of the
// questions, with * behind those for secrets.
func answering(answers map[string]string) (asker, *[]string) {
	var questions []string
	return func(question string, secret bool) (string, error) {
		q := question
		if secret {
			q += "*"
		}
		questions = append(questions, q)
		if strings.Contains(q, "TYPED") {
			text, _ := os.ReadFile(".env")
			_ = os.WriteFile(".env", append(text, "OTHER=1\n"...), 0o600) // the test looks at the file
		}
		answer, ok := answers[question]
		if !ok {
			return "", io.EOF
		}
		return answer, nil
	}, &questions
}

func TestValuesThatServersLackAreAskedForOnceAndKept(t *testing.T) {
	const servers = `{"asks": {"command": "npx", "args": ["${input:my-key}", "${input:city}"]},
	"also": {"command": "npx", "args": ["${input:my-key}", "${HOME_TOWN}"]},
	"more": {"command": "npx", "args": ["${input:other}", []]}}}
`
	d := newDesk(t, `-- servers.json --
{"mcpServers": `+servers+`-- theirs.json --
{"inputs": [{"id": "new-key", "description": "The key", "password": true}, {"id": "city"}], "servers": {
	"asks": {"command": "npx", "args": ["${input:new-key}", "${input:city}"]}}}
-- folder --
`)
	var questions *[]string
	for _, test := range []struct {
		line, says string
		answers    map[string]string
		questions  []string
		kept       string
	}{
		{
			line: "run --data folder", says: "folder", // a file is no data folder
			answers: map[string]string{"asks needs my-key: ": "hunter2", "asks needs city: ": ""},
			// An empty answer is no value. dormouse run asks only for inputs, not for
			// variables such as HOME_TOWN.
			questions: []string{"asks needs my-key: ", "asks needs city: "}, kept: "MY_KEY=hunter2\n",
		},
		{
			line: "import theirs.json --only asks --replace", says: "NEW_KEY, CITY of asks: in .env",
			answers:   map[string]string{"asks needs NEW_KEY (The key): ": "hunter2", "asks needs CITY: ": "Bern"},
			questions: []string{"asks needs NEW_KEY (The key): *", "asks needs CITY: "}, kept: "MY_KEY=hunter2\nNEW_KEY=hunter2\nCITY=Bern\n",
		},
		{
			line: "add new -- npx -y new@1.0.0 ${HOME_TOWN}", says: "added new 1.0: 4 tools",
			answers:   map[string]string{"new needs HOME_TOWN: ": "Ulm"},
			questions: []string{"new needs HOME_TOWN: *"}, kept: "MY_KEY=hunter2\nNEW_KEY=hunter2\nCITY=Bern\nHOME_TOWN=Ulm\n",
		},
		{
			line: "add last -- npx -y last@1.0.0 ${NONE}", says: "last needs NONE: EOF",
			questions: []string{"last needs NONE: *"}, kept: "MY_KEY=hunter2\nNEW_KEY=hunter2\nCITY=Bern\nHOME_TOWN=Ulm\n",
		},
		{
			// While the user types, another program writes OTHER. Only what the failed add has written goes.
			line: "add broken -e GIVEN=1 -- npx -y broken@1.0.0 ${TYPED}", says: "it did not start", answers: map[string]string{"broken needs TYPED: ": "hunter2"},
			questions: []string{"broken needs TYPED: *"}, kept: "MY_KEY=hunter2\nNEW_KEY=hunter2\nCITY=Bern\nHOME_TOWN=Ulm\nOTHER=1\n",
		},
		{line: "run --data folder --json", says: "folder", kept: "MY_KEY=hunter2\nNEW_KEY=hunter2\nCITY=Bern\nHOME_TOWN=Ulm\nOTHER=1\n"},
	} {
		t.Run(test.line, func(t *testing.T) {
			d.ask, questions = answering(test.answers)
			printed, _ := d.run(test.line)
			if diff := cmp.Diff(test.questions, *questions); diff != "" || !strings.Contains(printed, test.says) || strings.Contains(printed, "hunter2") {
				t.Errorf("%s: %s; it asks (-want +got):\n%s", test.line, printed, diff)
			}
			if text, _ := d.run("cat .env"); text != "-rw-------\n"+test.kept {
				t.Errorf("%s keeps %s", test.line, text)
			}
		})
	}
}

// A question may name what a file to import says about a value.
func TestQuestionsOnATerminalShowNoSecretsAndControlNothing(t *testing.T) {
	t.Setenv("CI", "")
	master, tty, err := pty.Open()
	commontest.OK(t, err)
	defer func() { _, _ = master.Close(), tty.Close() }()
	null, err := os.Open(os.DevNull)
	commontest.OK(t, err)
	defer func() { _ = null.Close() }()
	if askOn(null, tty) != nil || askOn(tty, null) != nil {
		t.Error("it would ask where there is no terminal")
	}
	ask := askOn(tty, tty)
	_, err = io.WriteString(master, "Ulm\n")
	commontest.OK(t, err)
	if got, err := ask("Town: ", false); got != "Ulm" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	secret := make(chan string)
	go func() {
		got, err := ask(questionFor("s", serversfile.Variable{Name: "KEY", About: hostile}), true)
		if err != nil {
			got = err.Error()
		}
		secret <- got
	}()
	shown := until(t, master, "): ")
	_, err = io.WriteString(master, "hunter2\nnext\n")
	commontest.OK(t, err)
	commontest.Equal(t, "hunter2", <-secret)
	if shown += until(t, master, "\n"); strings.Contains(shown, "hunter2") || strings.ContainsAny(shown, "\x1b\a") {
		t.Errorf("it shows %q", shown)
	}
	if got, err := readLine(tty); got != "next" || err != nil {
		t.Errorf("what comes next is %q, %v", got, err)
	}
	// In CI, a command asks for the secret that it is there to take.
	go func() {
		got, _ := (&terminal{in: tty, err: tty}).secret("Secret: ", 10)
		_, _ = io.WriteString(tty, "end") // shown behind what was typed
		secret <- got
	}()
	until(t, master, "Secret: ")
	_, err = io.WriteString(master, "hunter3\n")
	commontest.OK(t, err)
	if shown := until(t, master, "end"); strings.Contains(shown, "hunter3") || <-secret != "hunter3" {
		t.Errorf("it shows %q", shown)
	}
}

// until reads what a terminal shows until it ends with a text.
func until(t *testing.T, master *os.File, end string) (shown string) {
	t.Helper()
	commontest.OK(t, master.SetReadDeadline(time.Now().Add(time.Minute)))
	for piece := make([]byte, 1); !strings.HasSuffix(shown, end); {
		if _, err := master.Read(piece); err != nil {
			t.Fatalf("%v after %q", err, shown)
		}
		shown += string(piece)
	}
	return shown
}

func TestACommandDoesNotOverwriteServersThatAnotherHasWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "servers.json")
	commontest.OK(t, os.WriteFile(path, []byte(`{"mcpServers": {"a": {"command": "a"}, "b": {"command": "b"}}}`), 0o600))
	late, err := fileFlag{path}.edit()
	commontest.OK(t, err)
	commontest.OK(t, late.setValue(late.env, "b", "KEY", "hunter2"))
	_, err = named{[]string{"a"}, fileFlag{path}}.change(func(f *edited, name string) error { return f.Remove(name) })
	commontest.OK(t, err)
	want, _ := os.ReadFile(path)
	commontest.EqualIn(t, "the file of the other command is overwritten", false, late.save() == nil)
	text, _ := os.ReadFile(path)
	commontest.Equal(t, string(want), string(text))
	if env, err := os.ReadFile(late.env.path); err == nil {
		t.Errorf(".env has %q", env)
	}
}
