package main

import (
	"encoding/json"

	"github.com/aws/aws-lambda-go/events"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet/ecs"
)

// taskStopped is the detail type of an event of Dormouse about one stopped task. Events of the
// schedule have another detail type.
const taskStopped = "Dormouse Task Stopped"

type event struct{ events.CloudWatchEvent }

// task returns the task that the event is about. The result stops is false if the event
// comes from the schedule. The result ours is false if the task is no box.
func (e event) task() (t fleet.Status, ours, stops bool, err error) {
	switch e.DetailType {
	case taskStopped:
		err = json.Unmarshal(e.Detail, &t)
		return t, true, true, err
	case ecs.EventDetailType:
		t, ours, err = ecs.TaskEvent(e.Detail)
		return t, ours, true, err
	}
	return fleet.Status{}, false, false, nil
}
