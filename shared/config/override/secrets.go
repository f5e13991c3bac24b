package override

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
)

// secretIn says where a definition of a server holds a secret, in words for its author.
// It returns "" if it sees none. A value that only names a secret, such as "ssm:NAME", is
// none.
func secretIn(s serversfile.Server) string {
	// The expressions are compiled when a file is pushed. Compiling them earlier would slow the start of
	// every function. These are names of variables whose values are secrets;
	names := regexp.MustCompile(`(?i)(^|_)(token|secret|password|passwd|pass|pwd|key|apikey|credentials?|pat)(_|$)`)
	// values that are secrets whatever their name: keys and tokens by their beginnings, and URLs with a password;
	values := regexp.MustCompile(`(^|[=\s"':])(gh[opsur]_|github_pat_|glpat-|sk-[A-Za-z0-9]|xox[abprs]-|AKIA[0-9A-Z]{12}|AIza[0-9A-Za-z_-]{20}|eyJ[A-Za-z0-9_-]{20})|-----BEGIN [A-Z ]*PRIVATE KEY|://[^/\s:@]+:[^/\s@]+@`)
	// and flags whose value is a secret: the next argument, or the text after "=".
	flags := regexp.MustCompile(`(?i)^--?[a-z-]*(token|secret|password|passwd|api-?key)(=.+)?$`)
	for _, name := range slices.Sorted(maps.Keys(s.Env)) {
		value := s.Env[name]
		if _, _, elsewhere := serversfile.Reference(value); elsewhere || value == "" || strings.Contains(value, "${principal") {
			continue
		}
		if names.MatchString(name) || values.MatchString(value) {
			return fmt.Sprintf("env %q", name)
		}
	}
	for i, arg := range s.Args {
		flag := flags.FindStringSubmatch(arg)
		if values.MatchString(arg) || flag != nil && (flag[2] != "" || i+1 < len(s.Args) && !strings.HasPrefix(s.Args[i+1], "-")) {
			return fmt.Sprintf("argument %d", i+1)
		}
	}
	return ""
}
