package local

import (
	"context"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestOnlyLoopbackHasNamesOfItsOwn(t *testing.T) {
	for address, want := range map[string]string{
		"127.0.0.1:1": "", "localhost:1": "", "[::1]:1": "",
		"0.0.0.0:1": "*", ":1": "*", "192.0.2.1:1": "*", "example.test:1": "*",
	} {
		commontest.EqualIn(t, address+" is served under", want, strings.Join(new(listeners).servedHosts(address), ","))
	}
}

func TestBehindAProxyItsNameIsServedAndThoseOfLoopback(t *testing.T) {
	m := &listeners{PublicURL: "https://mcp.example:8443/"}
	for _, address := range []string{"127.0.0.1:1", ":1"} {
		commontest.EqualIn(t, address+" is served under", "127.0.0.1,::1,localhost,mcp.example", strings.Join(m.servedHosts(address), ","))
	}
}

// Who may call follows from the addresses, and from that whether servers are confined, and whether
// clients see what servers print.
func TestOnlyTheUserOfTheMachineNeedsNoKey(t *testing.T) {
	for name, test := range map[string]struct {
		cfg           Config
		access        string
		guests, shows bool
	}{
		"loopback":                  {Config{Listen: "127.0.0.1:1"}, AccessOpen, false, true},
		"loopback with keys":        {Config{Listen: "127.0.0.1:1", Access: AccessKeys}, AccessKeys, true, false},
		"loopback with tokens":      {Config{Listen: "127.0.0.1:1", Access: AccessIDP}, AccessIDP, true, false},
		"everywhere":                {Config{Listen: "0.0.0.0:1"}, AccessKeys, true, false},
		"sockets only, everywhere":  {Config{Listen: "localhost:1", Sockets: "0.0.0.0:2"}, AccessKeys, true, false},
		"behind a proxy":            {Config{Listen: "127.0.0.1:1", PublicURL: "https://mcp.example"}, AccessKeys, true, false},
		"behind a proxy, told so":   {Config{Listen: "127.0.0.1:1", PublicURL: "https://mcp.example", Access: AccessOpen}, AccessOpen, false, true},
		"function programs, on AWS": {Config{Listen: "0.0.0.0:1", Functions: func(context.Context, *Site) (Functions, error) { return nil, nil }}, AccessKeys, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			l := listenersOf(test.cfg)
			commontest.EqualIn(t, "access", test.access, l.access())
			commontest.EqualIn(t, "servers are guests", test.guests, test.cfg.HasGuests())
			commontest.EqualIn(t, "output is shown", test.shows, (environ{}).boxes("", l.private())["DORMOUSE_SHOW_OUTPUT"] == "on")
		})
	}
}

func TestBoxesAreToldHowToReachRegistriesAndNothingElse(t *testing.T) {
	e := environ{
		"PATH=/bin", "HOME=/home/me", "DORMOUSE_CACHE=/cache", "https_proxy=http://p", "NO_PROXY=x",
		"PIP_INDEX_URL=http://pip", "UV_INDEX=http://uv", "npm_config_registry=http://npm", "NODE_EXTRA_CA_CERTS=/ca",
		"GIT_SSL_CAINFO=/ca", "NODE_USE_ENV_PROXY=1", "ALL_PROXY=",
		"DORMOUSE_SESSION_LIFE=1h", "AWS_SECRET_ACCESS_KEY=x", "GITHUB_TOKEN=x", "PIPELINE=x",
	}
	want := map[string]string{
		"PATH": "/bin", "HOME": "/home/me", "DORMOUSE_CACHE": "/cache", "DORMOUSE_LOGS": "/data/logs",
		"https_proxy": "http://p", "NO_PROXY": "x", "PIP_INDEX_URL": "http://pip", "UV_INDEX": "http://uv",
		"npm_config_registry": "http://npm", "NODE_EXTRA_CA_CERTS": "/ca", "GOMAXPROCS": "1",
		"GIT_SSL_CAINFO": "/ca", "NODE_USE_ENV_PROXY": "1", "ALL_PROXY": "",
	}
	commontest.Same(t, want, e.boxes("/data/logs", false))
}

// The sign-in that takes any name is for an endpoint that only this machine reaches, whatever
// its public URL says.
func TestAnEndpointForTheNetworkHasNoSignInWithAnyName(t *testing.T) {
	servers, _, err := serversfile.Parse([]byte(`{"mcpServers":{"one":{"command":"true"}}}`), "servers.json", nil)
	commontest.OK(t, err)
	for at, want := range map[[2]string]bool{ // for HTTP and for WebSockets
		{"127.0.0.1:8787"}: true, {"[::1]:8787"}: true, {"0.0.0.0:8787"}: false, {":8787"}: false, {"192.0.2.1:8787"}: false, {"127.0.0.1:8787", "0.0.0.0:8788"}: false,
	} {
		m := &machine{public: &listeners{Listen: at[0], Sockets: at[1], PublicURL: "http://127.0.0.1:8787", Access: AccessOAuth}}
		s, err := m.tokens(servers)
		if (err == nil) != want || want && s.Issuer != "http://127.0.0.1:8787" {
			t.Errorf("%s: %+v, %v", at, s, err)
		}
	}
}
