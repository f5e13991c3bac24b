package process

import (
	"bufio"
	"encoding/json"
	"io"
	"strings"
	"sync"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
)

const maxLine = 64 << 10

// output passes the lines of one task to Config.Output, one after another.
type output struct {
	pool *Pool
	of   fleet.Status

	mu      sync.Mutex
	failure string // the last error in the lines
}

// copy reads lines from a pipe until its end, even if Config.Output is nil: a full pipe would stop
// the runner.
func (o *output) copy(pipe io.Reader) {
	r := bufio.NewReaderSize(pipe, maxLine)
	for {
		line, more, err := r.ReadLine()
		if err != nil {
			return
		}
		o.line(string(line))
		for more && err == nil {
			_, more, err = r.ReadLine()
		}
	}
}

func (o *output) line(line string) {
	line = strings.ToValidUTF8(line[:min(len(line), maxLine)], "\uFFFD")
	o.mu.Lock()
	defer o.mu.Unlock()
	if why := errorOf(line); why != "" {
		o.failure = why
	}
	if o.pool.cfg.Output != nil {
		o.pool.cfg.Output(o.of, line)
	}
}

func (o *output) lastError() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.failure
}

// maxFailure limits the bytes of a runner's error in a [fleet.Status].
const maxFailure = 500

// errorOf returns the error in a line of a runner's log. It returns "" if the line is not
// JSON with the level ERROR.
func errorOf(line string) string {
	if !strings.Contains(line, `"ERROR"`) {
		return ""
	}
	var entry struct {
		Level string `json:"level"`
		Error string `json:"error"`
	}
	if json.Unmarshal([]byte(line), &entry) != nil || entry.Level != "ERROR" {
		return ""
	}
	return strings.ToValidUTF8(entry.Error[:min(len(entry.Error), maxFailure)], "")
}
