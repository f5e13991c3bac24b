package box

import (
	"maps"

	"github.com/dormouse-mcp/dormouse/shared/box/stage"
)

// confine resolves what is started for a process that is in place, and has it
// started in the sandbox that the server wants. There is no way past one: if it
// cannot be made, nothing is started.
func (p *process) confine(s Server, placed stage.Launch) (launch, error) {
	if s.Sandbox == nil {
		return s.launch()
	}
	place, err := s.Sandbox(p.s.id, placed)
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
	l.start = place.Start
	l.clear = func() {
		if err := place.End(); err != nil {
			log.Warn("the sandbox is not cleared", "session", p.s.id, "error", err)
		}
	}
	return l, err
}
