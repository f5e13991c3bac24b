package provision

import (
	"errors"
	"regexp"
	"strings"
)

// lacking matches what npm and uv print if an index does not have a package or a version. The
// field lacks is the beginning of the error for the user.
var lacking = []struct {
	said  *regexp.Regexp
	lacks string
}{
	{regexp.MustCompile(`(?s)E404.*404\s+[^']*'(@?[^@'\s]+)@`), "npm knows no "},
	{regexp.MustCompile(`No matching version found for (\S+?)\.?\s`), "npm has no "},
	{regexp.MustCompile(`(\S+) was not found in the package\s+registry`), "PyPI knows no "},
	{regexp.MustCompile(`there is no version of (\S+==\S+)`), "PyPI has no "},
}

// unknown sets commandError.lacks to the package or version that the index does not have, if the
// output of the failed command names one.
func (r request) unknown(err error) error {
	failed, ran := errors.AsType[*commandError](err)
	if !ran {
		return err
	}
	for _, l := range lacking {
		if m := l.said.FindStringSubmatch(failed.more + "\n"); m != nil {
			if failed.lacks = l.lacks + m[1]; !strings.HasPrefix(m[1], r.name) {
				failed.lacks += ", which " + r.name + " needs"
			}
			return err
		}
	}
	return err
}
