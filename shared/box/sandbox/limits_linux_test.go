package sandbox

import (
	"fmt"
	"strings"
	"testing"
)

const mib = 1 << 20

func TestMemoryLimitBites(t *testing.T) {
	everyHost(t, func(t *testing.T, h host) {
		p := h.policy(t)
		const most = (192*mib + Reserved) / mib
		expect(t, h.probe(t, p, "memory", fmt.Sprint(most)), fmt.Sprintf("mib=%d", most))
		p.Memory = 192 * mib
		out := h.probe(t, p, "memory", fmt.Sprint(most))
		expect(t, out, "next=ENOMEM")
		var got int
		if _, err := fmt.Sscanf(out, "mib=%d", &got); err != nil || got < most-144 || got > most {
			t.Errorf("%d MiB, %v:\n%s", got, err, out)
		}
	})
}

func TestMemoryLimitLeavesInterpretersTheirAddressSpace(t *testing.T) {
	const eat = (256*mib+Reserved)/mib + 50 // MiB, more than the limit allows
	for _, c := range []struct{ name, hello, hog, from string }{
		{"node", "console.log('hello')", fmt.Sprintf("const all=[];for(let i=0;i<%d;i++)all.push(Buffer.alloc(1<<20));console.log('full')", eat), "from https://nodejs.org"},
		{"python3", "print('hello')", fmt.Sprintf("all=bytearray(%d<<20); print('full')", eat), "for instance with apt-get install python3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := interpreter(t, c.name, c.from)
			flag := map[string]string{"node": "-e", "python3": "-c"}[c.name]
			everyHost(t, func(t *testing.T, h host) {
				p := h.policy(t)
				p.Memory = 256 * mib
				expect(t, h.run(t, job{Policy: p, Path: path, Args: []string{flag, c.hello}}).out, "hello")
				if r := h.run(t, job{Policy: p, Path: path, Args: []string{flag, c.hog}}); r.code == 0 || strings.Contains(r.out, "full") {
					t.Errorf("it had %d MiB and exited with %d", eat, r.code)
				}
				p.Memory = 0
				expect(t, h.run(t, job{Policy: p, Path: path, Args: []string{flag, c.hog}}).out, "full")
			})
		})
	}
}

func TestProcessLimitBitesForAUserOfItsOwn(t *testing.T) {
	everyHost(t, func(t *testing.T, h host) {
		p := h.policy(t)
		p.Processes = 40
		if !h.ownUser() {
			p.Demand = []Guard{GuardProcesses}
			r := h.run(t, job{Policy: p, Path: prober(t), Args: []string{"threads", "1"}})
			if r.code == 0 || !strings.Contains(r.out, "processes") {
				t.Errorf("exit code %d, %s", r.code, r.out)
			}
			return
		}
		out := h.probe(t, p, "threads", "100")
		expect(t, out, "next=EAGAIN")
		var n int
		if _, err := fmt.Sscanf(out, "started=%d", &n); err != nil || n < 1 || n > 40 {
			t.Errorf("%d processes, %v", n, err)
		}
	})
}

func TestCPULimitCannotBeUndone(t *testing.T) {
	everyHost(t, func(t *testing.T, h host) {
		p := h.policy(t)
		p.CPUs = 0.5
		expect(t, h.probe(t, p, "cpus"), "cpus 1=ok", "more=EPERM")
	})
}

// A program that has the user of its runner could leave it without a processor.
func TestSchedulingIsForTheCallingThreadOnly(t *testing.T) {
	everyHost(t, func(t *testing.T, h host) {
		expect(
			t, h.probe(t, h.policy(t), "schedule"), "own priority=ok", "own scheduler=ok", "own disk=ok", "own processors=ok",
			"named priority=EPERM", "named scheduler=EPERM", "named disk=EPERM", "named processors=EPERM", "of the user=EPERM",
		)
	})
}
