package box

import (
	"io"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestARefusalIsInTheErrorOfTheCallThatMetIt(t *testing.T) {
	kept := &page{}
	r := newRig(t, "normal", func(s *Server) {
		s.Refusals, s.Env["API_KEY"] = true, "s3cret-name"
		s.Stderr = func(string) io.WriteCloser { return kept }
	})
	for _, c := range []struct{ arguments, want string }{
		{`{"hosts":[],"answer":{"error":{"code":-1,"message":"no"}}}`, `"error":{"code":-1,"message":"no"}`},
		{`{"hosts":["a.test"],"answer":{"result":{"content":[{"type":"text","text":"fine"}]}}}`, `"result":{"content":[{"type":"text","text":"fine"}]}`},
	} {
		commontest.EqualIn(t, c.arguments, `{"jsonrpc":"2.0","id":1,`+c.want+`}`, string(r.final(t, r.call("1", "refused", c.arguments)).Raw))
	}
	f := r.failure(r.call("1", "refused", `{"hosts":["b.test","s3cret-name.test"],"answer":{"error":{"code":-1,"message":"no"}}}`))
	if !strings.HasPrefix(f.Message, "no; network: ") || !strings.HasSuffix(f.Message, "network: b.test was refused; network: ***.test was refused") {
		t.Error(f.Message)
	}
	for host, old := range map[string]string{"c.test": `[]`, "d.test": `[{"type":"text","text":"no"}]`} {
		got := string(r.final(t, r.call("1", "refused", `{"hosts":["`+host+`"],"answer":{"result":{"content":`+old+`,"isError":true}}}`)).Raw)
		commontest.Contains(t, host, `"content":`+strings.TrimSuffix(old, "]"), got)
		commontest.Contains(t, host, `network: `+host+` was refused"}],"isError":true}`, got)
	}
	for _, text := range []string{"network: a.test was refused", "network: ***.test was refused"} {
		find(t, r.recorder, text, func(s ProcessStatus) bool { return s.Detail == text && s.State == Ready })
	}
	f = r.failure(r.call("1", "refused", `{"hosts":["e.test"],"exit":true}`))
	if !strings.HasPrefix(f.Message, `server "fake": exited with code 3`) || !strings.Contains(f.Message, "; network: e.test was refused") {
		t.Error(f.Message)
	}
	commontest.Eventually(t, "the log is closed", func() bool { _, closed := kept.read(); return closed })
	if got, _ := kept.read(); strings.Count(got, " network: b.test was refused\n") != 1 || !strings.Contains(got, "--- ") {
		t.Errorf("the log has:\n%s", got)
	}
}
