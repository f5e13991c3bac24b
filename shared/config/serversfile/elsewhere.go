package serversfile

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// A value of env may name a secret, "ssm:NAME" or "secretsmanager:NAME": a parameter of AWS Systems
// Manager or a secret of AWS Secrets Manager. The file, the Lambda functions and the request that
// starts a box hold only the name. ECS puts the value into the environment of the box when it
// starts the box, under [SecretVariable]. A box that is a Lambda function gets the value from the
// relay when it connects, under the same name.

// Reference reports whether a value of env names a secret, and returns its service and
// name.
func Reference(value string) (service, name string, ok bool) {
	service, name, ok = strings.Cut(value, ":")
	if !ok || service != "ssm" && service != "secretsmanager" || name == "" {
		return "", "", false
	}
	return service, name, !strings.ContainsFunc(name, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("/_.+=@:-", c)
	})
}

// References returns the values of Env that name a secret, by variable.
func (s Server) References() map[string]string {
	var all map[string]string
	for name, value := range s.Env {
		if _, _, ok := Reference(value); ok {
			if all == nil {
				all = map[string]string{}
			}
			all[name] = value
		}
	}
	return all
}

// SecretVariable returns the name of the variable that carries a secret to a box. The argument
// name is the variable in env that refers to the secret.
func SecretVariable(name string) string { return "DORMOUSE_ENV_" + name }

// SecretFailure is the variable that tells a box on Lambda why it has no values for
// [Server.References].
const SecretFailure = "DORMOUSE_SECRET_FAILURE"

// A value of env, or of a header, may be a command for the shell, "exec:COMMAND": its output is the
// value. The machine that hosts the server runs the command when it starts the box. The box gets
// the output under [SecretVariable]. The shell expands the variables in the command. The prefix
// must be in the file itself, so that nobody who sets a variable can have a command executed.
const execPrefix = "exec:"

// command returns the command of a value; ok is false for a value without the prefix.
func (r *serverReader) command(n node, field string) (command string, ok bool) {
	if n.shape != text {
		return "", false
	}
	command, ok = strings.CutPrefix(n.text, execPrefix)
	switch {
	case !ok:
		return "", false
	case strings.TrimSpace(command) == "" || strings.Contains(command, "\x00"):
		r.fail(n.at, "%s: %s: exec: needs a command, as in \"exec:op read op://vault/item/field\"", r.what, field)
	case r.folder == "" && strings.HasPrefix(field, "header "):
		r.fail(n.at, "%s: %s: a command can be executed on one machine only: on AWS write the value, or ${principal:NAME}", r.what, field)
	case r.folder == "":
		r.fail(n.at, "%s: %s: a command can be executed on one machine only: on AWS write \"ssm:NAME\" or \"secretsmanager:NAME\"", r.what, field)
	case r.exposed != "":
		r.fail(n.at, "%s: %s: the command is not executed, because %s", r.what, field, r.exposed)
	}
	return command, true
}

// exposedBy says why others could change the file; "" if they cannot.
func exposedBy(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return "" // the file does not exist yet
	}
	if of, ok := info.Sys().(*syscall.Stat_t); ok && of.Uid != 0 && int(of.Uid) != os.Getuid() {
		return "the file is of another user: make it yours with chown"
	}
	if info.Mode().Perm()&0o022 != 0 {
		return "other users can write the file: chmod go-w " + filepath.Base(path)
	}
	return ""
}

// Resolve returns the server with the values for its References and Commands. These values are
// secrets of its box. The error names a variable without a value, and says what to do.
func (s Server) Resolve(getenv Getenv) (Server, error) {
	references := s.References()
	if len(references)+len(s.Commands) == 0 {
		return s, nil
	}
	if why, ok := getenv(SecretFailure); ok {
		return s, fmt.Errorf("the secrets in env cannot be read: %s (boxes read those of this region whose names begin with the name of the stack)", why)
	}
	s.Env, s.Box.Secrets = maps.Clone(s.Env), slices.Clone(s.Box.Secrets)
	if s.Env == nil {
		s.Env = map[string]string{}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Commands)) {
		value, ok := getenv(SecretVariable(name))
		if !ok {
			return s, fmt.Errorf("env %q is a command, which only dormouse run executes", name)
		}
		s.Env[name], s.Box.Secrets = value, append(s.Box.Secrets, name)
	}
	for _, name := range slices.Sorted(maps.Keys(references)) {
		value, ok := getenv(SecretVariable(name))
		if !ok {
			return s, fmt.Errorf("env %q is %q, which AWS puts in for a stack: elsewhere set %s and write ${%s:-%s}",
				name, references[name], name, name, references[name])
		}
		s.Env[name], s.Box.Secrets = value, append(s.Box.Secrets, name)
	}
	return s, nil
}
