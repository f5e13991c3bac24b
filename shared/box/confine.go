package box

import (
	"fmt"
	"maps"

	"github.com/dormouse-mcp/dormouse/shared/box/proc"
	"github.com/dormouse-mcp/dormouse/shared/box/provision"
)

// confine resolves what is started for a process that is in place, and has it
// started in the sandbox that the server wants. There is no way past one: if it
// cannot be made, nothing is started.
func (p *process) confine(s Server, placed provision.Launch) (launch, error) {
	clear := p.mark(&s)
	if s.Sandbox == nil {
		l, err := s.launch()
		l.Clear = clear
		return l, err
	}
	place, err := s.Sandbox(p.g.id, placed)
	if err != nil {
		return launch{}, err
	}
	log := p.box.log.With("server", s.Name)
	p.box.lacks.Do(func() {
		for _, l := range place.Lacks() {
			log.Warn("the sandbox does without", "guard", string(l.Guard), "why", l.Why)
		}
	})
	base := maps.Clone(s.Base)
	if base == nil {
		base = map[string]string{}
	}
	maps.Copy(base, place.Environment())
	s.Base = base
	l, err := s.launch()
	l.Start = place.Start
	l.Clear = func() {
		clear()
		if err := place.End(); err != nil {
			log.Warn("the sandbox is not cleared", "process", p.g.id, "error", err)
		}
	}
	return l, err
}

// mark gives the process its mark, and returns what ends all that carry it.
func (p *process) mark(s *Server) (clear func()) {
	if s.Mark == "" {
		return func() {}
	}
	own := fmt.Sprintf("%s/%d", s.Mark, p.box.marks.Add(1))
	env := maps.Clone(s.Env)
	if env == nil {
		env = map[string]string{}
	}
	env[proc.MarkEnv] = own
	s.Env = env
	return func() {
		if err := proc.EndMarked(own); err != nil {
			p.box.log.Warn("what a process has started is still there", "server", s.Name, "process", p.g.id, "error", err)
		}
	}
}
