package dormouse

import (
	"regexp"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

func TestHelpIsAlsoACommand(t *testing.T) {
	s := newShell(t)
	for _, test := range [][2]string{{"help", "--help"}, {"help keys", "keys --help"}, {"help keys create", "keys create --help"}} {
		want, _ := s.run(test[1])
		if got, code := s.run(test[0]); got != want || code != exitDone || !strings.HasPrefix(got, "Usage: dormouse") {
			t.Errorf("dormouse %s: exit code %d, %s", test[0], code, got)
		}
	}
	if got, code := s.run("help nothing"); code != exitUsage || !strings.Contains(got, "unexpected argument nothing") {
		t.Errorf("dormouse help nothing: exit code %d, %s", code, got)
	}
}

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

// docs/cli.md has each default.
func TestHelpHasTheDefaultOfEachFlag(t *testing.T) {
	s := newShell(t)
	parser := kong.Must(&commands{}, kong.Name("dormouse"), kong.Vars{"version": "", "platform": ownPlatform()})
	words := regexp.MustCompile(`\s+`)
	for _, n := range leaves(parser.Model.Node) {
		_, line, _ := strings.Cut(n.FullPath(), " ")
		help, _ := s.run(line + " --help")
		help = words.ReplaceAllString(help, "")
		for _, f := range flags(n) {
			if f.Default != "" && !f.IsBool() && !strings.Contains(help, f.Default) {
				t.Errorf("dormouse %s --help does not say that --%s is %s by default", line, f.Name, f.Default)
			}
		}
	}
}
