package serversedit

import (
	"regexp"
	"slices"
	"strings"
)

// Hide replaces what may be a secret in one line of a client's file by "***", so that the line can
// be shown. Hide knows the syntax of JSON, TOML and YAML.
func Hide(line string) string {
	quoted := regexp.MustCompile(`("(?:[^"\\]|\\.)*"|'[^']*'|[A-Za-z0-9_.-]+)?(\s*[:=]\s*)?("(?:[^"\\]|\\.)*"|'[^']*')`)
	hidden := quoted.ReplaceAllStringFunc(line, func(s string) string {
		m := quoted.FindStringSubmatch(s)
		name, sign, value := strings.Trim(m[1], `"'`), m[2], strings.Trim(m[3], `"'`)
		if sign == "" || public(name) {
			name = ""
		}
		if !looksSecret(value) && (name == "" || harmless(name, value)) {
			return s
		}
		return m[1] + sign + `"***"`
	})
	if hidden != line || strings.ContainsAny(line, `"'`) {
		return hidden
	}
	m := regexp.MustCompile(`^([-+ ]*[A-Za-z0-9_-]+:\s+)(\S.*)$`).FindStringSubmatch(line) // a line of YAML
	if m == nil {
		return line
	}
	name := strings.TrimRight(strings.TrimLeft(m[1], "-+ "), ": ")
	if looksSecret(m[2]) || !public(name) && !harmless(name, m[2]) {
		return m[1] + "***"
	}
	return line
}

// public reports whether a member says how a server is reached or started. Its value is not secret
// unless it looks like a secret.
func public(name string) bool {
	return slices.Contains([]string{"url", "httpUrl", "serverUrl", "uri", "command", "cmd", "args", "type", "name", "cwd", "description", "theme", "model", "$schema"}, name)
}
