package local

import (
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
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/google/uuid"

	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/functions/wiring/authserver"
	"github.com/dormouse-mcp/dormouse/infra/local/apigw"
	"github.com/dormouse-mcp/dormouse/infra/local/awsapi"
	"github.com/dormouse-mcp/dormouse/infra/local/lambda"
	"github.com/dormouse-mcp/dormouse/infra/local/scheduler"
	"github.com/dormouse-mcp/dormouse/infra/local/sockets"
	"github.com/dormouse-mcp/dormouse/shared/api"
	"github.com/dormouse-mcp/dormouse/shared/catalog"
	"github.com/dormouse-mcp/dormouse/shared/console"
	"github.com/dormouse-mcp/dormouse/shared/fleet"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// emulated executes the functions as AWS does: each is a program behind a Runtime API, and
// API Gateway's events invoke it.
type emulated struct {
	m     *machine
	pool  *lambda.Pool
	api   *lambda.API
	rest  *apigw.RESTAPI
	alarm *scheduler.API
	store session.Store
	own   atomic.Pointer[api.Options] // options of the API for operators on the control socket
	local string                      // base URL of the stand-ins for AWS's services, with a secret path
}

// eventRetryWait replaces Lambda's minute, because here a person waits for the retry.
const eventRetryWait = time.Second

// maxInstances is the largest number of processes of one function. Each takes about
// 20 MB.
const maxInstances = 200

// startEmulated opens the functions as processes. They inherit the environment of
// this program, because native servers may read it.
func (m *machine) startEmulated(ctx context.Context) error {
	e := &emulated{m: m}
	servers, err := e.accept(m.servers.Load())
	if err == nil {
		err = e.forget(servers)
	}
	if err != nil {
		return fmt.Errorf("hand the servers file to the functions: %w", err)
	}
	m.closers = append(m.closers, func(context.Context) error { return e.forget("") })
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("open the stand-in for AWS's services: %w", err)
	}
	m.closers = append(m.closers, func(context.Context) error { return l.Close() })
	// The path is a secret that only the functions know.
	secret := "/" + uuid.NewString()
	e.local = "http://" + l.Addr().String() + secret
	if m.cfg.Boxes == BoxesLambda {
		if m.invoked, err = openInvoked(m); err != nil {
			return err
		}
	}
	env := e.environment(servers)
	if err := e.checkNatives(ctx, m.servers.Load(), env); err != nil {
		return err
	}
	e.pool, err = lambda.NewPool(lambda.PoolConfig{
		SleepAfter: m.cfg.SleepAfter, Recorder: m.recorder, Logger: m.log,
		Output: m.functionOutput, Env: env, Functions: e.configs(),
	})
	if err != nil {
		return err
	}
	e.api = lambda.NewAPI(lambda.APIConfig{Invoker: e.pool, Functions: e.pool.Names(), RetryWait: eventRetryWait, Logger: m.log})
	e.alarm, err = scheduler.New(scheduler.Config{
		Folder: m.folder.File(schedulesFolder), Functions: e.pool.Names(), Send: e.api.Send, Logger: m.log,
	})
	e.rest = apigw.NewRESTAPI(apigw.RESTConfig{Function: "http", Paths: e.paths(), Invoker: e.pool, Logger: m.log})
	m.openSockets(m.routes(e.pool, relayStage, "relay"), m.routes(e.pool, socketStage, "socket"))
	m.functions = e
	m.closers = append(m.closers, e.close)
	if err != nil {
		return err
	}
	if err := e.renewOperators(m.servers.Load()); err != nil {
		return err
	}
	m.serve(l, http.StripPrefix(secret, e.services()), nil)
	e.alarm.Start()
	return nil
}

// services are the stand-ins for AWS's services.
func (e *emulated) services() http.Handler {
	mux := http.NewServeMux()
	if e.m.invoked != nil {
		mux.Handle("/lambda/2015-03-31/functions/"+boxFunction+"/", http.StripPrefix("/lambda", e.m.invoked.api))
	}
	for name, h := range map[string]http.Handler{
		"lambda": e.api, "scheduler": e.alarm, "fleet": e.m.boxes.Handler(), "connections": sockets.Connections{e.m.relay, e.m.socket},
	} {
		mux.Handle("/"+name+"/", http.StripPrefix("/"+name, h))
	}
	return mux
}

// routes returns the routes of a WebSocket API with one function behind it.
func (m *machine) routes(functions lambda.Invoker, stage, function string) sockets.Routes {
	return apigw.SocketRoutes{APIID: function, Stage: stage, Function: function, Invoker: functions, Log: m.log}
}

func (e *emulated) configs() []lambda.FunctionConfig {
	hosts := func(address string) []string {
		return []string{"DORMOUSE_HOSTS=" + strings.Join(e.m.public.servedHosts(address), ",")}
	}
	all := []lambda.FunctionConfig{
		{Name: "http", Path: e.program("http"), Timeout: 15 * time.Minute, MaxInstances: maxInstances, Env: hosts(e.m.cfg.Listen)},
		{Name: "socket", Path: e.program("socket"), Timeout: 29 * time.Second, MaxInstances: maxInstances, Env: hosts(e.m.public.socketsAddress())},
		{Name: "relay", Path: e.program("relay"), Timeout: 29 * time.Second, MaxInstances: maxInstances},
		{Name: "sweep", Path: e.program("sweep"), Timeout: 5 * time.Minute, MaxInstances: 2},
		{Name: "oauth", Path: e.program("oauth"), Timeout: 29 * time.Second, MaxInstances: maxInstances, Env: hosts(e.m.cfg.Listen)},
		{Name: "console", Path: e.program("console"), Timeout: 29 * time.Second, MaxInstances: maxInstances, Env: hosts(e.m.cfg.Listen)},
	}
	return all
}

// paths returns the paths that have a function of their own, with its name. They are
// those of template.yaml.
func (e *emulated) paths() map[string]string {
	of := map[string]string{strings.TrimSuffix(console.Path, "/"): "console", console.Path: "console"}
	for _, path := range authserver.Paths(e.m.public.access() == AccessOAuth) {
		of[path] = "oauth"
	}
	return of
}

// serve implements functions. A function process that is still starting may not find its
// old copy of the servers file any more. That does no harm: the pool has replaced the
// process.
func (e *emulated) serve(servers *catalog.Catalog) error {
	file, err := e.accept(servers)
	if err != nil {
		return fmt.Errorf("hand the servers file to the functions: %w", err)
	}
	env := e.environment(file)
	if err := e.checkNatives(context.Background(), servers, env); err != nil {
		return errors.Join(err, os.Remove(file))
	}
	if err := e.renewOperators(servers); err != nil {
		return errors.Join(err, os.Remove(file))
	}
	e.pool.Renew(env)
	return e.forget(file)
}

// environment returns the variables of all functions, as template.yaml sets them on
// AWS. servers is the file of the accepted servers.
func (e *emulated) environment(servers string) []string {
	m := e.m
	env := m.environ.inherited()
	for name, value := range m.environ.passedOn(m.store, m.snapshots()) {
		env = append(env, name+"="+value)
	}
	if m.invoked != nil {
		env = append(env, m.invoked.environment()...)
	}
	return append(env,
		"DORMOUSE_STORE="+m.store,
		"DORMOUSE_SERVERS="+servers,
		"DORMOUSE_ACCESS="+m.public.access(),
		"DORMOUSE_PUBLIC_URL="+m.public.publicURL(),
		wiring.EnvShowOutput+"="+onOff(m.public.private()),
		"DORMOUSE_SECRET="+hex.EncodeToString(m.folder.Secret),
		snapshotsEnv+"="+m.snapshots(),
		"DORMOUSE_IDLE="+strconv.FormatFloat(m.cfg.Idle.Seconds(), 'f', -1, 64),
		"DORMOUSE_RELAY_URL="+m.relayURL(),
		"DORMOUSE_RELAY_CONNECTIONS="+e.local+"/connections/"+relayStage,
		"DORMOUSE_SOCKET_CONNECTIONS="+e.local+"/connections/"+socketStage,
		"DORMOUSE_SCHEDULES="+scheduleSettings(),
		"DORMOUSE_LOCAL="+e.local,
		"DORMOUSE_LOCAL_ONLY="+onOff(m.public.onLoopback()),
		"DORMOUSE_LOCAL_SINCE="+m.boxes.Traits("").Since.Format(time.RFC3339Nano),
		"DORMOUSE_ORIGINS="+strings.Join(m.cfg.Origins, ","),
	)
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// scheduleSettings returns the place of alarms, in the form of eventbridge.Config.
func scheduleSettings() string {
	return `{"group":"` + scheduler.Group + `","target":"` + awsapi.FunctionARN("http") + `","role":"arn:aws:iam::` + awsapi.Account + `:role/schedules"}`
}

func (e *emulated) web() http.Handler { return e.rest }

func (e *emulated) sockets() http.Handler { return e.m.socket }

func (e *emulated) waitingAlarms() int { return e.alarm.Len() }

func (e *emulated) processes() []api.Function {
	all := []api.Function{}
	for _, f := range e.pool.Status() {
		for _, i := range f.Instances {
			all = append(all, api.Function{Name: f.Name, PID: i.PID, State: i.State, Since: i.Since, Invocations: i.Invocations})
		}
	}
	return all
}

// sweep invokes the sweep function, as EventBridge does.
func (e *emulated) sweep(stopped *fleet.Status) <-chan struct{} {
	event := cloudWatchEvent("Scheduled Event", json.RawMessage("{}"))
	if stopped != nil {
		detail, err := json.Marshal(stopped)
		if err != nil { // a Status holds only strings, numbers and times, so this cannot fail
			panic("local: a task status that cannot be encoded: " + err.Error())
		}
		event = cloudWatchEvent("Dormouse Task Stopped", detail)
	}
	payload, err := json.Marshal(event)
	if err != nil { // the only raw part was encoded above
		panic("local: an event that cannot be encoded: " + err.Error())
	}
	done, err := e.api.Send("sweep", payload)
	if err != nil {
		e.m.log.Warn("a sweep was not begun; the next one will try again", "detail_type", event.DetailType, "error", err)
		return closed()
	}
	return done
}

func cloudWatchEvent(kind string, detail json.RawMessage) events.CloudWatchEvent {
	return events.CloudWatchEvent{
		Version: "0", ID: uuid.NewString(), DetailType: kind, Source: "dormouse.local", AccountID: awsapi.Account,
		Time: time.Now().UTC().Truncate(time.Second), Region: "local", Resources: []string{}, Detail: detail,
	}
}

// close first closes the parts that call functions, and then the functions.
func (e *emulated) close(ctx context.Context) error {
	var err error
	closers := []func(context.Context) error{e.api.Close, e.pool.Close}
	if e.alarm != nil {
		closers = slices.Insert(closers, 0, e.alarm.Close)
	}
	for _, c := range closers {
		if failed := c(ctx); failed != nil {
			err = failed
		}
	}
	return err
}

// accept writes a catalog to a file in the data folder, for the functions, and returns its
// path. The digest is part of its name, so a process never sees the file change. The file
// holds secrets, so only this user may read it.
func (e *emulated) accept(servers *catalog.Catalog) (string, error) {
	data := servers.Marshal()
	sum := sha256.Sum256(data)
	path := e.m.folder.File("accepted-" + hex.EncodeToString(sum[:8]) + ".json")
	return path, os.WriteFile(path, data, 0o600)
}

// forget removes all files of accept but one: older ones, and those of a killed run.
func (e *emulated) forget(but string) error {
	all, err := filepath.Glob(e.m.folder.File("accepted-*.json"))
	for _, file := range all {
		if file != but {
			err = errors.Join(err, os.Remove(file))
		}
	}
	return err
}
