package dormouse

import (
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestAddSaysWhereTheCommandOfAServerGoes(t *testing.T) {
	s := newShell(t)
	const where = "put the command of the server after --"
	if got, code := s.run("add everything npx -y server"); code != exitUsage || !strings.Contains(got, where) {
		t.Errorf("exit code %d, %s", code, got)
	}
	if got, code := s.run("add everything --nothing -- npx -y server"); code != exitUsage || strings.Contains(got, where) {
		t.Errorf("exit code %d, %s", code, got)
	}
}

func TestWordsThatPeopleTryDoWhatTheyMean(t *testing.T) {
	s := newShell(t)
	help, code := s.run("")
	if want, _ := s.run("--help"); code != exitDone || help != want || !strings.Contains(help, "\nStart here\n") || strings.Count(help, "\n    dormouse ") != 3 {
		t.Errorf("dormouse alone: exit code %d, %s", code, help)
	}
	for line, means := range map[string]string{
		"ls --help": "list --help", "rm --help": "remove --help", "up --help": "run --help", "serve --help": "run --help", "init": "add",
		"help": "--help", "help keys": "keys --help", "help keys create": "keys create --help", "help nothing": "nothing",
	} {
		t.Run(line, func(t *testing.T) {
			want, as := s.run(means)
			if got, code := s.run(line); got != want || code != as {
				t.Errorf("dormouse %s: exit code %d, %s", line, code, got)
			}
		})
	}
	for _, words := range [][]string{{"--listen=9000"}, {"--port=9000"}, {"--listen=127.0.0.1:9000"}, {"-p", "9000"}} {
		var c commands
		_, err := kong.Must(&c, kong.Name("dormouse"), kong.Vars{"version": "", "platform": ""}).Parse(append([]string{"run", "/etc/other.json"}, words...))
		if err != nil || c.Run.Listen != "127.0.0.1:9000" || c.Run.Servers != "/etc/other.json" || len(c.Run.Names) > 0 {
			t.Errorf("%s: %q of %s for %q, %v", words, c.Run.Listen, c.Run.Servers, c.Run.Names, err)
		}
	}
}

func TestStatesAreColoredOnATerminal(t *testing.T) {
	const table = "NAME  STATE    WHY\na     awake    x\nb     failed   awake in its text\n✗ disk  1 GB\n"
	const want = "NAME  STATE    WHY\na     \x1b[32mawake\x1b[0m    x\nb     \x1b[31mfailed\x1b[0m   \x1b[32mawake\x1b[0m in its text\n\x1b[31m✗\x1b[0m disk  1 GB\n"
	commontest.Equal(t, want, string(tinted([]byte(table))))
}
