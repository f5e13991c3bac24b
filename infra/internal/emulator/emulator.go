// Package emulator imitates AWS on one machine, for tests. The functions are programs of
// their own: a stand-in for Lambda (package lambda) starts them, and one for API Gateway
// (package apigw) makes events of requests, with AWS's limits. Package local does everything
// else, as in dormouse run without an emulator.
//
//	client ─HTTP──▶  apigw ─event─▶ lambda ─▶ http
//	client ─WS────▶  sockets ─▶ apigw ─▶ lambda ─▶ socket
//	runner ─WS────▶  sockets ─▶ apigw ─▶ lambda ─▶ relay
//	timer, task ──▶  lambda ─▶ sweep
//
// The functions reach the stand-ins for AWS's services at a URL with a secret path.
package emulator

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/google/uuid"

	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/functions/wiring/authorization"
	"github.com/dormouse-mcp/dormouse/functions/wiring/endpoints"
	"github.com/dormouse-mcp/dormouse/infra/internal/emulator/apigw"
	"github.com/dormouse-mcp/dormouse/infra/internal/emulator/aws"
	"github.com/dormouse-mcp/dormouse/infra/internal/emulator/lambda"
	"github.com/dormouse-mcp/dormouse/infra/internal/emulator/logline"
	"github.com/dormouse-mcp/dormouse/infra/local"
	"github.com/dormouse-mcp/dormouse/infra/local/scheduler"
	"github.com/dormouse-mcp/dormouse/infra/local/sockets"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet/process/pooltest"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
	"github.com/dormouse-mcp/dormouse/shared/operate/console"
	"github.com/dormouse-mcp/dormouse/shared/store/meter"
	"github.com/dormouse-mcp/dormouse/shared/store/sqlitestore"
)

// Options says how the functions run.
type Options struct {
	Programs   string        // folder of the functions' programs
	Own        string        // a program that replaces the functions http and socket, because it contains servers in Go; "" for none
	SleepAfter time.Duration // how long a process of a function may be idle until it is stopped

	// If Boxes is set, boxes that fit on Lambda run as invocations of a function. BoxLife is the
	// longest life of such a box; 0 means 15 minutes, as on Lambda.
	Boxes   bool
	BoxLife time.Duration
}

// Open returns a [local.Opener] that runs the functions as o says.
func Open(o Options) local.Opener {
	return func(ctx context.Context, site *local.Site) (local.Functions, error) {
		e := &emulated{Options: o, site: site}
		if err := e.open(ctx); err != nil {
			return nil, errors.Join(err, e.Close(context.WithoutCancel(ctx)))
		}
		return e, nil
	}
}

// emulated implements [local.Functions]. Each function is a program that takes its work from an
// imitation of Lambda's Runtime API, as events of API Gateway.
type emulated struct {
	Options
	site    *local.Site
	pool    *lambda.Pool
	api     *lambda.API
	rest    *apigw.RESTAPI
	relay   *sockets.API // the WebSocket API for runners
	socket  *sockets.API // the WebSocket API for clients
	alarm   *schedules
	invoked *invokedBoxes // nil if boxes do not run as invocations
	store   storage.Store
	own     atomic.Pointer[api.Options] // options of the API for operators on the control socket
	local   string                      // base URL of the stand-ins for AWS's services, with a secret path
}

const (
	// eventRetryWait is how long the API waits before it retries an event. On Lambda that is a
	// minute, which is too long for tests.
	eventRetryWait = time.Second
	// maxInstances is the largest number of processes of one function. Each takes about
	// 20 MB.
	maxInstances = 200
	maxBoxes     = 64
	// functionStopGrace is the time between SIGTERM and SIGKILL, as on Lambda.
	functionStopGrace = 500 * time.Millisecond
)

// Stages of the WebSocket APIs.
const (
	relayStage  = "relay"
	socketStage = "local"
)

// open opens the stand-ins for AWS, which start the functions when requests arrive. The functions
// inherit the environment of this program, because servers in Go that are part of them may read it.
func (e *emulated) open(ctx context.Context) error {
	file, err := e.accept(e.site.Servers)
	if err == nil {
		err = e.forget(file)
	}
	if err != nil {
		return fmt.Errorf("hand the servers file to the functions: %w", err)
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("open the stand-in for AWS's services: %w", err)
	}
	// The path is a secret that only the functions know.
	secret := "/" + uuid.NewString()
	e.local = "http://" + l.Addr().String() + secret
	if e.Options.Boxes {
		if e.invoked, err = openInvoked(e); err != nil {
			return errors.Join(err, l.Close())
		}
	}
	if err := e.start(file); err != nil {
		return errors.Join(err, l.Close())
	}
	e.site.Listen(l, http.StripPrefix(secret, e.services()))
	e.alarm.Start()
	return nil
}

// start opens the parts that invoke the functions. The argument file is the servers file of the
// functions; see accept.
func (e *emulated) start(file string) (err error) {
	e.pool, err = lambda.NewPool(lambda.PoolConfig{
		SleepAfter: e.SleepAfter, StopGrace: functionStopGrace, Recorder: e.site.Recorder, Logger: e.site.Logger,
		Output: e.output, Env: e.environment(file), Functions: e.configs(),
	})
	if err != nil {
		return err
	}
	e.api = lambda.NewAPI(lambda.APIConfig{Pool: e.pool, RetryWait: eventRetryWait, Tries: 3, EventAge: 6 * time.Hour, Logger: e.site.Logger})
	alarms, err := scheduler.New(scheduler.Config{Folder: e.site.Folder.File("schedules"), Send: func(event []byte) (<-chan struct{}, error) { return e.api.Send("http", event) }, Logger: e.site.Logger})
	if err != nil {
		return err
	}
	e.alarm = &schedules{API: alarms, tokens: map[string]string{}}
	e.rest = &apigw.RESTAPI{Function: "http", Paths: e.paths(), Invoker: e.pool, Stage: "local", APIID: "local", Logger: e.site.Logger}
	e.relay, e.socket = e.site.OpenSockets(noDisconnect{e.routes(e.pool, relayStage, "relay")}, e.routes(e.pool, socketStage, "socket"), apigw.Limits())
	return e.renewOperators(e.site.Servers)
}

// output handles a log line of a function, and copies it to the log unchanged.
func (e *emulated) output(_, line string) {
	if event, ok := logline.Parse(line); ok {
		e.site.Observe(event)
	}
	_, _ = fmt.Fprintln(e.site.Log, line)
}

// services serves the stand-ins for AWS's services, each below its name.
func (e *emulated) services() http.Handler {
	mux := http.NewServeMux()
	if e.invoked != nil {
		mux.Handle("/lambda/2015-03-31/functions/"+boxFunction+"/", http.StripPrefix("/lambda", e.invoked.api))
	}
	for name, h := range map[string]http.Handler{
		"lambda": e.api, "scheduler": e.alarm, "fleet": pooltest.Handler(e.site.Boxes), "connections": apigw.Connections{relayStage: e.relay, socketStage: e.socket},
	} {
		mux.Handle("/"+name+"/", http.StripPrefix("/"+name, h))
	}
	return mux
}

// routes returns the routes of a WebSocket API with one function behind it.
func (e *emulated) routes(functions lambda.Invoker, stage, function string) sockets.Routes {
	return apigw.SocketRoutes{APIID: function, Stage: stage, Function: function, Invoker: functions, Log: e.site.Logger}
}

// noDisconnect has no route $disconnect. The API for runners has none on AWS either.
type noDisconnect struct{ sockets.Routes }

// Disconnect implements [sockets.Routes].
func (noDisconnect) Disconnect(context.Context, sockets.Conn, int, string) {}

func (e *emulated) configs() []lambda.FunctionConfig {
	hosts := []string{"DORMOUSE_HOSTS=" + strings.Join(e.site.Hosts, ",")}
	sockets := []string{"DORMOUSE_HOSTS=" + strings.Join(e.site.SocketHosts, ",")}
	return []lambda.FunctionConfig{
		{Name: "http", Path: e.program("http"), Timeout: 15 * time.Minute, MaxInstances: maxInstances, Env: hosts},
		{Name: "socket", Path: e.program("socket"), Timeout: 29 * time.Second, MaxInstances: maxInstances, Env: sockets},
		{Name: "relay", Path: e.program("relay"), Timeout: 29 * time.Second, MaxInstances: maxInstances},
		{Name: "sweep", Path: e.program("sweep"), Timeout: 5 * time.Minute, MaxInstances: 2},
		{Name: "oauth", Path: e.program("oauth"), Timeout: 29 * time.Second, MaxInstances: maxInstances, Env: hosts},
		{Name: "console", Path: e.program("console"), Timeout: 29 * time.Second, MaxInstances: maxInstances, Env: hosts},
	}
}

// program returns the path of a function's program: [Options].Own if it replaces the function.
func (e *emulated) program(name string) string {
	if e.Own != "" && (name == "http" || name == "socket") {
		return e.Own
	}
	return filepath.Join(e.Programs, name)
}

// paths returns the names of functions by the URL paths that they serve. The http function serves
// all other paths. template.yaml has the same paths.
func (e *emulated) paths() map[string]string {
	of := map[string]string{strings.TrimSuffix(console.Path, "/"): "console", console.Path: "console"}
	for _, path := range authorization.Paths(e.site.Access == local.AccessOAuth) {
		of[path] = "oauth"
	}
	return of
}

// Serve implements [local.Functions]. A process that is just starting may find the previous servers
// file gone, and fail; the pool then starts another one.
func (e *emulated) Serve(servers *serversfile.File) error {
	file, err := e.accept(servers)
	if err != nil {
		return fmt.Errorf("hand the servers file to the functions: %w", err)
	}
	if err := e.renewOperators(servers); err != nil {
		return errors.Join(err, os.Remove(file))
	}
	e.pool.Renew(e.environment(file))
	return e.forget(file)
}

// environment returns the environment variables of all functions, as template.yaml sets them on
// AWS. The argument servers is the path of their servers file.
func (e *emulated) environment(servers string) []string {
	s := e.site
	env := inherited(s.Environ)
	for name, value := range passedOn(s) {
		env = append(env, name+"="+value)
	}
	if e.invoked != nil {
		env = append(env, e.invoked.environment()...)
	}
	return append(env,
		"DORMOUSE_STORE="+s.Store,
		"DORMOUSE_SERVERS="+servers,
		"DORMOUSE_ACCESS="+s.Access,
		"DORMOUSE_PUBLIC_URL="+s.PublicURL,
		"DORMOUSE_SECRET="+hex.EncodeToString(s.Folder.Secret),
		snapshotsEnv+"="+cmp.Or(variables(s.Environ).get(snapshotsEnv), "folder:"+s.Snapshots),
		"DORMOUSE_IDLE="+strconv.FormatFloat(s.Idle.Seconds(), 'f', -1, 64),
		"DORMOUSE_RELAY_URL="+s.RelayURL,
		"DORMOUSE_RELAY_CONNECTIONS="+e.local+"/connections/"+relayStage,
		"DORMOUSE_SOCKET_CONNECTIONS="+e.local+"/connections/"+socketStage,
		"DORMOUSE_SCHEDULES="+scheduleSettings(),
		e.tells(),
		// Programs of releases up to 0.1.0-alpha.2, which tests of upgrades run, read the following
		// variables instead of DORMOUSE_EMULATOR.
		"DORMOUSE_LOCAL="+e.local,
		"DORMOUSE_LOCAL_ONLY="+onOff(s.OnLoopback),
		"DORMOUSE_LOCAL_SINCE="+s.Boxes.Traits("").Since.Format(time.RFC3339Nano),
		"DORMOUSE_ORIGINS="+strings.Join(s.Origins, ","),
		"DORMOUSE_SHOW_OUTPUT="+onOff(s.Private),
	)
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// tells returns the variable DORMOUSE_EMULATOR, from which functions learn that they do not run on
// AWS.
func (e *emulated) tells() string {
	s := e.site
	l := wiring.Local{
		URL: e.local, Loopback: s.OnLoopback, Since: s.Boxes.Traits("").Since, Origins: s.Origins, ShowErrors: s.Private,
		Limits: sessions.Limits{InitTimeout: s.InitTimeout, Hold: s.Hold},
	}
	if e.invoked != nil {
		l.Place = "lambda"
	}
	text, _ := json.Marshal(l) // a wiring.Local always marshals
	return "DORMOUSE_EMULATOR=" + string(text)
}

// scheduleSettings returns the JSON of an eventbridge.Scheduler.
func scheduleSettings() string {
	return `{"group":"` + scheduleGroup + `","target":"` + aws.FunctionARN("http") + `","role":"arn:aws:iam::` + aws.Account + `:role/schedules"}`
}

// Web implements [local.Functions].
func (e *emulated) Web() http.Handler { return e.rest }

// Sockets implements [local.Functions].
func (e *emulated) Sockets() http.Handler { return e.socket }

// Console implements [local.Functions]. The console function serves the page, and accepts the links
// that the console of dormouse run creates.
func (e *emulated) Console() http.Handler { return e.rest }

// WaitingAlarms implements [local.Functions].
func (e *emulated) WaitingAlarms() int { return e.alarm.Len() }

// Records implements [local.Functions].
func (e *emulated) Records() storage.Store { return e.store }

// Boxes implements [local.Functions].
func (e *emulated) Boxes() []fleet.Status {
	if e.invoked == nil {
		return nil
	}
	return e.invoked.tasks()
}

// EndBoxes implements [local.Functions].
func (e *emulated) EndBoxes(ctx context.Context) {
	if e.invoked != nil {
		e.invoked.close(ctx)
	}
}

// Sweep implements [local.Functions]: it invokes the sweep function, as EventBridge does.
func (e *emulated) Sweep(stopped *fleet.Status) <-chan struct{} {
	event := cloudWatchEvent("Scheduled Event", json.RawMessage("{}"))
	if stopped != nil {
		detail, err := json.Marshal(stopped)
		if err != nil { // a Status holds only strings, numbers and times, so this cannot fail
			panic("emulator: a task status that cannot be encoded: " + err.Error())
		}
		event = cloudWatchEvent("Dormouse Task Stopped", detail)
	}
	payload, err := json.Marshal(event)
	if err != nil { // the member Detail is valid JSON, so this cannot fail
		panic("emulator: an event that cannot be encoded: " + err.Error())
	}
	done, err := e.api.Send("sweep", payload)
	if err != nil {
		e.site.Logger.Warn("a sweep was not begun; the next one will try again", "detail_type", event.DetailType, "error", err)
		none := make(chan struct{})
		close(none)
		return none
	}
	return done
}

func cloudWatchEvent(kind string, detail json.RawMessage) events.CloudWatchEvent {
	return events.CloudWatchEvent{
		Version: "0", ID: uuid.NewString(), DetailType: kind, Source: "dormouse.local", AccountID: aws.Account,
		Time: time.Now().UTC().Truncate(time.Second), Region: "local", Resources: []string{}, Detail: detail,
	}
}

// Close first closes the parts that call functions, and then the functions.
func (e *emulated) Close(ctx context.Context) (err error) {
	e.EndBoxes(ctx)
	if e.alarm != nil {
		err = e.alarm.Close(ctx)
	}
	if e.api != nil {
		err = errors.Join(err, e.api.Close(ctx))
	}
	if e.pool != nil {
		err = errors.Join(err, e.pool.Close(ctx))
	}
	if e.store != nil {
		err = errors.Join(err, e.store.Close())
	}
	return errors.Join(err, e.forget(""))
}

// accept writes servers to a file in the data folder, for the functions, and returns its path.
// The name of the file contains a digest of its content, so no process sees the file change.
// The file holds secrets, so only this user may read it.
func (e *emulated) accept(servers *serversfile.File) (string, error) {
	data := servers.Marshal()
	sum := sha256.Sum256(data)
	path := e.site.Folder.File("accepted-" + hex.EncodeToString(sum[:8]) + ".json")
	return path, os.WriteFile(path, data, 0o600)
}

// forget removes all files that accept has written, in this run or an earlier one, except current.
func (e *emulated) forget(current string) error {
	all, err := filepath.Glob(e.site.Folder.File("accepted-*.json"))
	for _, file := range all {
		if file != current {
			err = errors.Join(err, os.Remove(file))
		}
	}
	return err
}

// renewOperators makes the API for operators on the control socket use these servers. The first
// call opens the store.
func (e *emulated) renewOperators(servers *serversfile.File) (err error) {
	s := wiring.Settings{Servers: servers, Secret: e.site.Folder.Secret}
	if err := s.Read(variables(e.site.Environ).get); err != nil {
		return err
	}
	if e.store == nil {
		if e.store, err = local.OpenStore(e.site.Store, variables(e.site.Environ).get, s.Limits, sqlitestore.Options{Damaged: e.site.Damaged}); err != nil {
			return err
		}
	}
	f, err := wiring.New(s, wiring.Parts{
		Store: e.store, Fleet: e.site.Boxes, Runners: e.relay, Clients: sockets.Clients{API: e.socket},
		Meter: meter.New(meter.Options{}), Log: e.site.Logger,
	})
	if err != nil {
		return err
	}
	own := endpoints.Operators(f, endpoints.Janitor(f, endpoints.Alarms{}))
	e.site.Describe(&own)
	e.own.Store(&own)
	return nil
}

// Operators implements [local.Functions].
func (e *emulated) Operators() api.Options { return *e.own.Load() }
