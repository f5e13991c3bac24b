package local

import "testing"

// TestTheLoopKeepsTheRuntimeAPIsPromises runs the tests of the Runtime API, whose
// processes use aws-lambda-go elsewhere, with processes that use package loop.
func TestTheLoopKeepsTheRuntimeAPIsPromises(t *testing.T) {
	t.Setenv("ECHO_LOOP", "1")
	for name, promise := range map[string]func(*testing.T){
		"first bytes before the end":    TestFirstBytesComeBeforeTheEnd,
		"failure in the middle":         TestFailureInTheMiddleOfAnAnswer,
		"failure before the first byte": TestFailureBeforeTheFirstByteIsTheInvocations,
		"empty answer":                  TestEmptyAnswerIsNoFailure,
		"what Lambda tells":             TestFunctionIsToldWhatLambdaTells,
		"answers but asks for no more":  TestProcessThatAnswersButAsksForNothingMoreIsKilled,
		"one caller, one process":       TestOneCallerNeedsOneProcess,
		"used last, used first":         TestProcessUsedLastIsUsedFirst,
		"idle sleeps":                   TestIdleProcessSleeps,
		"sixteen at once":               TestSixteenAtOnceGetSixteenProcesses,
		"several in one process":        TestConcurrencyLetsOneProcessTakeSeveral,
		"whatever is killed":            TestEveryInvocationEndsWhateverIsKilled,
		"reported error":                TestReportedErrorLeavesTheProcess,
		"a caller leaves":               TestCallerThatLeavesDoesNotStopTheFunction,
		"a caller leaves the queue":     TestCallerThatLeavesTheQueueIsForgotten,
		"close":                         TestCloseLeavesNothing,
		"end of a process":              TestEndOfAProcessFailsItsInvocationOnly,
		"killed process":                TestKilledProcess,
		"timeout":                       TestTimeoutKillsTheProcess,
		"timeout of all":                TestTimeoutFailsAllInvocationsOfItsProcess,
	} {
		t.Run(name, promise)
	}
}
