package places_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet/places"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// driver is a place that notes what it is asked to do.
type driver struct {
	traits  fleet.Traits
	tasks   []fleet.Status
	fails   error
	ran     []string
	stopped []string
}

func (d *driver) Run(_ context.Context, t fleet.Task) (string, error) {
	d.ran = append(d.ran, t.ClientToken)
	return t.Place + "/" + t.ClientToken, nil
}

func (d *driver) Stop(_ context.Context, id, _ string) error {
	d.stopped = append(d.stopped, id)
	return nil
}

func (d *driver) Tasks(context.Context) ([]fleet.Status, error) { return d.tasks, d.fails }
func (d *driver) Traits(string) fleet.Traits                    { return d.traits }

func two(wish string) (f *places.Fleet, base, fast *driver) {
	base = &driver{traits: fleet.Traits{Lists: true}}
	fast = &driver{traits: fleet.Traits{Lifetime: time.Minute}, fails: fleet.ErrUnlisted}
	return places.New("ecs", wish, map[string]fleet.Fleet{"ecs": base, places.Lambda: fast}), base, fast
}

func TestAStartGoesToTheFirstPlaceThatFits(t *testing.T) {
	small := places.Needs{Attempt: 1, ToolTimeout: time.Minute}
	for name, c := range map[string]struct {
		wish   string
		change func(*places.Needs)
		want   string
	}{
		"auto":                              {places.Auto, func(*places.Needs) {}, "lambda"},
		"the stack's place":                 {places.Fargate, func(*places.Needs) {}, "ecs"},
		"the server's own place":            {places.Fargate, func(n *places.Needs) { n.Wish = places.Lambda }, "lambda"},
		"the second attempt":                {places.Lambda, func(n *places.Needs) { n.Attempt = 2 }, "ecs"},
		"an image":                          {places.Lambda, func(n *places.Needs) { n.Image = true }, "ecs"},
		"guards":                            {places.Lambda, func(n *places.Needs) { n.Confined = true }, "ecs"},
		"3 GB":                              {places.Lambda, func(n *places.Needs) { n.MemoryMB = 3072 }, "ecs"},
		"calls of eleven minutes":           {places.Lambda, func(n *places.Needs) { n.ToolTimeout = 11 * time.Minute }, "ecs"},
		"an install":                        {places.Auto, func(n *places.Needs) { n.Installs = true }, "ecs"},
		"an install that the operator asks": {places.Auto, func(n *places.Needs) { n.Installs, n.Wish = true, places.Lambda }, "lambda"},
		"long conversations":                {places.Auto, func(n *places.Needs) { n.Busy = 26 * time.Second }, "ecs"},
	} {
		f, _, _ := two(c.wish)
		n := small
		c.change(&n)
		commontest.EqualIn(t, name, c.want, f.Choose(n))
	}
	alone := places.New("process", places.Auto, map[string]fleet.Fleet{"process": &driver{}})
	commontest.EqualIn(t, "a fleet with one place chose", "process", alone.Choose(small))
}

func TestEachTaskBelongsToItsPlace(t *testing.T) {
	f, base, fast := two(places.Auto)
	for _, place := range []string{"", "ecs", places.Lambda} {
		_, err := f.Run(t.Context(), fleet.Task{ClientToken: "to " + place, Place: place})
		commontest.OK(t, err)
	}
	if _, err := f.Run(t.Context(), fleet.Task{ClientToken: "x", Place: "moon"}); !errors.Is(err, fleet.ErrInvalid) {
		t.Errorf("a place that is not there: %v", err)
	}
	for _, id := range []string{"ecs/a", "lambda/b", "an-id-of-an-earlier-version", "moon/c"} {
		commontest.OK(t, f.Stop(t.Context(), id, "why"))
	}
	commontest.Same(t, [][]string{{"to ", "to ecs"}, {"to lambda"}, {"ecs/a", "an-id-of-an-earlier-version"}, {"lambda/b"}}, [][]string{base.ran, fast.ran, base.stopped, fast.stopped})
	if f.Traits("").Lifetime != 0 || f.Traits(places.Lambda).Lifetime != time.Minute {
		t.Error("the traits are not those of the places")
	}
	if can := f.Traits("moon"); can.Lists || can.Lifetime == 0 {
		t.Errorf("a place that is not there any more can %+v", can)
	}
}

func TestTasksOfPlacesThatListThemAreListed(t *testing.T) {
	f, base, fast := two(places.Auto)
	base.tasks = []fleet.Status{{ID: "ecs/a"}}
	list, err := f.Tasks(t.Context())
	commontest.OK(t, err)
	commontest.Same(t, base.tasks, list)
	base.fails = fleet.ErrUnavailable
	if _, err := f.Tasks(t.Context()); !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("a place that does not answer: %v", err)
	}
	blind := places.New(places.Lambda, "", map[string]fleet.Fleet{places.Lambda: fast})
	if _, err := blind.Tasks(t.Context()); !errors.Is(err, fleet.ErrUnlisted) {
		t.Errorf("no place lists tasks: %v", err)
	}
}

func TestIdsOfEarlierVersionsNameTheirTasks(t *testing.T) {
	for ids, same := range map[[2]string]bool{
		{"ecs/a", "ecs/a"}:    true,
		{"ecs/a", "a"}:        true,
		{"a", "ecs/a"}:        true,
		{"ecs/a", "lambda/a"}: false,
		{"", "ecs/"}:          false,
	} {
		commontest.EqualIn(t, ids[0]+" and "+ids[1], same, fleet.Same(ids[0], ids[1]))
	}
}
