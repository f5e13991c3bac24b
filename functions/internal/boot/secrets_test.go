package boot

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// secretsService stands for Systems Manager and Secrets Manager. It answers with status and
// body if there is one, and notes what it is asked.
type secretsService struct {
	parameters, secrets map[string]string
	status              int
	body                string
	asked               []string
}

func (s *secretsService) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Names                             []string
		WithDecryption                    bool
		SecretId, VersionStage, VersionId string //nolint:revive,staticcheck // as AWS writes them
	}
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil || r.Header.Get("Content-Type") != "application/x-amz-json-1.1" || !strings.Contains(r.Header.Get("Authorization"), "/aws4_request") {
		http.Error(w, "not as AWS wants it", http.StatusBadRequest)
		return
	}
	target := r.Header.Get("X-Amz-Target")
	s.asked = append(s.asked, target)
	if s.status != 0 {
		w.WriteHeader(s.status)
		_, _ = fmt.Fprint(w, s.body)
		return
	}
	type parameter struct{ Name, ARN, Selector, Value string }
	var answer struct {
		Parameters        []parameter
		InvalidParameters []string
		SecretString      *string `json:",omitempty"`
	}
	switch {
	case target == "secretsmanager.GetSecretValue":
		if value, ok := s.secrets[q.SecretId+q.VersionStage+q.VersionId]; ok {
			answer.SecretString = &value
		}
	case target == "AmazonSSM.GetParameters" && q.WithDecryption && len(q.Names) <= 10 && slices.IsSorted(q.Names):
		for _, name := range q.Names {
			plain, selector, _ := strings.Cut(name, ":")
			if selector != "" {
				selector = ":" + selector
			}
			if value, ok := s.parameters[name]; ok {
				answer.Parameters = append(answer.Parameters, parameter{plain, "arn:aws:ssm:x:1:parameter" + plain, selector, value})
			} else {
				answer.InvalidParameters = append(answer.InvalidParameters, name)
			}
		}
	default:
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// resolves returns what the box of a server with such an env gets.
func resolves(t *testing.T, s *secretsService, env map[string]string) (map[string]string, error) {
	t.Helper()
	at := httptest.NewServer(s)
	defer at.Close()
	onAWS(t, at.URL)
	text, err := json.Marshal(map[string]any{"mcpServers": map[string]any{"a": map[string]any{"command": "x", "env": env}}})
	commontest.OK(t, err)
	servers, _, err := serversfile.Parse(text, "servers.json", nil)
	commontest.OK(t, err)
	return Resolver(&wiring.Function{Settings: wiring.Settings{Servers: servers}})(t.Context(), storage.Box{Server: "a"})
}

func TestSecretsAreReadAsECSReadsThem(t *testing.T) {
	const secretARN = "arn:aws:secretsmanager:eu-west-1:1:secret:stack/other-AbCdEf"
	s := &secretsService{
		parameters: map[string]string{"/stack/a": "one", "/stack/a:3": "third", "plain": "two"},
		secrets:    map[string]string{"stack/key": `{"id":"k3y","n":7}`, "stack/keyAWSPREVIOUS": `{"id":"old"}`, secretARN: "whole"},
	}
	got, err := resolves(t, s, map[string]string{
		"A": "ssm:/stack/a", "AGAIN": "ssm:/stack/a", "THIRD": "ssm:/stack/a:3", "B": "ssm:plain",
		"ID": "secretsmanager:stack/key:id::", "N": "secretsmanager:stack/key:n", "OLD": "secretsmanager:stack/key:id:AWSPREVIOUS:",
		"WHOLE": "secretsmanager:" + secretARN, "TZ": "UTC",
	})
	want := map[string]string{"A": "one", "AGAIN": "one", "THIRD": "third", "B": "two", "ID": "k3y", "N": "7", "OLD": "old", "WHOLE": "whole"}
	for name := range want {
		want["DORMOUSE_ENV_"+name] = want[name]
		delete(want, name)
	}
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Error(d, err)
	}
	slices.Sort(s.asked)
	const ssm, secret = "AmazonSSM.GetParameters", "secretsmanager.GetSecretValue"
	commontest.SameIn(t, "one request for the parameters and one for each version of a secret", []string{ssm, secret, secret, secret}, s.asked)
}

// A wake pays one request for its parameters, and a server without secrets pays none.
func TestAWakeAsksForItsParametersOnce(t *testing.T) {
	for n, requests := range map[int]int{0: 0, 1: 1, 10: 1, 11: 2} {
		s, env := &secretsService{parameters: map[string]string{}}, map[string]string{"TZ": "UTC"}
		for i := range n {
			env[fmt.Sprint("V", i)], s.parameters[fmt.Sprint("/p/", i)] = fmt.Sprint("ssm:/p/", i), "v"
		}
		if got, err := resolves(t, s, env); err != nil || len(s.asked) != requests || len(got) != n {
			t.Errorf("%d parameters: %d requests, %d values, %v; want %d requests", n, len(s.asked), len(got), err, requests)
		}
	}
}

// What AWS refuses will not be there a moment later: the runner starts and tells the caller.
// What AWS cannot answer now is asked for again by the next hello.
func TestASecretThatIsRefusedIsTheServersFaultAndSilenceIsNot(t *testing.T) {
	const canary = "canary-4711"
	one := map[string]string{"A": "ssm:/stack/a"}
	secret := map[string]string{"A": "secretsmanager:stack/key:nothing"}
	for name, c := range map[string]struct {
		service secretsService
		env     map[string]string
		why     string // "": Unavailable
	}{
		"no parameter": {secretsService{}, one, "Systems Manager has no parameter /stack/a"},
		"no secret":    {secretsService{status: 400, body: `{"__type":"com.amazonaws#ResourceNotFoundException","message":"no such"}`}, secret, "ResourceNotFoundException: no such"},
		"no member":    {secretsService{secrets: map[string]string{"stack/key": canary}}, secret, "secretsmanager:stack/key:nothing has no value of this name"},
		"binary":       {secretsService{}, secret, "the secret stack/key is binary, and a variable is text"},
		"throttled":    {secretsService{status: 400, body: `{"__type":"ThrottlingException","message":"` + canary + `"}`}, one, ""},
		"no JSON":      {secretsService{status: 200, body: canary}, one, ""},
	} {
		got, err := resolves(t, &c.service, c.env)
		if strings.Contains(fmt.Sprint(got, err), canary) {
			t.Errorf("%s: a message quotes what AWS answered: %v, %v", name, got, err)
		}
		refused := c.why != ""
		if errors.Is(err, storage.Unavailable) == refused || refused && !maps.Equal(got, map[string]string{serversfile.SecretFailure: c.why}) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}
