package serversfile_test

import (
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestServersOfOthersWithoutAVersionArePinned(t *testing.T) {
	for definition, want := range map[string]string{
		`"command":"npm","args":["exec","-y","--","name"]`:                                            "npm name",
		`"command":"npx","args":["-y","./mine"]`:                                                      "",
		`"command":"docker","args":["run","-i","host:5000/name:latest"]`:                              "image host:5000/name",
		`"command":"docker","args":["run","-i","-v","/a:/b","--memory","1g","name"]`:                  "image name",
		`"command":"node","x-dormouse":{"box":{"sealed":true,"image":"acme/name"}}`:                   "image acme/name",
		`"command":"docker","args":["run","-i","acme/name:1.2"]`:                                      "",
		`"command":"npx","args":["-y","@scope/name"]`:                                                 "npm @scope/name",
		`"command":"npx","args":["-y","@scope/name@latest","--flag"]`:                                 "npm @scope/name",
		`"command":"/usr/bin/npx","args":["--package=name","tool"]`:                                   "npm name",
		`"command":"uvx","args":["name"]`:                                                             "pypi name",
		`"command":"uvx","args":["--from","name==1.2","--with","other","tool"]`:                       "pypi name",
		`"command":"uvx","args":["--from","git+https://host/a/b","tool"]`:                             "pypi git+https://host/a/b",
		`"command":"docker","args":["run","-i","acme/name@sha256:00"]`:                                "",
		`"url":"https://mcp.acme.example/mcp?key=secret"`:                                             "remote https://mcp.acme.example/mcp",
		`"url":"http://127.0.0.1:1/mcp","x-dormouse":{"remote":{"private":true}}`:                     "",
		`"url":"https://mcp.acme.example/mcp","headers":{"Authorization":"Bearer ${principal:acme}"}`: "",
		`"command":"node","args":["mine.js"],"x-dormouse":{"tools":{"pin":true}}`:                     "command node",
		`"command":"npx","args":["-y","name"],"x-dormouse":{"tools":{"pin":false}}`:                   "",
	} {
		t.Run(definition, func(t *testing.T) {
			file, _, err := serversfile.Parse([]byte(`{"mcpServers":{"x":{`+definition+`}}}`), "servers.json", func(string) (string, bool) { return "", false })
			commontest.OK(t, err)
			s, ok := file.Server("x")
			if !ok {
				t.Fatal(file.Rejected())
			}
			pin := s.Pin()
			if (pin == nil) != (want == "") || pin != nil && (pin.Source != want || pin.Server != "x") {
				t.Errorf("%+v, want %q", pin, want)
			}
		})
	}
}
