package process

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
)

const maxLine = 64 << 10

// copyLines passes the runner's output to Config.Output until it ends, and returns the
// last error in it. It also reads without an Output, because a full pipe would stop the
// runner.
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

// maxFailure limits the bytes of a runner's error in a [fleet.Status].
const maxFailure = 500

// errorOf returns the error in a line of a runner's log, "" if its level is not ERROR.
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

// readLine returns the next line without its line end. rest says that the line is longer
// than the buffer, and the next call returns more of it.
func readLine(r *bufio.Reader) (line string, rest bool, err error) {
	b, err := r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return string(b), true, nil
	}
	return strings.TrimRight(string(b), "\r\n"), false, err
}
