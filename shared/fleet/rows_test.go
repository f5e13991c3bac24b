package fleet_test

import (
	"fmt"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/commontest"
)

// rows maps the acceptance rows about fast places for boxes to the tests that prove them.
// A test's folder stands before the colon.
func rows() map[string][]string {
	const (
		lambda    = "shared/fleet/lambda:"
		places    = "shared/fleet/places:"
		relay     = "shared/relay:"
		relayhost = "shared/relay/relayhost:"
		end       = "shared/relay/runner:"
		runner    = "infra/runner:"
		emulator  = "infra/local/lambda:"
		e2e       = "infra/dormouse:TestE2E"
	)
	return map[string][]string{
		"F-1":  {lambda + "TestFleetKeepsTheContractAsFarAsItsTraitsGo", relayhost + "TestABoxThatNoListHasIsNotLost", relayhost + "TestARunnerThatComesBackIsNotLost"},
		"F-2":  {relay + "TestSimulationOfAPlaceThatDoesNotList", end + "TestAnInvitedRunnerThatIsRefusedEndsAtOnce", runner + "TestASecondRunnerOfOneInvitationEndsAtOnce"},
		"F-3":  {relayhost + "TestTheLaunchOfAnInvitedRunnerComesWithItsWelcome", runner + "TestAFunctionForBoxesGivesNothingToAHostileServer", runner + "TestNoSecretIsInAKeptInstall"},
		"F-4":  {runner + "TestAFunctionForBoxesGivesNothingToAHostileServer", emulator + "TestNobodyGetsAnInvocationWhileAnAnswerIsHeld"},
		"F-5":  {runner + "TestAFunctionForBoxesGivesNothingToAHostileServer", e2e + "LambdaBoxesShareNoEnvironment"},
		"F-6":  {lambda + "TestAStartIsAnEventForTheTenantOfItsBox", emulator + "TestAProcessServesOneTenant"},
		"F-7":  {e2e + "LambdaCallsAcrossTheEndsOfLivesEndInTheirResults", relayhost + "TestACallThatADrainingBoxGivesBackWakesTheNextGeneration"},
		"F-8":  {end + "TestADrainingRunnerBeginsNoCallAndGivesItBack", runner + "TestABoxDrainsBeforeItsFunctionEnds"},
		"F-9":  {relayhost + "TestACallWhoseRunnerIsKilledEndsSoonWithoutAReport", relayhost + "TestABoxThatNoListHasIsNotLost", e2e + "LambdaKilledRunnerEndsItsCallAndTheSessionGoesOn", e2e + "KilledProgramEndsItsCall", e2e + "KilledRunnerIsNamedByALaterBox", e2e + "KilledMachineEndsTheCallWhenItIsBack"},
		"F-10": {relayhost + "TestAStartThatDoesNotComeGoesToAnotherPlace", e2e + "LambdaStartThatNeverComesGoesToTheNextPlace"},
		"F-13": {runner + "TestABakedServerStartsWithoutARegistry", runner + "TestTheClassOfABoxIsTheSmallestThatStartsInTime"},
		"F-14": {runner + "TestABoxUnpacksWhatItInstalledBefore", runner + "TestABoxOfAnotherTenantHasInstallsOfItsOwn"},
		"F-15": {"infra/stack:TestABoxAsAFunctionMayWriteItsLogAndNothingElse"},
		"F-16": {places + "TestAStartGoesToTheFirstPlaceThatFits", "functions/wiring:TestAServerWithGuardsIsNotPlacedOnLambda"},
		"F-17": {runner + "TestAThawedBoxThatNobodyMissedGoesOn", runner + "TestAThawedBoxThatWasReplacedIsFenced", relay + "TestPauseAnything", relay + "TestClocks"},
		"F-18": {"infra/proof/cost:TestTheTableOfPlacesHasTheirCosts"},
		"F-20": {lambda + "TestAnswersOfLambdaAreErrorsOfAFleet", emulator + "TestAFunctionWithTenantsRefusesWhatItHasNoRoomFor", e2e + "LambdaRefusedStartGoesToTheNextPlace"},
	}
}

// elsewhere has the rows without a test, and why.
func elsewhere() map[string]string {
	return map[string]string{
		"F-11": "times on AWS",
		"F-12": "a time: make bench-wake",
		"F-19": "a bill of AWS",
	}
}

func TestEveryRowHasATest(t *testing.T) {
	for n := range 20 {
		if row := fmt.Sprint("F-", n+1); len(rows()[row]) == 0 && elsewhere()[row] == "" {
			t.Errorf("%s has no test", row)
		}
	}
	commontest.RowsHaveTests(t, "../..", "shared/fleet", rows())
}
