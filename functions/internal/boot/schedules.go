package boot

import (
	"cmp"
	"context"
	"net/http"
	"os"
	"time"
)

// Alarms of native servers.
const (
	EnvSchedules       = "DORMOUSE_SCHEDULES"        // native.SchedulesConfig as JSON; empty: no alarms are kept
	EnvSchedulesSocket = "DORMOUSE_SCHEDULES_SOCKET" // on one machine: EventBridge Scheduler's API
)

// API is one of AWS's, or what takes its place on one machine.
type API struct {
	Endpoint string
	Client   *http.Client                                               // nil is the usual one
	Sign     func(ctx context.Context, r *http.Request, b []byte) error // nil where nobody asks for it
}

// Schedules is what EnvSchedules says, and where EventBridge Scheduler is.
func (f *Function) Schedules() (place string, api API) {
	region, socket := os.Getenv(envRegion), os.Getenv(EnvSchedulesSocket)
	place = os.Getenv(EnvSchedules)
	if socket != "" {
		transport := &http.Transport{DisableKeepAlives: true, DialContext: overUnix(socket)}
		return place, API{Endpoint: "http://local", Client: &http.Client{Timeout: 10 * time.Second, Transport: transport}}
	}
	return place, API{
		Endpoint: "https://scheduler." + region + "." + cmp.Or(os.Getenv(envDomain), "amazonaws.com"),
		Sign: func(ctx context.Context, r *http.Request, body []byte) error {
			return sign(ctx, r, body, "scheduler", region)
		},
	}
}
