// Package places makes one fleet for all places where boxes can run, such as ECS and Lambda, and
// chooses the place for each start.
package places

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
)

// Lambda is the place where boxes run as Lambda functions. The boxes of a server whose
// x-dormouse.box.place is "lambda" run there if Lambda can run them, and otherwise in the base place.
const Lambda = "lambda"

// The other values of x-dormouse.box.place, with which a server says where its boxes should run.
const (
	Auto    = "auto"    // the cheapest place that can run the box
	Fargate = "fargate" // the place that can run every box; on one machine this name means processes of the machine
)

// Fleet is a fleet of several places. It is safe for concurrent use.
type Fleet struct {
	base   string
	wish   string
	fleets map[string]fleet.Fleet
}

var _ fleet.Fleet = (*Fleet)(nil)

// New returns a fleet. The place base can run every box, and gets every start that names no place.
// wish is the default of x-dormouse.box.place. fleets has the driver of each place, base included.
// Its key is the name with which the ids of the tasks in that place begin.
func New(base, wish string, fleets map[string]fleet.Fleet) *Fleet {
	return &Fleet{base: base, wish: wish, fleets: fleets}
}

// at returns the driver of a place; "" stands for base.
func (f *Fleet) at(place string) (fleet.Fleet, bool) {
	d, ok := f.fleets[cmp.Or(place, f.base)]
	return d, ok
}

// Run implements [fleet.Fleet]. It fails with fleet.ErrInvalid for a place that the fleet
// does not have.
func (f *Fleet) Run(ctx context.Context, t fleet.Task) (string, error) {
	d, ok := f.at(t.Place)
	if !ok {
		return "", fmt.Errorf("%w: the fleet has no place %q", fleet.ErrInvalid, t.Place)
	}
	return d.Run(ctx, t)
}

// Stop implements [fleet.Fleet]. A task of a place that the fleet does not have any more is
// unknown.
func (f *Fleet) Stop(ctx context.Context, id, reason string) error {
	if d, ok := f.at(fleet.PlaceOf(id)); ok {
		return d.Stop(ctx, id, reason)
	}
	return nil
}

// Tasks implements [fleet.Fleet]. It lists the tasks of all places that list them, oldest first, and
// fails if one of these places fails.
func (f *Fleet) Tasks(ctx context.Context) ([]fleet.Status, error) {
	var all []fleet.Status
	listed := false
	for _, name := range slices.Sorted(maps.Keys(f.fleets)) {
		some, err := f.fleets[name].Tasks(ctx)
		if errors.Is(err, fleet.ErrUnlisted) {
			continue
		}
		if err != nil {
			return nil, err
		}
		all, listed = append(all, some...), true
	}
	if !listed {
		return nil, fleet.ErrUnlisted
	}
	slices.SortStableFunc(all, func(a, b fleet.Status) int { return a.Started.Compare(b.Started) })
	return all, nil
}

// Traits implements [fleet.Fleet]. A place that the fleet does not have any more cannot
// list or stop tasks.
func (f *Fleet) Traits(place string) fleet.Traits {
	if d, ok := f.at(place); ok {
		return d.Traits(place)
	}
	return fleet.Traits{Lifetime: goneLife}
}

// goneLife bounds the life of tasks in a place that the fleet does not have any more. It must
// be at least the longest limit of a place in any release.
const goneLife = 8 * time.Hour

// Needs describes a box for which [Fleet.Choose] chooses the place.
type Needs struct {
	Wish    string        // Auto, Lambda or Fargate; "" for the argument wish of New
	Attempt int           // counted from 1
	Busy    time.Duration // how long the box works each time that it is awake, on average; 0 if unknown

	CPUs        float64
	MemoryMB    int
	ToolTimeout time.Duration // 0: no limit
	Image       bool          // the server has a container image
	HostPath    bool          // the server writes to a folder of the host
	Confined    bool          // the server must be confined within the box
	Installs    bool          // the box must install packages when it starts, because no snapshot has them
}

// Limits of a box on Lambda.
const (
	lambdaCPUs   = 2
	lambdaMemory = 2048
	// lambdaTool is the longest tool timeout on Lambda, where a box ends after 15 minutes. It
	// leaves time for more than one call.
	lambdaTool = 10 * time.Minute
	// lambdaBusy is the value of Needs.Busy above which the base place is cheaper.
	lambdaBusy = 25 * time.Second
)

// Choose returns the place for a start. Choose returns Lambda for a first attempt if the fleet has
// Lambda, Lambda can run the box, and the wish permits it. In all other cases Choose returns base.
func (f *Fleet) Choose(n Needs) string {
	wish := cmp.Or(n.Wish, f.wish)
	wanted := wish == Lambda || wish == Auto && !n.Installs && n.Busy <= lambdaBusy
	if _, ok := f.fleets[Lambda]; ok && wanted && n.Attempt <= 1 && n.fitsLambda() {
		return Lambda
	}
	return f.base
}

// fitsLambda reports whether Lambda can run the box. Lambda cannot confine a server within the
// box, and cannot run the container image of a server.
func (n Needs) fitsLambda() bool {
	return !n.Image && !n.HostPath && !n.Confined && n.CPUs <= lambdaCPUs && n.MemoryMB <= lambdaMemory &&
		n.ToolTimeout > 0 && n.ToolTimeout <= lambdaTool
}
