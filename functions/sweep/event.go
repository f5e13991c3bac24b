package main

import (
	"encoding/json"

	"github.com/aws/aws-lambda-go/events"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet/ecs"
)

// taskStopped is the detail type of an event of Dormouse about one stopped task.
const taskStopped = "Dormouse Task Stopped"

type event struct{ events.CloudWatchEvent }

// task returns the task that the event is about. For an event of the schedule, which is about no
// task, scheduled is true. The result isBox reports whether the task is a box.
func (e event) task() (t fleet.Status, isBox, scheduled bool, err error) {
	switch e.DetailType {
	case taskStopped:
		err = json.Unmarshal(e.Detail, &t)
		return t, true, false, err
	case ecs.EventDetailType:
		t, isBox, err = ecs.TaskEvent(e.Detail)
		return t, isBox, false, err
	}
	return fleet.Status{}, false, true, nil
}
