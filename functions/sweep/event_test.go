package main

import (
	"encoding/json"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestEventsAreOfTheScheduleOrOfOneTask(t *testing.T) {
	for name, c := range map[string]struct {
		text        string
		id          string
		ours, stops bool
	}{
		"of the schedule": {`{"detail-type":"Scheduled Event","detail":{}}`, "", false, false},
		"of this machine": {`{"detail-type":"Dormouse Task Stopped","detail":{"id":"process/1","state":"stopped"}}`, "process/1", true, true},
		"of ECS":          {`{"detail-type":"ECS Task State Change","detail":{"group":"dormouse:YQ:Yg","startedBy":"t","lastStatus":"STOPPED"}}`, "ecs/t", true, true},
	} {
		t.Run(name, func(t *testing.T) {
			var e event
			commontest.OKIn(t, name, json.Unmarshal([]byte(c.text), &e))
			got, ours, stops, err := e.task()
			if err != nil || ours != c.ours || stops != c.stops || got.ID != c.id || ours && got.State != fleet.Stopped {
				t.Errorf("%s: %+v, ours %v, stops %v, %v", name, got, ours, stops, err)
			}
		})
	}
}
