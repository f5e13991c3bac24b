package sandbox

import (
	"errors"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func guards(lacks []Lack) []Guard {
	var g []Guard
	for _, l := range lacks {
		g = append(g, l.Guard)
	}
	return g
}

func TestMissing(t *testing.T) {
	everything := Policy{Memory: 1, Processes: 1, CPUs: 1}
	open := everything
	open.Sockets = AllSockets
	internet := everything
	internet.Sockets = InternetSockets
	kept := everything
	kept.KeepUser = true
	full := Support{Limits: true, Landlock: 7, Seccomp: true, FirstUser: 1000, Users: 1000}
	without := func(change func(*Support)) Support {
		s := full
		change(&s)
		return s
	}
	for _, c := range []struct {
		name   string
		system Support
		policy Policy
		want   []Guard
	}{
		{"everything is there", full, everything, nil},
		{"nothing is there", Support{}, everything, []Guard{
			GuardNetwork, GuardSockets, GuardFiles, GuardNeighbours, GuardMemory, GuardProcesses, GuardCPUs,
		}},
		{"not root", without(func(s *Support) { s.Users = 0 }), everything, []Guard{GuardProcesses}},
		{"the user is kept", full, kept, []Guard{GuardProcesses}},
		{"no landlock", without(func(s *Support) { s.Landlock = 0 }), everything, []Guard{GuardFiles}},
		{"no landlock, the user is kept", without(func(s *Support) { s.Landlock = 0 }), kept, []Guard{GuardFiles, GuardNeighbours, GuardProcesses}},
		{"no seccomp", without(func(s *Support) { s.Seccomp = false }), everything, []Guard{GuardNetwork, GuardSockets, GuardCPUs}},
		{"no seccomp, all sockets", without(func(s *Support) { s.Seccomp = false }), open, []Guard{GuardCPUs}},
	} {
		commontest.SameIn(t, c.name, c.want, guards(c.system.Missing(c.policy)))
	}
}

func TestPolicyThatDemandsWhatIsMissingIsRefusedByName(t *testing.T) {
	_, err := New(Policy{Demand: []Guard{GuardNetwork, GuardFiles}}, Support{Landlock: 1})
	var mine *Error
	if !errors.Is(err, ErrRefused) || !errors.As(err, &mine) {
		t.Fatal(err)
	}
	if text := err.Error(); !strings.Contains(text, "network") || strings.Contains(text, "files") {
		t.Error(text)
	}
	_, err = New(Policy{Sockets: AllSockets, Demand: []Guard{GuardNetwork, GuardSockets}}, Support{})
	commontest.CheckIn(t, "a guard that is not asked for is demanded", err)
	s, err := New(Policy{}, Support{})
	commontest.OK(t, err)
	commontest.Same(t, []Guard{GuardNetwork, GuardSockets, GuardFiles, GuardNeighbours}, guards(s.Lacks()))
}

func TestUserFollowsFromTheWorkspace(t *testing.T) {
	on := Support{FirstUser: 1 << 30, Users: 1 << 30}
	user := func(p Policy) uint32 {
		s, err := New(p, on)
		commontest.OK(t, err)
		if s.user < on.FirstUser || s.user >= on.FirstUser+on.Users {
			t.Fatalf("user %d", s.user)
		}
		return s.user
	}
	one := user(Policy{Workspace: "/w/1", Temp: "/t/1"})
	commontest.EqualIn(t, "another temporary folder makes another user", user(Policy{Workspace: "/w/1", Temp: "/t/2"}), one)
	commontest.EqualIn(t, "two workspaces have one user", false, one == user(Policy{Workspace: "/w/2", Temp: "/t/1"}))
}

func TestUserRange(t *testing.T) {
	for _, c := range []struct {
		name, file string
		first, n   uint32
	}{
		{"machine", "         0          0 4294967295\n", 1 << 30, 1 << 30},
		{"container of a user", "0 1000 1\n1 100000 65536\n", 1 + 65536/2, 65536/2 - 1024},
		{"nonsense", "a b c\n0 0 99999999999999999999\n", 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			if first, n := userRange(c.file); first != c.first || n != c.n {
				t.Errorf("%s: %d from %d on, instead of %d from %d on", c.name, n, first, c.n, c.first)
			}
		})
	}
}
