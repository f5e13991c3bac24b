package box

import "time"

// pulse says whether a process still works, after a request has timed out.
type pulse struct {
	asked  *time.Timer // runs since the box asked the process for a sign of life; nil if the box has not asked
	silent bool        // the process has not answered within signTime
}

// signTime is how long a process may take to show that it works.
const signTime = 5 * time.Second

// doubt asks the process for a sign of life. Until the sign comes, new requests are held.
func (d *deadlines) doubt() {
	if d.pulse.asked != nil || d.p.state != ready || !d.p.isCurrent() || !d.p.proto.prove() {
		return
	}
	d.pulse.asked = d.p.box.server.Guard.After(signTime, func() {
		d.p.box.mu.Lock()
		defer d.p.box.mu.Unlock()
		d.pulse.silent = d.pulse.asked != nil
		d.over()
	})
}

// alive is called for each sign of life: a response, a question, or progress of a request in
// flight.
func (d *deadlines) alive() {
	if d.pulse.asked != nil {
		d.certain()
		d.p.sendHeld()
	}
}

func (d *deadlines) certain() {
	if d.pulse.asked != nil {
		d.pulse.asked.Stop()
	}
	d.pulse = pulse{}
}

// over replaces the process if it has given no sign of life in time, messages are held for it, and
// it has no open request.
func (d *deadlines) over() {
	p := d.p
	if p.waits() {
		d.rest()
	}
	if !d.pulse.silent || len(p.held.lines) == 0 || p.conv.passed.Len() > 0 || p.state != ready || !p.isCurrent() {
		return
	}
	d.certain()
	p.box.log.Warn("process shows no sign of life after a request that timed out, so another one takes its place",
		"server", p.box.server.Name, "process", p.group.id)
	p.replaced = "it answered nothing after a request that timed out, so another process takes its place"
	p.handOver(p.group.next())
	p.keeping.atWork = true // the process may be in the middle of writing a file
}
