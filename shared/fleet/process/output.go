package process

import (
	"bufio"
	"errors"
	"io"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/fleet"
)

const maxLine = 64 << 10

// copyLines hands the runner's output to the sink until it ends. It reads on when
// there is no sink: a full pipe would stop the runner.
func (p *Pool) copyLines(task fleet.Status, from io.Reader) {
	r := bufio.NewReaderSize(from, maxLine)
	for {
		line, rest, err := readLine(r)
		if p.cfg.Output != nil && (len(line) > 0 || err == nil) {
			p.cfg.Output(task, strings.ToValidUTF8(line, "\uFFFD"))
		}
		for rest && err == nil {
			_, rest, err = readLine(r)
		}
		if err != nil {
			return
		}
	}
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
