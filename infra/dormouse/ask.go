package dormouse

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/dormouse-mcp/dormouse/infra/internal/serversedit"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
)

// asker asks the user a question. The terminal does not show the answer if it is secret. An empty
// answer means no value.
type asker func(question string, secret bool) (answer string, err error)

// askOn returns an asker that uses a terminal. It returns nil if in or out is no terminal, and in
// CI.
func askOn(in, out *os.File) asker {
	if !term.IsTerminal(int(in.Fd())) || !term.IsTerminal(int(out.Fd())) || os.Getenv("CI") != "" {
		return nil
	}
	return func(question string, secret bool) (string, error) { return ask(in, onTerminal(out), question, secret) }
}

func ask(in *os.File, out io.Writer, question string, secret bool) (string, error) {
	if secret {
		show, err := hideInput(in)
		if err != nil {
			return "", err
		}
		defer func() {
			show()
			_, _ = io.WriteString(out, "\n") // the user's Enter was not shown either
		}()
	}
	if _, err := io.WriteString(out, question); err != nil {
		return "", err
	}
	return readLine(in)
}

// secret asks the user for a secret. Without t.ask it reads standard input: a line of a terminal,
// which does not show it, or the whole of a file or pipe. The command needs the secret, so it asks at
// a terminal also in CI. Of a file or pipe it reads at most limit+1 bytes, so that the caller can tell
// that the secret is too long.
func (t *terminal) secret(question string, limit int64) (string, error) {
	if t.ask != nil {
		return t.ask(question, true)
	}
	if in, ok := t.in.(*os.File); ok && term.IsTerminal(int(in.Fd())) {
		return ask(in, t.err, question, true)
	}
	value, err := io.ReadAll(io.LimitReader(t.in, limit+1))
	return strings.TrimRight(string(value), "\r\n"), err
}

// readLine reads one line, and not more: another reader may read the next line.
func readLine(in io.Reader) (string, error) {
	var line []byte
	for char := make([]byte, 1); ; {
		if _, err := io.ReadFull(in, char); err != nil {
			return "", err
		}
		if char[0] == '\n' {
			return strings.TrimSpace(string(line)), nil
		}
		line = append(line, char[0])
	}
}

// hideInput makes a terminal hide what the user types, until show is called. Ctrl-C also shows
// input again, and exits.
func hideInput(in *os.File) (show func(), err error) {
	restore, err := changeModes(in, func(modes *unix.Termios) { modes.Lflag &^= unix.ECHO })
	if err != nil {
		return nil, err
	}
	interrupted, done := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(interrupted, os.Interrupt)
	go func() {
		select {
		case <-interrupted:
			restore()
			os.Exit(exitFailed)
		case <-done:
		}
	}()
	return func() {
		signal.Stop(interrupted)
		close(done)
		restore()
	}, nil
}

// variables is the file .env beside a servers file, which a command may add to.
type variables struct {
	*serversedit.Env
	path   string
	before []byte
}

// openVariables reads the .env beside a servers file. A missing file counts as empty.
func openVariables(servers string) (*variables, error) {
	path, err := filepath.Abs(servers)
	if err != nil {
		return nil, err
	}
	v := &variables{path: filepath.Join(serversfile.FolderOf(path), ".env")}
	if v.before, err = readText(v.path, serversfile.MaxFile); err != nil {
		return nil, err
	}
	v.Env = serversedit.NewEnv(v.before, os.LookupEnv)
	return v, nil
}

// save makes the changes in the file as it is now, and keeps what other programs have written there.
func (v *variables) save() error {
	now, err := readText(v.path, serversfile.MaxFile)
	if err != nil || bytes.Equal(v.Onto(now), now) {
		return err
	}
	return writeText(v.path, v.Onto(now), 0o600)
}

// sayKept prints the names of the variables that were added for a server.
func (v *variables) sayKept(out io.Writer, server string) {
	if kept := v.Added(); len(kept) > 0 {
		_, _ = fmt.Fprintf(out, "%s of %s: in .env, which only you can read\n", strings.Join(kept, ", "), server)
	}
}

// asked selects the missing values that fill asks for.
type asked struct {
	servers  string   // path of the servers file
	envFiles []string // files of variables, as for dormouse run
	only     []string // names of servers; nil for all
	all      bool     // ask for every missing variable, not only for those that the file declares as inputs
}

// fill asks the user for values that servers lack, and saves them in .env. The result kept has the
// names of the variables. It does nothing if it cannot ask, or if it cannot read the servers
// file: later readers of the file report that error.
func (t *terminal) fill(a asked) (kept []string, err error) {
	if t.ask == nil {
		return nil, nil
	}
	file, _, err := serversfile.LoadHere(a.servers, os.LookupEnv, a.envFiles...)
	if err != nil {
		return nil, nil //nolint:nilerr // the next reader of the file reports the error
	}
	for _, r := range file.Rejected() {
		if a.only != nil && !slices.Contains(a.only, r.Name) {
			continue
		}
		lacks := r.Lacks()
		if !a.all {
			lacks = slices.DeleteFunc(lacks, func(v serversfile.Variable) bool { return v.Input == "" })
		}
		some, err := t.askFor(a.servers, r.Name, lacks)
		if kept = append(kept, some...); err != nil {
			return kept, err
		}
	}
	return kept, nil
}

// askFor asks the user for values of a server, and saves them in the .env beside the servers file.
func (t *terminal) askFor(servers, server string, lacks []serversfile.Variable) (kept []string, err error) {
	env, err := openVariables(servers)
	if err != nil || t.ask == nil {
		return nil, err
	}
	for _, v := range lacks {
		if _, known := env.Lookup(v.Name); known { // the user has given it for another server
			continue
		}
		value, err := t.ask(questionFor(server, v), v.Secret)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", strings.TrimSuffix(questionFor(server, v), ": "), err)
		}
		if value == "" {
			continue
		}
		if _, err := env.Keep(server, v.Name, value); err != nil {
			return nil, err
		}
	}
	if err := env.save(); err != nil {
		return nil, err
	}
	env.sayKept(t.err, server)
	return env.Added(), nil
}

// questionFor returns the question for a value, for example `github needs GITHUB_TOKEN: `.
func questionFor(server string, v serversfile.Variable) string {
	what := v.Name
	if v.Input != "" {
		what = v.Input
	}
	if v.About != "" {
		what += " (" + v.About + ")"
	}
	return fmt.Sprintf("%s needs %s: ", server, what)
}
