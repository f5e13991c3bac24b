package override_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/config/override"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

func file(text string) override.File {
	return override.File{Name: "servers.json", By: "ada", At: time.Unix(1, 0).UTC(), Text: []byte(text)}
}

func TestEachPushIsTheNextVersion(t *testing.T) {
	store := storagetest.NewMemory()
	if f, err := override.Load(t.Context(), store); err != nil || f.Version != 0 {
		t.Errorf("before the first push there is %+v, %v", f, err)
	}
	for version, text := range []string{"{}\n// first", "{}", ""} {
		want := file(text)
		want.Version = int64(version) + 1
		_, err := override.Save(t.Context(), store, file(text))
		commontest.OK(t, err)
		if got, err := override.Load(t.Context(), store); err != nil || cmp.Diff(want, got) != "" {
			t.Errorf("%v (-want +got):\n%s", err, cmp.Diff(want, got))
		}
	}
	if _, err := override.Save(t.Context(), store, file(strings.Repeat(" ", override.MaxFile+1))); !errors.Is(err, storage.TooLarge) {
		t.Error(err)
	}
}

func TestFilesWithSecretsAreRefusedAndDoNotComeBackInErrors(t *testing.T) {
	for _, server := range []string{
		`"env":{"GITHUB_TOKEN":"hidden"}`, `"env":{"OPENAI_API_KEY":"hidden"}`, `"env":{"password":"hidden"}`,
		`"env":{"SETTINGS":"ghp_hidden"}`, `"env":{"DATABASE":"postgres://u:hidden@host/db"}`,
		`"args":["--api-key","hidden"]`, `"args":["--token=hidden"]`, `"args":["https://u:hidden@host/"]`,
	} {
		err := file(`{"mcpServers":{"x":{"command":"a",` + server + `}}}`).Check()
		if !errors.Is(err, storage.Invalid) || !strings.Contains(err.Error(), "looks like a secret") || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: %v", server, err)
		}
	}
}

func TestFilesWithNamesOfSecretsArePushed(t *testing.T) {
	for _, server := range []string{
		`"env":{"GITHUB_TOKEN":"ssm:/dormouse/github","API_KEY":"secretsmanager:dormouse/key"}`, `"env":{"TOKEN":"${principal:github}"}`,
		`"env":{"TOKEN":""}`, `"env":{"KEYBOARD":"de","LOG":"info"}`, `"args":["--tokens-per-minute",5]`, `"env":{"HTTP_PROXY":null,"PORT":3000}`, `"args":["https://host:80/"]`,
	} {
		commontest.CheckIn(t, server, file(`{"mcpServers":{"x":{"command":"a",`+server+`}}}`).Check())
	}
}

func TestFilesThatFunctionsCannotReadAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		`{`:                       "servers.json:1:",
		`{"servers":{}}`:          "dormouse import",
		`{"mcpServers":{"x":{}}}`: "servers.json:1:",
		`{"mcpServers":{"x":{"command":"a","args":["${HERE}"]}}}`:   "functions have none of your variables",
		`{"mcpServers":{"x":{"command":"a","args":["~/here"]}}}`:    "a stack has none",
		`{"mcpServers":{"x":{"command":"a","envFile":"here.env"}}}`: "",
	} {
		if err := file(text).Check(); !errors.Is(err, storage.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
