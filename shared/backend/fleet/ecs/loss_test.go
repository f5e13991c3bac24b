package ecs

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// In whichever phase a task dies, and however ECS reports it: each call ends, none is
// executed twice, the next call succeeds, and no task is left running.
func TestATaskLostInAnyPhaseLeavesNothing(t *testing.T) {
	notices := map[string]func(func(), *wholeStack){
		"told at once":        func(told func(), _ *wholeStack) { time.Sleep(time.Second); told() },
		"told twice":          func(told func(), _ *wholeStack) { told(); time.Sleep(time.Minute); told() },
		"told 7 minutes late": func(told func(), _ *wholeStack) { time.Sleep(7 * time.Minute); told() },
		"never told":          func(func(), *wholeStack) {},
	}
	lists := map[string]func(*wholeStack){
		"as they are":                         func(*wholeStack) {},
		"40 s late":                           listsLate,
		"in pages, the second of which fails": func(s *wholeStack) { s.pageSize = 1; failing(s, "ListTasks", 3) },
		"not at all for half an hour":         func(s *wholeStack) { s.before = refusing("ListTasks", "ThrottlingException", 30*time.Minute) },
	}
	for _, where := range []phase{provisioning, pending, beforeHello, idle, inACall, afterBye} {
		for notice, tell := range notices {
			for list, arrange := range lists {
				t.Run(string(where)+"/"+notice+"/tasks listed "+list, func(t *testing.T) {
					inBubble(t, func(ctx context.Context, s *wholeStack) {
						s.dies, s.tell = where, tell
						arrange(s)
						first := s.ends(ctx, 1, 45*time.Minute)
						if lost := where == inACall; lost != strings.Contains(first, "executed is not known") {
							t.Errorf("the first call: %s", first)
						}
						if where == inACall && list == "as they are" && !strings.Contains(first, "killed by SIGKILL") {
							t.Errorf("the first call does not say how its task ended: %s", first)
						}
						time.Sleep(4 * time.Minute) // past the sleep of its box
						if second := s.ends(ctx, 2, 45*time.Minute); where != idle && !strings.Contains(second, `"result":{}`) {
							t.Errorf("the second call: %s", second)
						}
						time.Sleep(time.Hour)
						s.settled()
					})
				})
			}
		}
	}
}

// ends makes a call, which must end within a time. It ends either in its response, or in
// an error that says that the call was not accepted.
func (s *wholeStack) ends(ctx context.Context, n int, within time.Duration) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	raw, err := s.call(ctx, n)
	if errors.Is(err, storage.Unavailable) {
		return err.Error()
	}
	if err != nil {
		s.t.Errorf("call %d: %v", n, err)
	}
	return raw
}

// If a task dies at its start, one more is started, under another token. If that one dies
// too, the request ends with an error.
func TestAStartThatIsLostTwiceEndsTheCall(t *testing.T) {
	for _, where := range []phase{provisioning, pending, beforeHello} {
		t.Run(string(where), func(t *testing.T) {
			inBubble(t, func(ctx context.Context, s *wholeStack) {
				s.dies, s.first = where, 2
				if got := s.ends(ctx, 1, 15*time.Minute); !strings.Contains(got, "box_unavailable: the box could not start") {
					t.Errorf("the call: %s", got)
				}
				if len(s.tasks) != 2 || s.tasks[0].token == s.tasks[1].token {
					t.Errorf("%d tasks", len(s.tasks))
				}
				time.Sleep(time.Hour)
				s.settled()
			})
		})
	}
}

// listsLate leaves each task out of the lists until it is 40 s old.
func listsLate(s *wholeStack) {
	s.before = func(action string, _ map[string]any) *answer {
		if action == "ListTasks" {
			for _, task := range s.tasks {
				task.hidden = time.Since(task.created) < 40*time.Second
			}
		}
		return nil
	}
}

// failing makes times calls of an action fail, from its second call on.
func failing(s *wholeStack, which string, times int) {
	calls := 0
	s.before = func(action string, _ map[string]any) *answer {
		if action != which {
			return nil
		}
		if calls++; calls > 1 && calls <= 1+times {
			return &answer{err: errors.New("connection reset")}
		}
		return nil
	}
}

// refusing makes ECS refuse an action while lasts has not passed.
func refusing(which, code string, lasts time.Duration) func(string, map[string]any) *answer {
	begun := time.Now()
	return func(action string, _ map[string]any) *answer {
		if action == which && time.Since(begun) < lasts {
			return refusal(400, code, nil)
		}
		return nil
	}
}

func TestARefusedStartEndsTheCallAndTheNextOneIsServed(t *testing.T) {
	none := func(action string, in map[string]any) *answer {
		return ok(map[string]any{"tasks": []any{}, "failures": []any{map[string]any{"reason": "RESOURCE:FARGATE"}}})
	}
	refusals := map[string]struct {
		answer func(action string, in map[string]any) *answer
		says   string
	}{
		"no capacity":    {none, "no room for another box now"},
		"throttled":      {func(string, map[string]any) *answer { return refusal(400, "ThrottlingException", nil) }, "no room for another box now"},
		"quota":          {func(string, map[string]any) *answer { return refusal(400, "LimitExceededException", nil) }, "no room for another box now"},
		"no right":       {func(string, map[string]any) *answer { return refusal(400, "AccessDeniedException", nil) }, "the operator's log has the cause"},
		"no such subnet": {func(string, map[string]any) *answer { return refusal(400, "InvalidParameterException", nil) }, "the operator's log has the cause"},
		"ECS is down":    {func(string, map[string]any) *answer { return &answer{err: errors.New("connection refused")} }, "the operator's log has the cause"},
	}
	for name, tt := range refusals {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(ctx context.Context, s *wholeStack) {
				s.before = func(action string, in map[string]any) *answer {
					if action == "RunTask" {
						return tt.answer(action, in)
					}
					return nil
				}
				if got := s.ends(ctx, 1, 2*time.Minute); !strings.Contains(got, tt.says) {
					t.Errorf("got %s, want %q", got, tt.says)
				}
				s.fake.mu.Lock()
				s.before = nil
				s.fake.mu.Unlock()
				if got := s.ends(ctx, 2, 5*time.Minute); !strings.Contains(got, `"result":{}`) {
					t.Errorf("the next call: %s", got)
				}
				time.Sleep(time.Hour)
				s.settled()
			})
		})
	}
}

// A function that starts a task may lose ECS's answer that the task exists.
func TestAStartWhoseAnswerIsLostStartsOneTask(t *testing.T) {
	inBubble(t, func(ctx context.Context, s *wholeStack) {
		whole, lost := s.after, 0
		s.after = func(action string, in map[string]any) *answer {
			whole(action, in)
			if action == "RunTask" && len(s.tasks) > 0 && lost < 2 {
				lost++
				return &answer{err: errors.New("connection reset")}
			}
			return nil
		}
		if got := s.ends(ctx, 1, 5*time.Minute); !strings.Contains(got, `"result":{}`) || len(s.tasks) != 1 {
			t.Errorf("%s, %d tasks", got, len(s.tasks))
		}
		time.Sleep(time.Hour)
		s.settled()
	})
}

// The host may give up a start whose task runs all the same and costs money. No record
// names this task, so the sweep stops it.
func TestATaskThatNobodyKnowsIsStopped(t *testing.T) {
	for name, arrange := range map[string]func(*wholeStack){
		"at once": func(*wholeStack) {},
		"though stopping fails before": func(s *wholeStack) {
			s.before = refusing("StopTask", "ThrottlingException", 40*time.Minute)
		},
		"though it is listed late": listsLate,
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(ctx context.Context, s *wholeStack) {
				s.hangs = true
				arrange(s)
				if got := s.ends(ctx, 1, 15*time.Minute); !strings.Contains(got, `"result":{}`) {
					t.Errorf("the call: %s", got)
				}
				time.Sleep(time.Hour)
				s.settled()
				if len(s.tasks) != 2 || s.tasks[0].stopCode != "UserInitiated" || s.tasks[0].reason != "no box knows it" {
					t.Errorf("%d tasks, the first: %s, %s", len(s.tasks), s.tasks[0].stopCode, s.tasks[0].reason)
				}
			})
		})
	}
}

// The sweep stops no tasks of other programs, and no task that works. It gives up no box
// because ECS does not answer.
func TestATaskThatWorksIsNotStopped(t *testing.T) {
	for name, arrange := range map[string]func(*wholeStack){
		"tasks listed as they are": func(*wholeStack) {},
		"tasks listed not at all":  func(s *wholeStack) { s.before = refusing("ListTasks", "ThrottlingException", time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(ctx context.Context, s *wholeStack) {
				arrange(s)
				s.fake.mu.Lock()
				s.tasks = append(s.tasks, &fakeTask{arn: "arn:other", token: "other", group: "family:other", status: "RUNNING", desired: "RUNNING"})
				s.fake.mu.Unlock()
				for n := range 20 { // an hour of calls, each before its box falls asleep
					if got := s.ends(ctx, n+1, 5*time.Minute); !strings.Contains(got, `"result":{}`) {
						t.Errorf("call %d: %s", n+1, got)
					}
					time.Sleep(100 * time.Second)
				}
				if s.actions()["StopTask"] != 0 || len(s.tasks) != 2 {
					t.Errorf("%v, %d tasks", s.actions(), len(s.tasks))
				}
			})
		})
	}
}
