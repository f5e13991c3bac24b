// Package boot has the code that the main packages of all functions share. It reads the environment
// once, opens the services that the environment names, and calls the handlers for invocations.
package boot

import (
	"cmp"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/shared/backend/bucket"
	"github.com/dormouse-mcp/dormouse/shared/config/held"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/store/meter"
)

// Environment variables of every function, besides those of package wiring.
const (
	EnvStore        = "DORMOUSE_STORE"              // sqlite:PATH or dynamodb:TABLE[?endpoint=URL&region=NAME]
	EnvServers      = "DORMOUSE_SERVERS"            // path of the servers file; under the emulator, path of a copy that [serversfile.LoadAccepted] reads
	EnvSecret       = "DORMOUSE_SECRET"             // key for encryption, hexadecimal, at least 32 bytes
	EnvOtherSecret  = "DORMOUSE_OTHER_SECRET"       // a second key that also decrypts, while the operator replaces EnvSecret; empty for none
	EnvRelayURL     = "DORMOUSE_RELAY_URL"          // URL to which runners connect; see runner.DialWebSocket
	EnvConnections  = "DORMOUSE_RELAY_CONNECTIONS"  // @connections endpoint of the relay's WebSocket API
	EnvClients      = "DORMOUSE_SOCKET_CONNECTIONS" // @connections endpoint of the WebSocket API for clients
	EnvHosts        = "DORMOUSE_HOSTS"              // values of the Host header that are accepted, separated by commas; empty for the names of loopback
	EnvAccess       = "DORMOUSE_ACCESS"             // keys, oauth, idp, or open on one machine; see access.go
	EnvPublicURL    = "DORMOUSE_PUBLIC_URL"         // URL of the HTTP endpoint for clients; required if EnvAccess is oauth or idp, or if users connect accounts at third parties
	EnvSnapshots    = "DORMOUSE_SNAPSHOTS"          // where boxes save workspaces: folder:PATH, or s3:BUCKET[/PREFIX][?endpoint=URL&region=NAME]; empty for nowhere
	EnvMetrics      = "DORMOUSE_METRICS"            // CloudWatch namespace for metrics in log lines, which AWS bills; "off" or empty for none
	EnvFleet        = "DORMOUSE_FLEET"              // where boxes run on AWS; see ecs.ParsePlace
	EnvBoxFunctions = "DORMOUSE_BOX_FUNCTIONS"      // functions in which boxes run on AWS; see lambda.ParseSizes; empty for none

	// EnvDashboard is the URL of a CloudWatch dashboard. The console links to it for data that the
	// store does not have.
	EnvDashboard = "DORMOUSE_DASHBOARD"

	// EnvCallLogs has the names of log groups, separated by commas; the last one is that of the
	// relay function. The console searches all but the last one for calls, and all for the
	// arguments and results of calls. If the variable is empty, it cannot search.
	EnvCallLogs = "DORMOUSE_CALL_LOGS"

	// EnvClientSecret is the client secret of this endpoint at the identity provider. The oauth
	// function signs users in with it. Other functions use it to check the provider's tokens.
	EnvClientSecret = "DORMOUSE_CLIENT_SECRET" //nolint:gosec // the name of a variable

	// EnvLocal is a [wiring.Local] in JSON. The emulator sets it.
	EnvLocal = "DORMOUSE_EMULATOR"
)

// opened has what a process opens once, and uses for each version of the servers file.
type opened struct {
	settings wiring.Settings // without the fields that depend on the servers file
	parts    wiring.Parts    // without the fields that depend on the servers file
}

// open reads the environment and opens the store. Its errors name the variable whose value is wrong.
func open() (*opened, error) {
	l := local()
	o := &opened{settings: wiring.Settings{
		RelayURL: os.Getenv(EnvRelayURL), PublicURL: strings.TrimSuffix(os.Getenv(EnvPublicURL), "/"),
		Origins: l.Origins, Limits: l.Limits, ShowErrors: l.ShowErrors,
		Metrics: metricsSpace(), Pushed: l.URL == "" && os.Getenv(envSAMLocal) != "true",
	}}
	s := &o.settings
	err := s.Read(os.Getenv)
	if err != nil {
		return nil, err
	}
	if s.Secret, err = hex.DecodeString(os.Getenv(EnvSecret)); err != nil {
		return nil, fmt.Errorf("%s is not hexadecimal: %w", EnvSecret, err)
	}
	if other := os.Getenv(EnvOtherSecret); other != "" {
		if s.OtherSecret, err = hex.DecodeString(other); err != nil {
			return nil, fmt.Errorf("%s is not hexadecimal: %w", EnvOtherSecret, err)
		}
	}
	if hosts := os.Getenv(EnvHosts); hosts != "" {
		s.Hosts = strings.Split(hosts, ",")
	}
	o.parts, err = parts(*s)
	return o, err
}

// local returns the settings of the emulator. On AWS it returns the zero value.
func local() (l wiring.Local) {
	if text := os.Getenv(EnvLocal); text != "" {
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			fail(fmt.Errorf("%s is not JSON: %w", EnvLocal, err))
		}
	}
	return l
}

// own reads the servers file that was deployed with this function.
func own() (*serversfile.File, error) {
	if local().URL != "" {
		return serversfile.LoadAccepted(os.Getenv(EnvServers))
	}
	c, _, err := serversfile.Load(os.Getenv(EnvServers), os.LookupEnv)
	return c, err
}

// function makes the [wiring.Function] for one version of the servers file.
func (o *opened) function(servers *serversfile.File) (*wiring.Function, error) {
	s, p := o.settings, o.parts
	s.Servers, s.Lock = servers, held.LockOf(os.Getenv(EnvServers), false)
	if err := access(&s); err != nil {
		return nil, err
	}
	boxes, lag, err := openFleet(servers)
	if err != nil {
		return nil, err
	}
	p.Fleet, p.ListLag, p.Place = boxes, lag, boxes.Choose
	f, err := wiring.New(s, p)
	if err != nil {
		return nil, fmt.Errorf("%s, %s or %s: %w", EnvSecret, EnvOtherSecret, EnvAccess, err)
	}
	for _, r := range servers.Rejected() {
		f.Log.Error("server is off", "error", r.String())
	}
	return f, nil
}

// parts opens the services that the environment names, except for Parts.Fleet.
func parts(s wiring.Settings) (p wiring.Parts, err error) {
	p = wiring.Parts{
		Runners: connections(EnvConnections), Clients: connections(EnvClients), Meter: newMeter(s.Metrics),
		Log: slog.New(slog.NewJSONHandler(os.Stderr, nil)),
	}
	p.Bodies = p.Log
	if p.Store, p.Spent, err = openStore(os.Getenv(EnvStore), s.Limits); err != nil {
		return p, err
	}
	kept := bucketIn(bucket.Location{Region: os.Getenv(envRegion)})
	if err := p.KeepIn(os.Getenv(EnvSnapshots), keptFolder, kept); err != nil {
		return p, fmt.Errorf("%s: %w", EnvSnapshots, err)
	}
	return p, nil
}

func bucketIn(location bucket.Location) bucket.Config {
	location.Endpoint = cmp.Or(location.Endpoint, os.Getenv(envEndpoint))
	return bucket.Config{Location: location, Credentials: credentials(), Domain: os.Getenv(envDomain)}
}

// metricsSpace returns the CloudWatch namespace for metrics in log lines, or "" for none. Outside
// AWS it returns "".
func metricsSpace() string {
	space := os.Getenv(EnvMetrics)
	if space == "off" || local().URL != "" || os.Getenv(envSAMLocal) == "true" {
		return ""
	}
	return space
}

func newMeter(metrics string) *meter.Meter {
	memory, _ := strconv.ParseFloat(os.Getenv(envMemory), 64) // 0 if unset: the meter then assumes the value in template.yaml
	return meter.New(meter.Options{MemoryMB: memory, Started: time.Now(), Metrics: metrics})
}

func fail(err error) {
	slog.New(slog.NewJSONHandler(os.Stderr, nil)).Error("function cannot start", "error", err)
	os.Exit(1)
}
