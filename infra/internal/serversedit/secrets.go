package serversedit

import (
	"regexp"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
)

// Keep stores a value in .env, and makes the entry set an environment variable to it.
func (e *Entry) Keep(server string, env *Env, name, value string) error {
	moved, err := keeper{server, env}.whole(name, value)
	if err != nil {
		return err
	}
	e.Env = append(slices.DeleteFunc(e.Env, func(v Variable) bool { return v.Name == name }), Variable{Name: name, Value: moved})
	return nil
}

// KeepSecrets moves values that may be secrets to .env. It moves each value in Env that is not
// clearly harmless. It moves an argument if it looks like a secret, or follows an option whose name
// suggests one. References such as `${VAR}` stay.
func (e *Entry) KeepSecrets(server string, env *Env) error {
	k := keeper{server, env}
	for i, v := range e.Env {
		moved, err := k.parts(v.Name, v.Value, func(part string) bool { return !harmless(v.Name, part) })
		if err != nil {
			return err
		}
		e.Env[i].Value = moved
	}
	if err := k.remote(e); err != nil {
		return err
	}
	return k.args(e.Args)
}

// remote moves secrets in the headers of a remote server, and the password and secrets in the query
// of its URL, to .env. A scheme such as Bearer in front of a secret stays.
func (k keeper) remote(e *Entry) error {
	for i, h := range e.Headers {
		name := serversfile.InputVariable(k.server + "_" + h.Name)
		scheme, rest, two := strings.Cut(h.Value, " ")
		if !two || strings.Contains(rest, " ") {
			scheme, rest = "", h.Value
		}
		secret := func(part string) bool { return two || !harmless(h.Name, part) }
		moved, err := k.parts(name, rest, secret)
		if err != nil {
			return err
		}
		e.Headers[i].Value = strings.TrimSpace(scheme + " " + moved)
	}
	if m := regexp.MustCompile(`^([a-z]+://[^/?#@:]*:)([^/?#@]+)(@.*)$`).FindStringSubmatch(e.URL); m != nil {
		password, err := k.parts(serversfile.InputVariable(k.server+"_password"), m[2], func(string) bool { return true })
		if err != nil {
			return err
		}
		e.URL = m[1] + password + m[3]
	}
	base, query, ok := strings.Cut(e.URL, "?")
	if !ok {
		return nil
	}
	pairs := strings.Split(query, "&")
	for i, pair := range pairs {
		name, value, _ := strings.Cut(pair, "=")
		moved, err := k.parts(serversfile.InputVariable(k.server+"_"+name), value, func(part string) bool { return !harmless(name, part) })
		if err != nil {
			return err
		}
		if moved != value {
			pairs[i] = name + "=" + moved
		}
	}
	e.URL = base + "?" + strings.Join(pairs, "&")
	return nil
}

// keeper moves values of one server to .env.
type keeper struct {
	server string
	env    *Env
}

// whole moves a value to .env, and returns the reference that replaces it.
func (k keeper) whole(name, value string) (string, error) {
	variable, err := k.env.Keep(k.server, name, value)
	return "${" + variable + "}", err
}

// parts moves those parts of a value to .env for which secret returns true. It leaves out
// references such as `${VAR}`.
func (k keeper) parts(name, value string, secret func(part string) bool) (string, error) {
	return between(value, func(part string) (string, error) {
		if !secret(part) {
			return part, nil
		}
		return k.whole(name, part)
	})
}

// args moves secrets in the arguments of a command to variables in .env, whose names begin with
// that of the server.
func (k keeper) args(args []string) error {
	own := func(option string) string {
		name := regexp.MustCompile(`[^A-Za-z0-9]+`).ReplaceAllString(k.server+"_"+strings.Trim(option, "-"), "_")
		return serversfile.InputVariable(name)
	}
	for i, arg := range args {
		before := ""
		if i > 0 {
			before = args[i-1]
		}
		option, value, assigned := strings.Cut(arg, "=")
		var err error
		switch {
		case assigned && (before == "-e" || before == "--env"): // a variable for docker run
			value, err = k.parts(option, value, func(part string) bool { return !harmless(option, part) })
			args[i] = option + "=" + value
		case assigned && secretOption(option):
			value, err = k.parts(own(option), value, func(string) bool { return true })
			args[i] = option + "=" + value
		case secretOption(before) && !strings.Contains(before, "=") && !strings.HasPrefix(arg, "-"):
			args[i], err = k.parts(own(before), arg, func(string) bool { return true })
		default:
			args[i], err = k.parts(own("SECRET"), arg, looksSecret)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func secretOption(option string) bool {
	return strings.HasPrefix(option, "-") &&
		regexp.MustCompile(`(?i)[-_](api-?key|key|token|secret|password|passwd|pass|pwd|auth|credentials?|pat|pin|dsn|cookie)$`).MatchString(option)
}

// between replaces each part p of a string that is not a `${…}` by use(p).
func between(s string, use func(string) (string, error)) (string, error) {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(s, "${")
		inside, after, closed := strings.Cut(rest, "}")
		if !found || !closed {
			before = s
		}
		if before != "" {
			part, err := use(before)
			if err != nil {
				return "", err
			}
			out.WriteString(part)
		}
		if !found || !closed {
			return out.String(), nil
		}
		out.WriteString("${" + inside + "}")
		s = after
	}
}

// secretName reports whether the name of a variable or option suggests a secret.
func secretName(name string) bool {
	return regexp.MustCompile(`(?i)key|token|secret|pass|pwd|auth|cred|cookie|private|signature|dsn|cert|licen[cs]e|bearer|session|webhook|connection|database_url|_uri|_pat$|_pin$`).MatchString(name)
}

// harmless reports whether a value is clearly not a secret.
func harmless(name, value string) bool {
	switch value {
	case "", "0", "1", "true", "false", "on", "off", "yes", "no", "none":
		return true
	}
	if secretName(name) || looksSecret(value) || len(value) > 200 {
		return false
	}
	for _, run := range regexp.MustCompile(`[A-Za-z0-9]+`).FindAllString(value, -1) {
		digits := len(regexp.MustCompile(`[0-9]`).FindAllString(run, -1))
		if letters := len(run) - digits; letters > 16 || digits > 6 || letters > 0 && digits > 0 && len(run) > 5 {
			return false
		}
	}
	return regexp.MustCompile(`^([A-Za-z0-9]+([._,:+@-][A-Za-z0-9]+)*|(https?:/|~|\.{1,2})?(/[A-Za-z0-9._:+-]*)+)$`).MatchString(value)
}

// looksSecret reports whether a value looks like a secret, whatever it is called.
func looksSecret(value string) bool {
	for _, form := range []string{
		`(?i)\b(bearer|basic)\s+\S`, // a header
		`(?i)(api[-_]?key|token|secret|passw(or)?d|pwd|sig(nature)?|auth(orization)?)\s*[=:]\s*\S`, // in a query, a header or a connection string
		`://[^/\s@]*:[^/\s@]+@`, // a URL with a password
		`\b(sk|pk|rk)[-_][A-Za-z0-9_-]{8,}`, `\bgh[pousr]_[A-Za-z0-9]{4,}`, `\bgithub_pat_`, `\bglpat-`, `\bxox[a-z]-`, `\b(AKIA|ASIA)[A-Z0-9]{12,}`, `\bAIza`, `\bhf_[A-Za-z0-9]{8,}`, `\bnpm_[A-Za-z0-9]{8,}`, `\bpypi-[A-Za-z0-9]{8,}`, `\beyJ[A-Za-z0-9_-]{8,}`, `\bpplx-`, `\bdm_[a-z2-7]{8}_`,
		`-----BEGIN `,
	} {
		if regexp.MustCompile(form).MatchString(value) {
			return true
		}
	}
	if regexp.MustCompile(`^(@|~?\.{0,2}/)`).MatchString(value) { // a package or a path
		return false
	}
	for _, run := range regexp.MustCompile(`[A-Za-z0-9]{24,}`).FindAllString(value, -1) {
		if strings.ContainsAny(run, "0123456789") && strings.ToLower(run) != strings.ToUpper(run) {
			return true
		}
	}
	return false
}
