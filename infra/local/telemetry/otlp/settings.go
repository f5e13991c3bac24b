package otlp

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

// Settings say where spans are sent, and which ones.
type Settings struct {
	Endpoint string            // URL that spans are posted to
	Headers  http.Header       // HTTP headers of each post; they may contain secrets
	Timeout  time.Duration     // longest time of one post
	Every    time.Duration     // time between two posts
	Resource map[string]string // attributes of the sender, such as service.name
	Sampler  Sampler
	Version  string // version of dormouse; FromEnviron does not set it
}

// Sampler decides for which requests spans are sent.
type Sampler struct {
	Ratio  float64 // from 0 to 1: for this share of the traces that begin here, spans are sent
	Parent bool    // for a client's trace, the sampled flag in its traceparent decides
}

// Sampled reports whether spans are sent for a trace. The argument flags has the trace flags of
// the client's traceparent header, in hexadecimal, or is "" without one.
func (s Sampler) Sampled(trace TraceID, flags string) bool {
	if s.Parent && flags != "" {
		bits, _ := strconv.ParseUint(flags, 16, 8)
		return bits&1 == 1
	}
	return s.Ratio >= 1 || float64(trace.low()>>1) < s.Ratio*(1<<63)
}

// FromEnviron reads the environment variables of the OpenTelemetry specification. The argument
// environ is as [os.Environ]. The result is nil if the variables name no endpoint, or switch
// telemetry off. Errors name the variable, but never the value of a header.
func FromEnviron(environ []string, service string) (*Settings, error) {
	v := variables{}
	for _, pair := range environ {
		if name, value, _ := strings.Cut(pair, "="); strings.HasPrefix(name, "OTEL_") {
			v[name] = strings.TrimSpace(value)
		}
	}
	if strings.EqualFold(v["OTEL_SDK_DISABLED"], "true") {
		return nil, nil //nolint:nilnil // nil means no telemetry
	}
	s := &Settings{Timeout: 10 * time.Second, Every: 5 * time.Second}
	if err := v.endpoint(s); err != nil || s.Endpoint == "" {
		return nil, err
	}
	return s, cmp.Or(v.headers(s), v.times(s), v.resource(s, service), v.sampler(s))
}

type variables map[string]string

// of returns the variable for a setting, and its value. The variable for traces has precedence
// over the general one.
func (v variables) of(what string) (name, value string) {
	if name = "OTEL_EXPORTER_OTLP_TRACES_" + what; v[name] != "" {
		return name, v[name]
	}
	name = "OTEL_EXPORTER_OTLP_" + what
	return name, v[name]
}

func (v variables) endpoint(s *Settings) error {
	switch exporter := v["OTEL_TRACES_EXPORTER"]; exporter {
	case "", "otlp":
	case "none":
		return nil
	default:
		return fmt.Errorf("OTEL_TRACES_EXPORTER is %q; it may be otlp or none", exporter)
	}
	name, value := v.of("ENDPOINT")
	if value == "" {
		return nil
	}
	u, err := url.Parse(value)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("%s is no URL of http or https; an example is http://localhost:4318", name)
	}
	if name == "OTEL_EXPORTER_OTLP_ENDPOINT" {
		u = u.JoinPath("v1/traces")
	}
	s.Endpoint = u.String()
	switch name, protocol := v.of("PROTOCOL"); protocol {
	case "", "http/json", "http/protobuf": // an OTLP/HTTP endpoint accepts both on the same path
		return nil
	default:
		return fmt.Errorf("%s is %q; Dormouse sends http/json, usually to port 4318", name, protocol)
	}
}

func (v variables) headers(s *Settings) error {
	name, value := v.of("HEADERS")
	pairs, err := list(value)
	if err != nil {
		return fmt.Errorf("%s: write key=value, with commas between the pairs, and %%2C for a comma in a value", name)
	}
	s.Headers = http.Header{}
	for _, p := range pairs {
		s.Headers.Set(p[0], p[1])
	}
	return nil
}

// list parses "key1=value1,key2=value2". Values are percent-encoded.
func list(text string) (pairs [][2]string, err error) {
	for pair := range strings.SplitSeq(text, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		key, value, ok := strings.Cut(pair, "=")
		key = strings.TrimSpace(key)
		if !ok || key == "" {
			return nil, fmt.Errorf("no key=value")
		}
		if value, err = url.PathUnescape(strings.TrimSpace(value)); err != nil {
			return nil, err
		}
		pairs = append(pairs, [2]string{key, value})
	}
	return pairs, nil
}

func (v variables) times(s *Settings) error {
	timeout, _ := v.of("TIMEOUT")
	for name, to := range map[string]*time.Duration{timeout: &s.Timeout, "OTEL_BSP_SCHEDULE_DELAY": &s.Every} {
		if v[name] == "" {
			continue
		}
		ms, err := strconv.Atoi(v[name])
		if err != nil || ms <= 0 {
			return fmt.Errorf("%s is %q; it is a number of milliseconds", name, v[name])
		}
		*to = time.Duration(ms) * time.Millisecond
	}
	return nil
}

func (v variables) resource(s *Settings, service string) error {
	s.Resource = map[string]string{"service.name": service}
	if host, err := os.Hostname(); err == nil {
		s.Resource["host.name"] = host
	}
	pairs, err := list(v["OTEL_RESOURCE_ATTRIBUTES"])
	if err != nil {
		return fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: write key=value, with commas between the pairs")
	}
	for _, p := range pairs {
		s.Resource[p[0]] = p[1]
	}
	if name := v["OTEL_SERVICE_NAME"]; name != "" {
		s.Resource["service.name"] = name
	}
	return nil
}

func (v variables) sampler(s *Settings) error {
	name, parent := strings.CutPrefix(v["OTEL_TRACES_SAMPLER"], "parentbased_")
	s.Sampler = Sampler{Ratio: 1, Parent: parent}
	switch name {
	case "":
		s.Sampler.Parent = true
	case "always_on":
	case "always_off":
		s.Sampler.Ratio = 0
	case "traceidratio":
		arg := v["OTEL_TRACES_SAMPLER_ARG"]
		if arg == "" {
			return nil
		}
		ratio, err := strconv.ParseFloat(arg, 64)
		if err != nil || !(ratio >= 0 && ratio <= 1) {
			return fmt.Errorf("OTEL_TRACES_SAMPLER_ARG is %q; it is a number from 0 to 1", arg)
		}
		s.Sampler.Ratio = ratio
	default:
		return fmt.Errorf("OTEL_TRACES_SAMPLER is %q; it may be always_on, always_off or traceidratio, each also with parentbased_ before it", v["OTEL_TRACES_SAMPLER"])
	}
	return nil
}
