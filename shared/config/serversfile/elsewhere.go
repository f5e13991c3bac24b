package serversfile

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A value of env may name a secret, "ssm:NAME" or "secretsmanager:NAME": a parameter of
// AWS Systems Manager or a secret of AWS Secrets Manager. The file, the functions and
// the start request of a box then hold only the name. ECS puts the value into the box
// when it starts the box, under [SecretVariable]. An invited runner gets it with its
// welcome, under the same name.

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

// SecretVariable returns the variable in which a box finds the value of a variable that
// names a secret.
func SecretVariable(name string) string { return "DORMOUSE_ENV_" + name }

// SecretFailure is the variable in which an invited runner finds why it has no values of
// its server's references.
const SecretFailure = "DORMOUSE_SECRET_FAILURE"

// Resolve returns the server with the values of its references, which become secrets of
// its box. The error names a variable without a value, and says what to do.
func (s Server) Resolve(getenv Getenv) (Server, error) {
	references := s.References()
	if len(references) == 0 {
		return s, nil
	}
	if why, ok := getenv(SecretFailure); ok {
		return s, fmt.Errorf("the secrets in env cannot be read: %s (boxes read those of this region whose names begin with the name of the stack)", why)
	}
	s.Env, s.Box.Secrets = maps.Clone(s.Env), slices.Clone(s.Box.Secrets)
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
