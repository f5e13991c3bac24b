package process

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/fleet"
)

const maxLine = 64 << 10

// copyLines hands the runner's output to the sink until it ends, and returns the last
// error in it. It reads on when there is no sink: a full pipe would stop the runner.
func (p *Pool) copyLines(task fleet.Status, from io.Reader) (failure string) {
	r := bufio.NewReaderSize(from, maxLine)
	for {
		line, rest, err := readLine(r)
		if why := errorOf(line); why != "" && !rest {
			failure = why
		}
		if p.cfg.Output != nil && (len(line) > 0 || err == nil) {
			p.cfg.Output(task, strings.ToValidUTF8(line, "\uFFFD"))
		}
		for rest && err == nil {
			_, rest, err = readLine(r)
		}
		if err != nil {
			return failure
		}
	}
}

// maxFailure is how many bytes of a runner's error a [fleet.Status] has.
const maxFailure = 500

// errorOf is what a line of a runner's log gives as its error, "" if it is none of the
// level ERROR.
func errorOf(line string) string {
	if !strings.Contains(line, `"ERROR"`) {
		return ""
	}
	var said struct {
		Level string `json:"level"`
		Error string `json:"error"`
	}
	if json.Unmarshal([]byte(line), &said) != nil || said.Level != "ERROR" {
		return ""
	}
	return strings.ToValidUTF8(said.Error[:min(len(said.Error), maxFailure)], "")
}

// readLine returns the next line without its end; rest says that the line was
// longer than the buffer and goes on.
func readLine(r *bufio.Reader) (line string, rest bool, err error) {
	b, err := r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return string(b), true, nil
	}
	return strings.TrimRight(string(b), "\r\n"), false, err
}
