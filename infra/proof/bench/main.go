package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "reap" {
		exit(reap(os.Args[2:]))
		return
	}
	var o options
	flag.StringVar(&o.parts, "part", "", "what to measure, with commas between: "+strings.Join(partNames(), ", ")+" (all of them)")
	flag.StringVar(&o.peers, "peers", "", "whom, with commas between: "+strings.Join(peerNames(), ", ")+" (those of the part)")
	flag.IntVar(&o.rounds, "rounds", 3, "how often; the order is another in each round; 0 only publishes what is known")
	flag.StringVar(&o.server, "server", "echo", "the stdio server behind each: echo (Go) or everything (the reference server)")
	flag.Float64Var(&o.scale, "scale", 1, "makes all times longer or shorter")
	flag.StringVar(&o.programs, "programs", "bin", "`folder` of the built programs of Dormouse")
	flag.StringVar(&o.out, "out", ".bench", "`folder` of results.json")
	flag.StringVar(&o.publish, "publish", "", "`folder` that also gets the table and the plots; the pages of docs get their figures too")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	exit(run(ctx, o, os.Stdout))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

type options struct {
	parts, peers, server, programs, out, publish string
	rounds                                       int
	scale                                        float64
}

// run measures the parts that the options select and writes the results.
func run(ctx context.Context, o options, out io.Writer) (err error) {
	ps, err := chooseParts(o.parts)
	if err != nil {
		return err
	}
	who, err := choosePeers(o.peers, ps)
	if err != nil {
		return err
	}
	p, err := findPlace(o.programs)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(p.scratch)) }()
	s := newSuite(p, o, out)
	if o.rounds < 1 {
		return s.write()
	}
	if s.place.group, err = joinGroup(); err != nil {
		s.say("no cpu group of its own: %v. The CPU is that of the processes in /proc", err)
	} else {
		defer func() { err = errors.Join(err, s.place.group.leave()) }()
	}
	missing, err := s.place.prepare(ctx, needsOf(who, o.server))
	if err != nil {
		return err
	}
	if err := s.serve(missing); err != nil {
		return err
	}
	s.leaveOut(who, missing)
	for _, part := range ps {
		if err := s.measure(ctx, part); err != nil {
			return err
		}
	}
	return s.write()
}

func findPlace(programs string) (place, error) {
	root, err := os.Getwd()
	if err != nil {
		return place{}, err
	}
	if _, err := os.Stat(filepath.Join(root, "infra/proof/bench")); err != nil {
		return place{}, fmt.Errorf("run it in the root of the repository: %w", err)
	}
	if programs, err = filepath.Abs(programs); err != nil {
		return place{}, err
	}
	self, err := os.Executable()
	if err != nil {
		return place{}, err
	}
	scratch, err := os.MkdirTemp("", "dormouse-bench-")
	if err != nil {
		return place{}, err
	}
	return place{root: root, programs: programs, tools: filepath.Join(root, ".tools/bench"), scratch: scratch, self: self}, nil
}

func peerNames() (names []string) {
	for _, p := range peers() {
		names = append(names, p.name)
	}
	return names
}

// choosePeers returns the compared programs that are named in list. If list is "", it returns those
// that any of the parts needs.
func choosePeers(list string, ps []part) ([]peer, error) {
	all := peers()
	if list == "" {
		return slices.DeleteFunc(all, func(p peer) bool {
			return !slices.ContainsFunc(ps, func(x part) bool { return x.wants(p) })
		}), nil
	}
	var chosen []peer
	for name := range strings.SplitSeq(list, ",") {
		i := slices.IndexFunc(all, func(p peer) bool { return p.name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no peer %q; there are %s", name, strings.Join(peerNames(), ", "))
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

func chooseParts(list string) ([]part, error) {
	all := parts()
	if list == "" {
		return slices.DeleteFunc(all, func(p part) bool { return p.asked }), nil
	}
	var chosen []part
	for name := range strings.SplitSeq(list, ",") {
		i := slices.IndexFunc(all, func(p part) bool { return p.name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no part %q; there are %s", name, strings.Join(partNames(), ", "))
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

func needsOf(who []peer, server string) (needs []string) {
	for _, p := range who {
		needs = append(needs, p.needs...)
	}
	if server == "everything" {
		needs = append(needs, needNode)
	}
	return needs
}
