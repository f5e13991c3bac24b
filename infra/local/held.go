package local

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/infra/local/display"
)

// mostHeldLines is how many lines the terminal shows about tools that are held back from clients.
const mostHeldLines = 20

// heldOf returns how many tools of a server are held back from clients, and lines that say how they
// differ from the tools that the operator has accepted. The result detail is "" if no tool is held
// back, or if that is unknown.
func heldOf(m *machine, server string) (detail string, lines []string) {
	ctx, cancel := context.WithTimeout(context.Background(), countWithin)
	defer cancel()
	s, ok := m.servers.Load().Server(server)
	pin := s.Pin()
	if !ok || pin == nil {
		return "", nil
	}
	keeper := m.functions.Operators().Held
	if keeper == nil {
		return "", nil
	}
	state, err := keeper.State(ctx, *pin)
	if err != nil || len(state.Held) == 0 {
		return "", nil
	}
	for _, t := range state.Held {
		lines = append(lines, t.Lines()...)
	}
	if marked := slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(line, "⚠") }); marked {
		detail = ", and something looks like an instruction to a model"
	}
	if more := len(lines) - mostHeldLines; more > 0 {
		lines = append(lines[:mostHeldLines], fmt.Sprintf("… and %d more lines: dormouse list", more))
	}
	return display.Count(len(state.Held), "tool") + detail, lines
}
