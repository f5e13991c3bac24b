package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// clearTime limits how long the pool tries to kill the processes of a runner.
const clearTime = 5 * time.Second

// BecomeSubreaper makes this program the parent of the orphans among its descendants. A
// [Pool] needs this to find and reap every process of a box whose runner was killed. The
// setting holds for the whole program, until its end. Call BecomeSubreaper once, from main,
// before the first task. A Pool may take a child of this program for an orphan, and kill it, if the
// child is in a session of its own and no Pool has started it. On systems without subreapers
// BecomeSubreaper does nothing.
func BecomeSubreaper() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become the parent of orphaned processes: %w", err)
	}
	return nil
}

func runnerAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
}

// reap waits for the end of the runner, kills the processes that it left behind, and then takes
// its exit status. Before reap takes the status, the kernel gives no other process the runner's
// pid or session id.
func (p *Pool) reap(t *task) error {
	pid := t.status.PID
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	p.runnerGone(t)
	left := p.clearRemains(pid)
	// ProcessState has the exit status, so the error says nothing new.
	_ = t.cmd.Wait()
	return left
}

// clearRemains kills the processes that the runner left behind, until none is alive. Its error names
// a process that did not die.
func (p *Pool) clearRemains(runner int) error {
	killed := map[int]uint64{}
	for pause, until := time.Millisecond, time.Now().Add(clearTime); ; pause = min(2*pause, 50*time.Millisecond) {
		table, err := readProcesses()
		if err != nil {
			return fmt.Errorf("read the process table: %w", err)
		}
		doomed := p.remainsOf(table, runner, killed)
		if len(doomed) == 0 {
			return nil
		}
		for _, d := range doomed {
			switch {
			case !d.zombie:
				_ = unix.Kill(d.pid, unix.SIGKILL)
				killed[d.pid] = d.start
			case d.parent == os.Getpid():
				_, _ = unix.Wait4(d.pid, nil, unix.WNOHANG, nil)
			}
		}
		if time.Now().After(until) {
			return fmt.Errorf("%d processes of session %d did not end, one is pid %d", len(doomed), runner, doomed[0].pid)
		}
		time.Sleep(pause)
	}
}

type proc struct {
	pid, parent, session int
	zombie               bool
	start                uint64 // in clock ticks since boot
}

// remainsOf picks from the process table what the runner has left behind: the processes of its
// session, orphans (see stray), and all their descendants. It leaves out zombies that another
// process has to reap. killed has the start time of each killed process, by pid.
func (p *Pool) remainsOf(table map[int]proc, runner int, killed map[int]uint64) []proc {
	first, ok := table[runner]
	adopts := ok && isSubreaper()
	self := os.Getpid()
	own, err := unix.Getsid(self)
	doomed := map[int]bool{}
	for pid, d := range table {
		foreign := adopts && err == nil && d.parent == self && d.session != own && d.start >= first.start
		if d.session == runner || foreign && p.stray(table, d, killed) {
			doomed[pid] = true
		}
	}
	for grown := true; grown; {
		grown = false
		for pid, d := range table {
			if doomed[d.parent] && !doomed[pid] {
				doomed[pid], grown = true, true
			}
		}
	}
	delete(doomed, runner)
	list := make([]proc, 0, len(doomed))
	for pid := range doomed {
		if d := table[pid]; !d.zombie || d.parent == self || doomed[d.parent] {
			list = append(list, d)
		}
	}
	return list
}

// stray reports whether d, a child of this program in another session, is an orphan that this
// program has adopted and not started. That depends on the leader of d's session. A leader whose
// environment has the variable taskEnv, or equals that of this program, is a runner of some pool:
// before its exec, a runner has the environment of this program.
//
// A leader that has ended shows no environment, and may be the runner of another task. Then only
// the leader itself counts as a stray, once it has been a zombie for long. A process that was
// killed as a stray stays one until it is reaped.
func (p *Pool) stray(table map[int]proc, d proc, killed map[int]uint64) bool {
	if start, was := killed[d.pid]; was && start == d.start {
		return true
	}
	if p.cfg.Started != nil && p.cfg.Started(d.session) {
		return false // the process belongs to a task that runs in this program
	}
	leader, ok := table[d.session]
	switch {
	case !ok:
		return true
	case leader.zombie:
		return d.pid == leader.pid && p.isOldZombie(d)
	}
	name := "/proc/" + strconv.Itoa(leader.pid)
	env, err := os.ReadFile(name + "/environ")
	if err != nil {
		return false
	}
	// A process that is about to end shows no environment, and no executable either.
	if _, err := os.Readlink(name + "/exe"); err != nil {
		return false
	}
	ours, err := os.ReadFile("/proc/self/environ")
	runs := bytes.HasPrefix(env, []byte(taskEnv+"=")) || bytes.Contains(env, []byte("\x00"+taskEnv+"="))
	return err == nil && !runs && !bytes.Equal(env, ours)
}

// zombie is a child of this program that has ended and is not reaped yet.
type zombie struct {
	start uint64
	seen  time.Time // when isOldZombie saw it first
}

// isOldZombie reports whether a zombie has waited longer to be reaped than any runner does. It
// remembers the zombie for the next call.
func (p *Pool) isOldZombie(d proc) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	old, ok := p.zombies[d.pid]
	if !ok || old.start != d.start {
		p.zombies[d.pid] = zombie{start: d.start, seen: time.Now()}
		return false
	}
	return time.Since(old.seen) > 2*clearTime
}

// isSubreaper reports whether this program adopts orphans.
func isSubreaper() bool {
	var is int32
	// This does not use unix.Prctl: a pointer may become a number only in the call
	// itself, or the stack may move under it.
	_, _, errno := unix.Syscall(unix.SYS_PRCTL, unix.PR_GET_CHILD_SUBREAPER, uintptr(unsafe.Pointer(&is)), 0)
	return errno == 0 && is != 0
}

func readProcesses() (map[int]proc, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	table := make(map[int]proc, len(entries))
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue // the process ended meanwhile
		}
		if d, ok := parseStat(pid, stat); ok {
			table[pid] = d
		}
	}
	return table, nil
}

// parseStat reads a line of /proc/<pid>/stat. parseStat counts the fields from the last
// closing bracket, because the name may hold blanks and brackets.
func parseStat(pid int, stat []byte) (proc, bool) {
	const state, parent, session, start = 0, 1, 3, 19
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) <= start {
		return proc{}, false
	}
	d := proc{pid: pid, zombie: fields[state][0] == 'Z' || fields[state][0] == 'X'}
	var errParent, errSession, errStart error
	d.parent, errParent = strconv.Atoi(string(fields[parent]))
	d.session, errSession = strconv.Atoi(string(fields[session]))
	d.start, errStart = strconv.ParseUint(string(fields[start]), 10, 64)
	return d, errParent == nil && errSession == nil && errStart == nil
}
