package transport_test

import (
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// hearsOf is the request of a client that listens to tasks.
func hearsOf(names string, rest string) ask {
	return ask{method: "subscriptions/listen", id: "41", caps: taskAskCaps, server: "known", params: `"notifications":{"taskIds":` + names + rest + `}`}
}

func TestTaskIsListenedTo(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.backend.tool("asks", func(r run) {
			time.Sleep(5 * time.Second)
			r.asks("q-1", elicit)
			r.answers("q-1")
			r.end(`{"content":[]}`)
		})
		made := w.becomes(taskAsking("asks").at("known"))
		listens := w.begin(hearsOf(`["unknown","`+made.TaskID+`"]`, "").request())
		time.Sleep(10 * time.Second)
		w.acked(made.of("tasks/update", `,"inputResponses":{"q-1":`+accept+`}`).at("known"))
		got := listens.end()
		datas := got.datas(t)
		if len(datas) != 4 || datas[0] != acknowledged(`{"taskIds":["`+made.TaskID+`"]}`) {
			t.Fatalf("got %s", strings.Join(datas, "\n"))
		}
		for i, status := range []string{"input_required", "completed"} {
			told := taskOf(t, wire.Lookup([]byte(datas[i+1]), "params"))
			method, _ := wire.String(wire.Lookup([]byte(datas[i+1]), "method"))
			if method != "notifications/tasks" || told.Status != status || told.TaskID != made.TaskID || told.ResultType != "" || !strings.Contains(datas[i+1], stamp) {
				t.Errorf("got %s", datas[i+1])
			}
		}
		if !strings.HasPrefix(datas[3], `{"jsonrpc":"2.0","id":41,"result":{"resultType":"complete"`) || got.took > 11*time.Second {
			t.Errorf("ended after %s with %s", got.took, datas[3])
		}
	})
}

func TestTaskThatHasEndedIsToldAtOnce(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.after("slow", 2*time.Second)
		made := w.becomes(tasking("slow").at("known"))
		time.Sleep(5 * time.Second)
		got := w.do(hearsOf(`["`+made.TaskID+`"]`, "").request())
		if datas := got.datas(t); len(datas) != 3 || !strings.Contains(datas[1], `"status":"completed"`) || got.took != 0 {
			t.Errorf("after %s: %s", got.took, strings.Join(datas, "\n"))
		}
	})
}

func TestTaskIsListenedToBesideOtherNews(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.handshake(t, listenable)
		w.opts.Limit = time.Minute
		w.after("slow", 5*time.Second)
		made := w.becomes(tasking("slow").at("known"))
		listens := w.begin(hearsOf(`["`+made.TaskID+`"]`, `,"toolsListChanged":true`).request())
		time.Sleep(10 * time.Second)
		w.pushed(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		got := listens.end()
		datas := got.datas(t)
		if len(datas) != 4 || !strings.Contains(datas[1], `"status":"completed"`) || !strings.Contains(datas[2], "tools/list_changed") || got.took < 50*time.Second {
			t.Errorf("after %s: %s", got.took, strings.Join(datas, "\n"))
		}
	})
}

func TestTaskIsNotListenedToByWhoDoesNotKnowTasks(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		a := hearsOf(`["t"]`, "")
		a.caps = "{}"
		got := w.do(a.request())
		if code, _ := got.rpcError(t); got.status != 400 || code != int(wire.CodeMissingCapability) || !strings.Contains(got.body, needsTasks) {
			t.Errorf("got %d %s", got.status, got.body)
		}
	})
}

func TestTaskTroubleOfTheStoreIsNoEmptySubscription(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.after("slow", 5*time.Second)
		made := w.becomes(tasking("slow").at("known"))
		w.down("Load")
		if got := w.do(hearsOf(`["`+made.TaskID+`"]`, "").request()); got.status != 503 {
			t.Errorf("got %d %s", got.status, got.body)
		}
	})
}

func TestTaskIsListenedToUntilTheClientGoes(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.after("slow", time.Hour)
		made := w.becomes(tasking("slow").at("known"))
		listens := w.begin(hearsOf(`["`+made.TaskID+`"]`, "").request())
		time.Sleep(20 * time.Second)
		if got := listens.gone(); got.took != 20*time.Second || !strings.Contains(got.body, "keep-alive") {
			t.Errorf("after %s: %s", got.took, got.body)
		}
		if raw := strings.Join(w.backend.got, ""); strings.Contains(raw, "notifications/cancelled") {
			t.Error("who stops listening cancels the task")
		}
	})
}
