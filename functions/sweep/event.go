package main

import (
	"encoding/json"

	"github.com/aws/aws-lambda-go/events"

	"github.com/dormouse-mcp/dormouse/shared/fleet"
	"github.com/dormouse-mcp/dormouse/shared/fleet/ecs"
	"github.com/dormouse-mcp/dormouse/shared/fleet/lambda"
)

// taskStopped is the detail type of Dormouse's own event about one stopped task.
// Events of a schedule have another.
const taskStopped = "Dormouse Task Stopped"

// event is an event of EventBridge, or Lambda's report of a box's invocation that ended.
type event struct {
	events.CloudWatchEvent
	lambda.Report
}

// task returns the task that an event is about. stops is false for an event of the
// schedule. ours is false for a task that is no box.
func (e event) task() (t fleet.Status, ours, stops bool, err error) {
	switch {
	case e.DetailType == taskStopped:
		err = json.Unmarshal(e.Detail, &t)
		return t, true, true, err
	case e.DetailType == ecs.EventDetailType:
		t, ours, err = ecs.TaskEvent(e.Detail)
		return t, ours, true, err
	case len(e.RequestPayload) > 0:
		t, ours = e.Ended()
		return t, ours, true, nil
	}
	return fleet.Status{}, false, false, nil
}
