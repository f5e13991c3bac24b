package boot

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// boxPlace is what the template writes.
const boxPlace = `{"region":"eu-west-1","cluster":"c","subnets":["s"],"securityGroups":["g"],"publicIp":true,"spot":false,"executionRole":"arn:aws:iam::1:role/e",` +
	`"family":"f","image":"i","runner":"%s","cpus":0.25,"memoryMb":512,"arch":"arm64"}`

// onAWS sets what a function finds on AWS, with the services at an endpoint; "" for AWS's own.
func onAWS(t *testing.T, endpoint string) {
	t.Helper()
	for name, value := range map[string]string{EnvLocal: "", envEndpoint: endpoint, envRegion: "eu-west-1", envDomain: "", envKey: "KEY", envSecret: "secret"} {
		t.Setenv(name, value)
	}
}

func TestABoxGetsItsRunnerFromTheBucketOfTheStack(t *testing.T) {
	onAWS(t, "")
	servers, _, err := serversfile.Parse([]byte(`{"mcpServers":{}}`), "servers.json", nil)
	commontest.OK(t, err)
	sum := strings.Repeat("0", 64)
	_, err = openECS(fmt.Sprintf(boxPlace, "stack-bucket/runner/"+sum), servers)
	commontest.Check(t, err)
	for _, wrong := range []string{"stack-bucket", "Not_A_Bucket/" + sum} {
		if _, err := openECS(fmt.Sprintf(boxPlace, wrong), servers); err == nil {
			t.Errorf("the runner at %q is taken", wrong)
		}
	}
	sign, err := signer("stack-bucket/runner/" + sum)
	commontest.OK(t, err)
	url, err := sign(t.Context())
	if err != nil || !strings.HasPrefix(url, "https://stack-bucket.s3.eu-west-1.amazonaws.com/runner/"+sum+"?") || !strings.Contains(url, "X-Amz-Signature=") {
		t.Errorf("%s, %v", url, err)
	}
}

func TestOnlyRegistriesOfECRGetALogin(t *testing.T) {
	asked := ""
	status := http.StatusOK
	ecr := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.Header.Get("X-Amz-Target") + " " + r.Header.Get("Authorization")
		w.WriteHeader(status)
		if status == http.StatusOK {
			_, _ = fmt.Fprint(w, `{"authorizationData":[{"authorizationToken":"QVdTOng="}]}`)
		}
	}))
	defer ecr.Close()
	onAWS(t, ecr.URL)
	for _, registry := range []string{"public.ecr.aws", "registry-1.docker.io", "dkr.ecr.eu-west-1.amazonaws.com.evil.example", "a.b.dkr.ecr.eu-west-1.amazonaws.com"} {
		if login, err := loginECR(t.Context(), registry); err != nil || login != "" || asked != "" {
			t.Errorf("%s: %q, %v, asked %q", registry, login, err, asked)
		}
	}
	login, err := loginECR(t.Context(), "123456789012.dkr.ecr.us-east-2.amazonaws.com")
	if err != nil || login != "Basic QVdTOng=" || !strings.Contains(asked, "GetAuthorizationToken") || !strings.Contains(asked, "/us-east-2/ecr/") {
		t.Errorf("%q, %v, asked %q", login, err, asked)
	}
	status = http.StatusForbidden
	if _, err := loginECR(t.Context(), "123456789012.dkr.ecr.eu-west-1.amazonaws.com"); err == nil {
		t.Error("a refusal is no error")
	}
}

func TestAServerStartedByDockerIsTheImageOfItsBox(t *testing.T) {
	servers, _, err := serversfile.Parse([]byte(`{"mcpServers":{
		"docker":{"command":"docker","args":["run","-i","--rm","-u","1000","mcp/time"]},
		"copy":{"command":"docker","args":["run","mcp/time"],"x-dormouse":{"box":{"image":"example.com/time"}}},
		"image":{"command":"server","x-dormouse":{"box":{"image":"example.com/server"}}},
		"plain":{"command":"npx","args":["-y","x"]}
	}}`), "servers.json", nil)
	commontest.OK(t, err)
	for name, want := range map[string]string{"docker": "mcp/time 1000", "copy": "example.com/time ", "image": "example.com/server ", "plain": " "} {
		shape, err := shapeOf(servers, name)
		commontest.CheckIn(t, name, err)
		commontest.EqualIn(t, name, want, shape.Image+" "+shape.User)
	}
}
