package serversfile_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestExpansion(t *testing.T) {
	env := map[string]string{"A": "1", "EMPTY": "", "_b2": "2"}
	for _, c := range []struct{ in, want string }{
		{"${A}", "1"},
		{"${EMPTY:-d}", "d"},
		{"${NO:-d}", "d"},
		{"${NO:-${A}}", "${A}"},
		{"$A", "$A"},
		{"$${A}", "$1"},
	} {
		t.Run(c.in, func(t *testing.T) {
			commontest.Equal(t, c.want, one(t, server(`"command": "a", "env": {"V": "`+c.in+`"}`), env).Env["V"])
		})
	}
}

const digestOf = `"command": "a", "args": ["b", "c"], "env": {"K": "v", "L": "w"}, "cwd": "d"`

// The digest is a key of stored records, so a release must not change it.
func TestDigestStaysOverReleases(t *testing.T) {
	const want = "88f0ea4abd1d656851c730f50d74b969843ed9f901898b5aff59ac673c39e1e7"
	commontest.EqualIn(t, "digest", want, one(t, server(digestOf), nil).Digest)
}

func TestDigestChangesWhenBehaviourChanges(t *testing.T) {
	seen := map[string]string{}
	for _, keys := range []string{
		digestOf,
		`"command": "a"`,
		`"command": "a", "args": [""]`,
		`"command": "a", "args": ["b", "c"]`,
		`"command": "a", "args": ["bc"]`,
		`"command": "a", "env": {"K": "v"}`,
		`"command": "a", "env": {"K": ""}`,
		`"command": "a", "cwd": "d"`,
		`"command": "a", "x-dormouse": {"box": {"image": "i"}}`,
		`"command": "a", "x-dormouse": {"box": {"network": "off"}}`,
		`"command": "a", "x-dormouse": {"box": {"env": {"K": "x"}}}`,
	} {
		d := one(t, server(keys), nil).Digest
		if other, ok := seen[d]; ok {
			t.Errorf("%s and %s have one digest", keys, other)
		}
		seen[d] = keys
	}
}

// fields lists all fields of a server, which its String method hides.
func fields(s serversfile.Server) map[string]any {
	return map[string]any{
		"name": s.Name, "command": s.Command, "args": s.Args, "env": s.Env, "cwd": s.Cwd, "digest": s.Digest,
		"idle": s.Idle, "startup": s.StartupTimeout, "tool": s.ToolTimeout, "record": s.Record, "own lists": s.OwnLists, "same lists": s.SameLists, "disabled": s.Disabled,
		"answer": s.AnswerTimeout, "box": s.Box, "tasks": s.Tasks,
	}
}

func TestServerPrintsWithoutSecrets(t *testing.T) {
	s := one(t, server(`"command": "a", "args": ["--key", "${KEY}"], "env": {"TOKEN": "${KEY}", "B": "x"}`), map[string]string{"KEY": "hunter2"})
	var out bytes.Buffer
	for _, h := range []slog.Handler{slog.NewJSONHandler(&out, nil), slog.NewTextHandler(&out, nil)} {
		slog.New(h).Info("loaded", "server", s, "servers", []serversfile.Server{s})
	}
	fmt.Fprintf(&out, "%v %+v %#v %s %q %v", s, s, s, s, s, []any{s, &s, map[string]serversfile.Server{"x": s}})
	encoded, err := json.Marshal(s)
	commontest.OK(t, err)
	out.Write(encoded)
	if strings.Contains(out.String(), "hunter2") {
		t.Errorf("a secret is in %s", &out)
	}
	commontest.Equal(t, `server "x": command "a", 2 args, env [B TOKEN]`, s.String())
}

func TestComplaintsShowNoSecrets(t *testing.T) {
	const secret = "hunter2"
	env := variables(map[string]string{"KEY": secret, "LINE": "npx -y --key=" + secret, "BAD": secret + "\xff", "NUL": secret + "\x00"})
	for _, keys := range []string{
		`"command": "a", "env": {"K": "` + secret + `${"}`,
		`"command": "a", "env": {"K": "${NO-` + secret + `}"}`,
		`"command": "a", "env": {"K": "${BAD}"}`,
		`"command": "a", "env": {"K": ["` + secret + `"]}`,
		`"command": "a --token=` + secret + `"`,
		`"command": "${LINE}"`,
		`"command": "a", "args": ["${KEY}", "${NONE}", [5]]`,
		`"command": "a", "x-dormouse": {"box": {"host_path": "` + secret + `"}}`,
		`"url": "ftp://ada:` + secret + `@example.com"`,
		`"url": "https://example.com?key=${KEY}", "headers": {"A": "` + secret + ` ${NONE}", "B C": "` + secret + `"}`,
		`"command": "a", "env": {"K": "` + strings.Repeat(secret, 2000) + `"}`,
		`"command": "a", "x-dormouse": {"record": "` + secret + `", "enabled": "` + secret + `"}`,
		`"command": "a", "env": {"K": ` + secret + `}`,
	} {
		t.Run(keys[:min(len(keys), 60)], func(t *testing.T) {
			c, warnings, err := serversfile.Parse([]byte(server(keys)), "f", env)
			if err == nil {
				err = wrong(server(keys), env)
				warnings = append(warnings, serversfile.Warning{Text: c.Reason("x")})
			}
			if err == nil && len(warnings) == 1 {
				t.Fatal("no complaint")
			}
			if said := fmt.Sprint(err, warnings); strings.Contains(said, secret) {
				t.Error(said)
			}
		})
	}
}
